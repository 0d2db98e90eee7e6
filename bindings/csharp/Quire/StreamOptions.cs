using System;
using System.Collections.Generic;
using System.Linq;

namespace Quire
{
    /// <summary>What a stream generates and keeps. What is not set has its default.</summary>
    public sealed class StreamOptions
    {
        /// <summary>Generate at most so many tokens; 0: process what was fed and generate nothing.</summary>
        public long MaxTokens { get; set; }

        /// <summary>Before so many tokens the answer does not end by a stop or end-of-text token.</summary>
        public long MinTokens { get; set; }

        /// <summary>0: greedy.</summary>
        public float Temperature { get; set; }

        /// <summary>Keep the so many most probable tokens; 0: all.</summary>
        public int TopK { get; set; }

        /// <summary>Keep the smallest set of tokens with at least this probability; 0 or 1: all.</summary>
        public float TopP { get; set; }

        /// <summary>Drop tokens less probable than this times the most probable; 0: none.</summary>
        public float MinP { get; set; }

        /// <summary>The n-th token of the session draws from (Seed, n).</summary>
        public ulong Seed { get; set; }

        /// <summary>A chain in any order instead of Temperature, TopK, TopP and MinP; null: none.</summary>
        public IReadOnlyList<Sampler> Samplers { get; set; }

        /// <summary>Numbers added to the logits of tokens; null: none. A Dictionary is one.</summary>
        public IEnumerable<KeyValuePair<int, float>> LogitBias { get; set; }

        /// <summary>Strings that DRY's repetitions do not reach across; null: the usual ones; empty: none.</summary>
        public IReadOnlyList<string> DryBreakers { get; set; }

        /// <summary>Generation ends after one of these, which is not delivered; null: none.</summary>
        public IReadOnlyList<int> StopTokens { get; set; }

        /// <summary>Generation ends before one of these appears in the text; null: none.</summary>
        public IReadOnlyList<string> StopStrings { get; set; }

        /// <summary>From opening; then the stream ends at the next token boundary; zero: none.</summary>
        public TimeSpan Deadline { get; set; }

        /// <summary>So many of the most probable tokens come with each token; at most 64.</summary>
        public int TopLogprobCount { get; set; }

        /// <summary>Generate at most so many tokens ahead of their delivery; 0: 8, or 1 with Constrain.</summary>
        public int MaxUndelivered { get; set; }

        /// <summary>Whether log p of each processed token is kept, for Session.Scores.</summary>
        public bool Score { get; set; }

        /// <summary>Whether the logits of all positions are kept, for Session.Logits.</summary>
        public bool KeepLogits { get; set; }

        /// <summary>Whether the last hidden states of all positions are kept, for Session.HiddenStates.</summary>
        public bool KeepHidden { get; set; }

        /// <summary>Whether end-of-text tokens do not end the stream.</summary>
        public bool IgnoreEos { get; set; }

        /// <summary>Whether it is kept where the answer looked, for Session.Passages.</summary>
        public bool Cite { get; set; }

        /// <summary>With Cite: tokens before this one may be cited; 0: all but the last 64 before the answer.</summary>
        public long CiteEnd { get; set; }

        /// <summary>Each token waits for its Experimental.Allow. Experimental: it may change in any version.</summary>
        public bool Constrain { get; set; }

        /// <summary>
        /// Prompt lookup: at most so many tokens are drafted at a step; 0: none. The tokens stay the same as far as the
        /// device's numbers do not depend on how many tokens it processes at once (the CPU's do not). Experimental: it may
        /// change in any version.
        /// </summary>
        public int DraftTokens { get; set; }

        /// <summary>Only where so many of the last tokens stood before; 0: 2. Experimental, too.</summary>
        public int DraftMatch { get; set; }

        private StreamFlags Flags
        {
            get
            {
                return (Score ? StreamFlags.Score : 0) | (KeepLogits ? StreamFlags.KeepLogits : 0)
                    | (IgnoreEos ? StreamFlags.IgnoreEos : 0) | (Constrain ? StreamFlags.Constrain : 0)
                    | (KeepHidden ? StreamFlags.KeepHidden : 0) | (Cite ? StreamFlags.Cite : 0);
            }
        }

        internal static unsafe NativeStreamOptions ToNative(StreamOptions options, Pins pins)
        {
            NativeStreamOptions native;
            Native.quire_stream_options_init(&native, (UIntPtr)sizeof(NativeStreamOptions));
            if (options == null) return native;
            native.flags = (uint)options.Flags;
            native.max_tokens = options.MaxTokens;
            native.min_tokens = options.MinTokens;
            native.temperature = options.Temperature;
            native.top_k = options.TopK;
            native.top_p = options.TopP;
            native.min_p = options.MinP;
            native.seed = options.Seed;
            native.deadline_ms = (long)Math.Ceiling(options.Deadline.TotalMilliseconds);
            native.n_top_logprobs = options.TopLogprobCount;
            native.max_undelivered = options.MaxUndelivered;
            native.cite_end = options.CiteEnd;
            native.draft_tokens = options.DraftTokens;
            native.draft_match = options.DraftMatch;
            options.SetStops(&native, pins);
            options.SetSampling(&native, pins);
            return native;
        }

        private unsafe void SetStops(NativeStreamOptions* native, Pins pins)
        {
            if (StopTokens != null)
            {
                int[] ids = StopTokens.ToArray();
                native->stop_ids = pins.Array(ids);
                native->n_stop_ids = Calls.Length(ids);
            }
            if (StopStrings != null)
            {
                NativeText[] texts = pins.Texts(StopStrings);
                native->stop_strings = pins.Array(texts);
                native->n_stop_strings = Calls.Length(texts);
            }
        }

        private unsafe void SetSampling(NativeStreamOptions* native, Pins pins)
        {
            if (Samplers != null)
            {
                NativeSampler[] chain = Samplers.Select(sampler => sampler.Native).ToArray();
                native->samplers = pins.Array(chain);
                native->n_samplers = Calls.Length(chain);
            }
            if (LogitBias != null)
            {
                NativeLogitBias[] biases = LogitBias.Select(bias => new NativeLogitBias
                {
                    token = bias.Key,
                    bias = bias.Value
                }).ToArray();
                native->logit_bias = pins.Array(biases);
                native->n_logit_bias = Calls.Length(biases);
            }
            if (DryBreakers != null)
            {
                NativeText[] texts = pins.Texts(DryBreakers);
                // No breakers is another thing than the usual ones, which NULL stands for.
                native->dry_breakers = pins.Array(texts.Length == 0 ? new NativeText[1] : texts);
                native->n_dry_breakers = Calls.Length(texts);
            }
        }
    }
}
