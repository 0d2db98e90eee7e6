namespace Quire
{
    /// <summary>One link of a sampling chain: what it does to the candidates that the links before it left.</summary>
    public sealed class Sampler
    {
        private Sampler(SamplerKind kind, int n = 0, int m = 0, float a = 0, float b = 0, float c = 0)
        {
            Native = new NativeSampler { kind = (int)kind, n = n, m = m, a = a, b = b, c = c };
        }

        internal NativeSampler Native { get; }

        /// <summary>Divides the logits.</summary>
        public static Sampler Temperature(float temperature)
        {
            return new Sampler(SamplerKind.Temperature, a: temperature);
        }

        /// <summary>Keeps the `count` most probable.</summary>
        public static Sampler TopK(int count)
        {
            return new Sampler(SamplerKind.TopK, n: count);
        }

        /// <summary>Keeps the smallest set of the most probable that has at least this probability.</summary>
        public static Sampler TopP(float probability)
        {
            return new Sampler(SamplerKind.TopP, a: probability);
        }

        /// <summary>Keeps those at least so many times as probable as the most probable.</summary>
        public static Sampler MinP(float ratio)
        {
            return new Sampler(SamplerKind.MinP, a: ratio);
        }

        /// <summary>Locally typical sampling (Meister et al. 2022).</summary>
        public static Sampler Typical(float probability)
        {
            return new Sampler(SamplerKind.Typical, a: probability);
        }

        /// <summary>
        /// Of tokens among the last `window` (0: all): logits are divided by `repeat` (1: nothing), `frequency` is
        /// subtracted for each occurrence, `presence` once.
        /// </summary>
        public static Sampler Penalties(float repeat = 1, float frequency = 0, float presence = 0, int window = 0)
        {
            return new Sampler(SamplerKind.Penalties, n: window, a: repeat, b: frequency, c: presence);
        }

        /// <summary>
        /// DRY: a token that would continue a repetition of at least `minLength` tokens among the last `window` (0:
        /// all) loses multiplier * base ^ (length - minLength).
        /// </summary>
        public static Sampler Dry(float multiplier = 0.8f, float @base = 1.75f, int minLength = 2, int window = 0)
        {
            return new Sampler(SamplerKind.Dry, n: window, m: minLength, a: multiplier, b: @base);
        }
    }
}
