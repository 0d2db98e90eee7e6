using System.Collections.Generic;
using System.Linq;

namespace Quire
{
    /// <summary>A part of a fed text that the caller has a name for, such as a page.</summary>
    public struct Label
    {
        /// <summary>Bytes [begin, end) of the text as UTF-8.</summary>
        public Label(long begin, long end, long id)
        {
            Begin = begin;
            End = end;
            Id = id;
        }

        /// <summary>The first byte.</summary>
        public long Begin { get; }

        /// <summary>Behind the last byte.</summary>
        public long End { get; }

        /// <summary>The caller's: any number. Several labels may share one, and labels may overlap.</summary>
        public long Id { get; }

        /// <summary>Of null: no labels.</summary>
        internal static NativeLabel[] ToNative(IEnumerable<Label> labels)
        {
            return (labels ?? Enumerable.Empty<Label>()).Select(label => new NativeLabel
            {
                begin = label.Begin,
                end = label.End,
                id = label.Id
            }).ToArray();
        }
    }
}
