using System;
using System.Collections.Generic;

namespace Quire
{
    public sealed partial class TokenLogprob
    {
        private static readonly TokenLogprob[] none = new TokenLogprob[0];

        internal static unsafe IReadOnlyList<TokenLogprob> List(IntPtr items, UIntPtr count)
        {
            if (count == UIntPtr.Zero) return none;
            var list = new TokenLogprob[(int)count.ToUInt64()];
            for (int index = 0; index < list.Length; index++)
                list[index] = new TokenLogprob((NativeTokenLogprob*)items + index);
            return list;
        }
    }
}
