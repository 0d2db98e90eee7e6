using System.Collections.Generic;
using System.Linq;

namespace Quire.Tests
{
    /// <summary>What is chosen from, and what is kept of the choice.</summary>
    internal sealed class SamplingTests : WithModel
    {
        private static readonly Sampler best = Sampler.TopK(1);

        [Test]
        private void AChainIsWhatItsPartsAre()
        {
            int[] plain = Ids(Fed(), new StreamOptions
            {
                MaxTokens = 12, IgnoreEos = true, Temperature = 0.9f, TopK = 30, TopP = 0.95f, MinP = 0.01f, Seed = 4
            });
            StreamOptions chain = Tokens(12);
            chain.Seed = 4;
            chain.Samplers = new[]
            {
                Sampler.Temperature(0.9f), Sampler.TopK(30), Sampler.TopP(0.95f), Sampler.MinP(0.01f)
            };
            Check.Sequence(plain, Ids(Fed(), chain));
            chain.Samplers = new[] { Sampler.Typical(0.5f), best };
            Check.Equal(12, Ids(Fed(), chain).Length);
        }

        [Test]
        private void PenaltiesAndDry()
        {
            StreamOptions options = Tokens(12);
            options.Samplers = new[] { Sampler.Penalties(presence: 1000), best };
            Check.Equal(12, Ids(Fed(), options).Distinct().Count());
            foreach (string[] breakers in new[] { null, new string[0], new[] { "\n", "e" } })
            {
                options.Samplers = new[] { Sampler.Dry(), best };
                options.DryBreakers = breakers;
                Check.Equal(12, Ids(Fed(), options).Length);
            }
        }

        [Test]
        private void TheMostProbableComeFirst()
        {
            StreamOptions options = Tokens(6);
            options.TopLogprobCount = 4;
            List<Event> tokens = Events(Fed(), options).Where(next => next.Kind == EventKind.Token).ToList();
            foreach (Event next in tokens)
            {
                Check.Equal(4, next.TopLogprobs.Count);
                Check.Equal(next.Token, next.TopLogprobs[0].Token);
                Check.Equal(next.Logprob, next.TopLogprobs[0].Logprob);
            }
            options.LogitBias = new Dictionary<int, float> { [tokens[0].Token] = float.NegativeInfinity };
            Check.Equal(tokens[0].TopLogprobs[1].Token, Ids(Fed(), options)[0]);
            options.LogitBias = new Dictionary<int, float> { [320] = 1 };
            Check.Equal(0L, Check.Fails(Status.InvalidToken, () => Fed().Open(options)).Offset);
            Check.Equal(0, Events(Fed(), Tokens(1)).Last().TopLogprobs.Count);
        }

        [Test]
        private void NotBeforeSoMany()
        {
            int first = Ids(Fed(), Tokens(1))[0];
            StreamOptions options = Tokens(12);
            options.StopTokens = new[] { first };
            Check.Equal(0, Ids(Fed(), options).Length);
            options.MinTokens = 3;
            int[] held = Ids(Fed(), options);
            Check.True(held.Length >= 3 && !held.Contains(first), held.Length + " tokens before the stop");
        }

        [Test]
        private void DraftsChangeNothing()
        {
            StreamOptions options = Tokens(12);
            int[] whole = Ids(Fed(), options);
            options.DraftTokens = 8;
            options.DraftMatch = 1;
            Session drafting = Fed();
            Check.Sequence(whole, Ids(drafting, options));
            Check.True(drafting.Stats().DraftedCount > 0, "tokens were drafted");
        }

        [Test]
        private void ConstrainedTokens()
        {
            StreamOptions options = Tokens(3);
            options.Constrain = true;
            using (EventStream stream = Fed().Open(options))
            {
                foreach (int[] allowed in new[] { new[] { 300, 301 }, new[] { 17 }, null })
                {
                    Experimental.Allow(stream, allowed, 320);
                    int token = stream.First(next => next.Kind == EventKind.Token).Token;
                    Check.True(allowed == null || allowed.Contains(token), "an allowed token: " + token);
                }
                Check.Equal(FinishReason.MaxTokens, stream.Last().FinishReason);
            }
        }
    }
}
