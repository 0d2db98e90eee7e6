using System;

namespace Quire
{
    public sealed partial class Session
    {
        /// <summary>Tokens that the session has read: processed and delivered ones.</summary>
        public long TokenCount
        {
            get
            {
                GetCounts(out long tokens, out long pending);
                return tokens;
            }
        }

        /// <summary>Fed tokens that wait to be processed.</summary>
        public long PendingCount
        {
            get
            {
                GetCounts(out long tokens, out long pending);
                return pending;
            }
        }

        /// <summary>Both counts at one moment.</summary>
        public void GetCounts(out long tokens, out long pending)
        {
            Calls.Check(Native.quire_session_get_token_counts(Handle, out tokens, out pending, out NativeError error),
                ref error);
        }

        /// <summary>The ids of all tokens of the text, pending ones last.</summary>
        public unsafe int[] Tokens()
        {
            return Calls.Array<int>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_session_get_tokens(Handle, (int*)buffer, capacity, out needed, out error));
        }

        /// <summary>
        /// Raw logits that the last stream computed after token `firstToken` and the next ones: rowCount rows of
        /// VocabSize floats, one after the other. -1: after the last processed token. Others than the last one need
        /// StreamOptions.KeepLogits.
        /// </summary>
        public unsafe float[] Logits(long firstToken = -1, long rowCount = 1)
        {
            return Calls.Array<float>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_session_get_logits(Handle, firstToken, rowCount, (float*)buffer, capacity, out needed,
                    out error));
        }

        /// <summary>
        /// log p(token | all before it) of tokenCount tokens that the last stream processed with StreamOptions.Score.
        /// NaN where the logits before a token are not known.
        /// </summary>
        public unsafe float[] Scores(long firstToken, long tokenCount)
        {
            return Calls.Array<float>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_session_get_scores(Handle, firstToken, tokenCount, (float*)buffer, capacity, out needed,
                    out error));
        }

        /// <summary>
        /// Last hidden states (embeddings) of tokens that the last stream processed with StreamOptions.KeepHidden:
        /// rowCount rows of HiddenSize floats, one after the other.
        /// </summary>
        public unsafe float[] HiddenStates(long firstToken, long rowCount = 1)
        {
            return Calls.Array<float>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_session_get_hidden_states(Handle, firstToken, rowCount, (float*)buffer, capacity,
                    out needed, out error));
        }

        /// <summary>What the session has done and holds.</summary>
        public unsafe SessionStats Stats()
        {
            var stats = new NativeSessionStats { struct_size = (uint)sizeof(NativeSessionStats) };
            Calls.Check(Native.quire_session_get_stats(Handle, &stats, out NativeError error), ref error);
            return new SessionStats(&stats);
        }

        /// <summary>What one tier of the KV cache holds; zeros for a tier that the session does not have.</summary>
        public unsafe TierStats TierStats(Tier tier)
        {
            var stats = new NativeTierStats { struct_size = (uint)sizeof(NativeTierStats) };
            Calls.Check(Native.quire_session_get_tier_stats(Handle, (int)tier, &stats, out NativeError error),
                ref error);
            return new TierStats(&stats);
        }

        /// <summary>The strategy in canonical form; for auto, the chosen one.</summary>
        public unsafe string Strategy()
        {
            return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_session_get_strategy(Handle, (byte*)buffer, capacity, out needed, out error));
        }

        /// <summary>32 hexadecimal digits that name all that keys and values depend on beside the tokens.</summary>
        public unsafe string Fingerprint()
        {
            return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_session_get_fingerprint(Handle, (byte*)buffer, capacity, out needed, out error));
        }
    }
}
