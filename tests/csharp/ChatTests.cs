using System.Collections.Generic;
using System.Linq;

namespace Quire.Tests
{
    /// <summary>Conversations, and strategies as data: what needs no weights.</summary>
    internal sealed class ChatTests : WithModel
    {
        private static readonly Message[] messages = { new Message("system", "Be brief."), new Message("user", "one</s>") };
        private static readonly ChatOptions llama2 = new ChatOptions { TemplateName = "llama2" };

        private static IEnumerable<string> Names(string json, string list)
        {
            return ((List<object>)Json.ReadObject(json)[list]).Cast<Dictionary<string, object>>()
                .Select(item => (string)item["name"]);
        }

        [Test]
        private void Templates()
        {
            Check.True(Names(Chat.Templates(), "templates").Contains("llama2"), "llama2 is known");
            using (Tokenizer tokenizer = Model.GetTokenizer())
            {
                Check.Fails(Status.NotFound, () => tokenizer.ChatTemplate());
                Check.Equal("<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]",
                    tokenizer.RenderChat(messages, llama2));
                string silent = tokenizer.RenderChat(messages,
                    new ChatOptions { TemplateName = "qwen3", BeginAnswer = false, Thinking = false });
                Check.True(silent.EndsWith("<|im_end|>\n"), "no answer is begun");
                string dated = tokenizer.RenderChat(messages, new ChatOptions { TemplateName = "llama3.2", Date = "2025-06-30" });
                Check.Contains("30 Jun 2025", dated);
                Check.True(!tokenizer.EncodeChat(messages, llama2).Any(tokenizer.IsEos), "text makes no control token");
                Check.Equal(1L, Check.Fails(Status.InvalidArgument, () => tokenizer.EncodeChat(
                    new[] { messages[0], new Message("nobody", "hi") }, llama2)).Offset);
            }
        }

        [Test]
        private void AConversationGoesOn()
        {
            Session session = NewSession();
            session.FeedMessages(messages, llama2);
            long prompt = session.PendingCount;
            using (Tokenizer tokenizer = Model.GetTokenizer())
                Check.Equal((long)tokenizer.EncodeChat(messages, llama2).Length, prompt);
            Check.True(string.Concat(session.Generate(Tokens(3))).Length > 0, "it answers");
            session.FeedMessages(new[] { new Message("user", "three") });
            Check.Equal(prompt + 3, session.TokenCount);
            session.DiscardPending();
            Check.Fails(Status.InvalidArgument, () => session.FeedMessages(messages));
        }

        [Test]
        private void StrategiesAreData()
        {
            string[] names = Names(Strategies.List(4096, 8), "terms").ToArray();
            Check.True(names.Contains("dca") && names.Contains("yarn") && names.Length > 20, names.Length + " terms");
            string text = Strategies.Describe("dca", 4096);
            Check.Contains("chunk=3072", text);
            Check.Equal(text, Strategies.Describe(text, 4096));
            Check.Equal(5L, Check.Fails(Status.BadStrategy, () => Strategies.Describe("full(wheels=3)", 4096)).Offset);
        }

        [Test]
        private void PositionsAreThePapers()
        {
            double[,] matrix = Experimental.Positions("dca(chunk=6, cap=9)", 10,
                new PositionView { QueryCount = 12, KeyCount = 12 });
            Check.Sequence(new double[] { 9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0 },
                Enumerable.Range(0, 12).Select(key => matrix[11, key]));
            Check.True(double.IsNaN(matrix[0, 1]), "later keys are not seen");
            double[,] entries = Experimental.Positions("beacon(window=4, stride=4, reserve=0)", 16,
                new PositionView { FirstQuery = 8, QueryCount = 1, KeyCount = 4, KeyKind = KvKind.Condensed }, 0, 28);
            Check.Sequence(new double[] { 4, 3, 2, 1 }, entries.Cast<double>());
        }
    }
}
