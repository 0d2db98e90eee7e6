using System;
using System.Collections.Generic;

namespace Quire
{
    public sealed partial class EventStream
    {
        /// <summary>More ids that end the answer, for all tokens that are not delivered yet.</summary>
        public unsafe void AddStopTokens(IEnumerable<int> tokens)
        {
            int[] ids = Calls.ToArray(tokens, nameof(tokens));
            fixed (int* data = ids)
            {
                Calls.Check(Native.quire_stream_add_stop_ids(Handle, data, Calls.Length(ids), out NativeError error),
                    ref error);
            }
        }

        /// <summary>More strings that end the answer; Event.StopIndex counts them behind those that there are.</summary>
        public unsafe void AddStopStrings(IEnumerable<string> strings)
        {
            if (strings == null) throw new ArgumentNullException(nameof(strings));
            using (var pins = new Pins())
            {
                NativeText[] texts = pins.Texts(strings);
                Calls.Check(Native.quire_stream_add_stop_strings(Handle, (NativeText*)pins.Array(texts),
                    Calls.Length(texts), out NativeError error), ref error);
            }
        }

        /// <summary>
        /// A file descriptor for poll loops: readable when an event waits, and sometimes when there is none yet, so take
        /// events with a timeout of 0. Only poll it; it belongs to the stream.
        /// </summary>
        public int WaitDescriptor()
        {
            Calls.Check(Native.quire_stream_get_wait_handle(Handle, out long handle, out int kind,
                out NativeError error), ref error);
            if (kind != (int)WaitKind.Fd) throw new NotSupportedException("a wait handle of kind " + kind);
            return (int)handle;
        }
    }
}
