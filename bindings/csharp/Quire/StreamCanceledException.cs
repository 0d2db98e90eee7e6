using System;
using System.Threading;

namespace Quire
{
    /// <summary>A token that was given for reading a stream cancelled it.</summary>
    public sealed class StreamCanceledException : OperationCanceledException
    {
        internal StreamCanceledException(Event end, CancellationToken token) : base("the stream was cancelled", token)
        {
            End = end;
        }

        /// <summary>
        /// The end event. Its Text belongs to tokens that the session keeps: what was held back because it could have
        /// begun a stop string or a character.
        /// </summary>
        public Event End { get; }
    }
}
