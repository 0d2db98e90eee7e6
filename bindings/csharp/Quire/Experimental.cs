using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>A part of a strategy's relative-position matrix. Experimental.</summary>
    public sealed class PositionView
    {
        /// <summary>The query head.</summary>
        public int Head { get; set; }

        /// <summary>What the rows are.</summary>
        public KvKind QueryKind { get; set; }

        /// <summary>What the columns are.</summary>
        public KvKind KeyKind { get; set; }

        /// <summary>The first row's query.</summary>
        public int FirstQuery { get; set; }

        /// <summary>Rows.</summary>
        public int QueryCount { get; set; }

        /// <summary>Columns, from key 0 on.</summary>
        public int KeyCount { get; set; }
    }

    /// <summary>
    /// For tools, benchmarks and tests. What is here may change or go in any version; the promise of ABI.md does not
    /// cover it.
    /// </summary>
    public static unsafe class Experimental
    {
        /// <summary>
        /// The distances that a model sees between queries (rows) and keys (columns) under a strategy; NaN where a key
        /// is not visible. Arguments as of Strategies.Describe. Any thread.
        /// </summary>
        public static double[,] Positions(string expression, long trainLen, PositionView view, int headCount = 0,
            long expectedTokens = 0)
        {
            if (view == null) throw new ArgumentNullException(nameof(view));
            var matrix = new double[view.QueryCount, view.KeyCount];
            GCHandle pin = GCHandle.Alloc(matrix, GCHandleType.Pinned);
            try
            {
                using (var pins = new Pins())
                {
                    NativeStrategyOptions options = Strategies.ToNative(expression, trainLen, headCount, expectedTokens,
                        pins);
                    NativePositionView native;
                    Native.quire_position_view_init(&native, (UIntPtr)sizeof(NativePositionView));
                    native.head = view.Head;
                    native.query_kind = (int)view.QueryKind;
                    native.key_kind = (int)view.KeyKind;
                    native.first_query = view.FirstQuery;
                    native.n_queries = view.QueryCount;
                    native.n_keys = view.KeyCount;
                    Calls.Check(Native.quire_strategy_get_positions(&options, &native,
                        (double*)pin.AddrOfPinnedObject(), (UIntPtr)(ulong)matrix.LongLength, out UIntPtr needed,
                        out NativeError error), ref error);
                    return matrix;
                }
            }
            finally
            {
                pin.Free();
            }
        }

        /// <summary>
        /// For benchmarks: an empty session becomes one of so many random tokens without computing them. What it says
        /// means nothing. One thread at a time on the session.
        /// </summary>
        public static void FillRandom(Session session, long tokenCount, ulong seed)
        {
            Calls.Check(Native.quire_session_fill_random(session.Handle, tokenCount, seed, out NativeError error),
                ref error);
        }

        /// <summary>What tests of cancelling look at. Any thread.</summary>
        public static SessionProbes Probes(Session session)
        {
            var probes = new NativeSessionProbes { struct_size = (uint)sizeof(NativeSessionProbes) };
            Calls.Check(Native.quire_session_get_probes(session.Handle, &probes, out NativeError error), ref error);
            return new SessionProbes(&probes);
        }

        /// <summary>
        /// With StreamOptions.Constrain: the tokens that may come next; null: any. Once before the first token, and
        /// once after each one taken. `vocabSize`: ModelInfo.VocabSize. One thread at a time on the stream.
        /// </summary>
        public static void Allow(EventStream stream, IEnumerable<int> tokens, int vocabSize)
        {
            uint[] words = tokens == null ? new uint[0] : new uint[(vocabSize + 31) / 32];
            foreach (int token in tokens ?? new int[0])
            {
                if (token < 0 || token >= vocabSize) throw new ArgumentOutOfRangeException(nameof(tokens));
                words[token / 32] |= 1u << token % 32;
            }
            fixed (uint* data = words)
            {
                Calls.Check(Native.quire_stream_allow(stream.Handle, data, Calls.Length(words), out NativeError error),
                    ref error);
            }
        }
    }
}
