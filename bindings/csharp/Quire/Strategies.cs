using System;

namespace Quire
{
    /// <summary>
    /// Strategy expressions, without a model. `trainLen` is the length that a model was trained for, `headCount` its
    /// number of query heads (0: 32), `expectedTokens` the length of the text (0: unknown). Any thread may use this
    /// class.
    /// </summary>
    public static unsafe class Strategies
    {
        /// <summary>The expression in canonical form, every default written out. Throws BadStrategy with a column.</summary>
        public static string Describe(string expression, long trainLen, int headCount = 0, long expectedTokens = 0)
        {
            if (expression == null) throw new ArgumentNullException(nameof(expression));
            using (var pins = new Pins())
            {
                NativeStrategyOptions options = ToNative(expression, trainLen, headCount, expectedTokens, pins);
                NativeStrategyOptions* pointer = &options;
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_strategy_describe(pointer, (byte*)buffer, capacity, out needed, out error));
            }
        }

        /// <summary>
        /// What expressions may be made of, as JSON, for settings dialogs and completion: each term with its arguments,
        /// their ranges, defaults and choices (quire_strategy_get_list in quire.h).
        /// </summary>
        public static string List(long trainLen, int headCount = 0, long expectedTokens = 0)
        {
            using (var pins = new Pins())
            {
                NativeStrategyOptions options = ToNative(null, trainLen, headCount, expectedTokens, pins);
                NativeStrategyOptions* pointer = &options;
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_strategy_get_list(pointer, (byte*)buffer, capacity, out needed, out error));
            }
        }

        internal static NativeStrategyOptions ToNative(string expression, long trainLen, int headCount,
            long expectedTokens, Pins pins)
        {
            NativeStrategyOptions native;
            Native.quire_strategy_options_init(&native, (UIntPtr)sizeof(NativeStrategyOptions));
            native.strategy = pins.Text(expression, out native.strategy_len);
            native.train_len = trainLen;
            native.n_heads = headCount;
            native.expected_tokens = expectedTokens;
            return native;
        }
    }
}
