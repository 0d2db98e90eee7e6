using System;
using System.Collections.Generic;
using System.Linq;

namespace Quire
{
    public sealed partial class Session
    {
        /// <summary>
        /// The passages of what was fed that tokens of the last answer looked at most, the greatest share first. Needs
        /// a stream with StreamOptions.Cite. firstToken -1 with tokenCount 0: all of the answer.
        /// </summary>
        public unsafe IReadOnlyList<Passage> Passages(int maxPassages = 5, long firstToken = -1, long tokenCount = 0)
        {
            return Calls.Array<NativePassage>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed,
                out NativeError error) => Native.quire_session_get_passages(Handle, firstToken, tokenCount, maxPassages,
                    (NativePassage*)buffer, capacity, out needed, out error)).Select(Copy).ToArray();
        }

        /// <summary>The same shares by label, for each label in the order fed.</summary>
        public unsafe IReadOnlyList<LabelAttention> LabelShares(long firstToken = -1, long tokenCount = 0)
        {
            return Calls.Array<NativeLabelAttention>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed,
                out NativeError error) => Native.quire_session_get_label_shares(Handle, firstToken, tokenCount,
                    (NativeLabelAttention*)buffer, capacity, out needed, out error)).Select(Copy).ToArray();
        }

        /// <summary>
        /// How the choices of chunks that the last answer made fell on each label, in the order fed. Throws Unsupported
        /// for strategies that choose no chunks.
        /// </summary>
        public unsafe IReadOnlyList<LabelAttention> LabelAttention()
        {
            return Calls.Array<NativeLabelAttention>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed,
                out NativeError error) => Native.quire_session_get_label_attention(Handle,
                    (NativeLabelAttention*)buffer, capacity, out needed, out error)).Select(Copy).ToArray();
        }

        private static unsafe Passage Copy(NativePassage passage)
        {
            return new Passage(&passage);
        }

        private static unsafe LabelAttention Copy(NativeLabelAttention attention)
        {
            return new LabelAttention(&attention);
        }
    }
}
