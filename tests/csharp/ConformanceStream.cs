using System.Collections.Generic;
using System.Linq;
using System.Text.RegularExpressions;

namespace Quire.Tests
{
    /// <summary>The step `stream`: what a stream delivers, as the suite describes it.</summary>
    internal static class ConformanceStream
    {
        internal static Dictionary<string, object> Run(Session session, Arguments step)
        {
            var events = new List<Event>();
            long take = step.Has("take") ? step.Long("take") : long.MaxValue;
            using (EventStream stream = session.Open(Options(step.Inner("options"))))
            {
                foreach (Event next in stream)
                {
                    events.Add(next);
                    if (next.Kind == EventKind.Token && --take == 0) break;
                }
            }
            return Describe(events);
        }

        private static StreamOptions Options(Arguments options)
        {
            var result = new StreamOptions
            {
                MaxTokens = options.Long("max_tokens"),
                Temperature = options.Float("temperature"),
                TopK = options.Int("top_k"),
                TopP = options.Float("top_p"),
                MinP = options.Float("min_p"),
                Seed = (ulong)options.Long("seed"),
                StopStrings = options.List("stop")?.Cast<string>().ToArray(),
                StopTokens = options.Ids("stop_ids"),
                MinTokens = options.Long("min_tokens"),
                MaxUndelivered = options.Int("max_undelivered"),
                DraftTokens = options.Int("draft_tokens"),
                DraftMatch = options.Int("draft_match"),
                TopLogprobCount = options.Int("n_top_logprobs"),
                IgnoreEos = options.Bool("ignore_eos", false),
                Score = options.Bool("score", false),
                KeepLogits = options.Bool("keep_logits", false),
                Cite = options.Bool("cite", false)
            };
            options.AllUsed();
            return result;
        }

        private static Dictionary<string, object> Describe(List<Event> events)
        {
            Event[] tokens = events.Where(next => next.Kind == EventKind.Token).ToArray();
            Event last = events[events.Count - 1];
            string[] kinds = events.Select(next => Snake(next.Kind.ToString())).ToArray();
            return new Dictionary<string, object>
            {
                ["tokens"] = tokens.Select(next => (object)(long)next.Token).ToList(),
                ["logprobs"] = tokens.Select(next => (object)(double)next.Logprob).ToList(),
                ["text"] = string.Concat(events.Select(next => next.Text)),
                ["finish"] = Snake(last.FinishReason.ToString()),
                ["stop_index"] = (long)last.StopIndex,
                ["end_token"] = (long)last.Token,
                ["n_tokens"] = last.TokenCount,
                ["kinds"] = kinds.Where((kind, index) => index == 0 || kind != kinds[index - 1]).Cast<object>().ToList()
            };
        }

        /// <summary>MaxTokens: max_tokens.</summary>
        private static string Snake(string name)
        {
            return Regex.Replace(name, "(?<=[a-z])[A-Z]", "_$0").ToLowerInvariant();
        }
    }
}
