using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace Quire.Tests
{
    using Values = Dictionary<string, object>;

    /// <summary>Does the steps of one case of tests/conformance/*.json through the binding.</summary>
    internal sealed class ConformanceSteps : IDisposable
    {
        private static readonly string[] marks = { "do", "expect", "error" };

        private readonly Model model;
        private readonly string folder;
        private readonly Dictionary<string, Session> sessions = new Dictionary<string, Session>();
        private readonly Dictionary<string, Func<Arguments, Values>> steps;

        internal ConformanceSteps(Model model, string folder)
        {
            this.model = model;
            this.folder = folder;
            Directory.CreateDirectory(folder);
            steps = new Dictionary<string, Func<Arguments, Values>>
            {
                ["encode"] = Encode,
                ["decode"] = Decode,
                ["describe_strategy"] = DescribeStrategy,
                ["session"] = NewSession,
                ["feed"] = step => Counts(step, session => session.Feed(step.Text("text"), step.TextFlags())),
                ["feed_tokens"] = step => Counts(step, session => session.FeedTokens(step.Ids("ids"))),
                ["feed_labelled"] = FeedLabelled,
                ["feed_messages"] = FeedMessages,
                ["stream"] = step => ConformanceStream.Run(Session(step), step),
                ["counts"] = step => Counts(step, session => { }),
                ["tokens"] = Tokens,
                ["truncate"] = step => Counts(step, session => session.Truncate(step.Long("n_tokens"))),
                ["discard_pending"] = step => Counts(step, session => session.DiscardPending()),
                ["reset"] = step => Counts(step, session => session.Reset()),
                ["edit"] = Edit,
                ["scores"] = Scores,
                ["argmax"] = Argmax,
                ["stats"] = Stats,
                ["strategy"] = step => Result("canonical", Session(step).Strategy()),
                ["label_shares"] = step => Shares(Session(step).LabelShares()),
                ["label_attention"] = step => Shares(Session(step).LabelAttention()),
                ["passages"] = Passages,
                ["fork"] = Fork,
                ["save"] = Save,
                ["load"] = Load,
                ["close"] = Close
            };
        }

        public void Dispose()
        {
            foreach (Session session in sessions.Values) session.Dispose();
            Directory.Delete(folder, true);
        }

        /// <summary>The step's result. Throws QuireException, and KeyNotFoundException for an unknown step.</summary>
        internal Values Do(Values step)
        {
            var arguments = new Arguments(step.Where(item => !marks.Contains(item.Key))
                .ToDictionary(item => item.Key, item => item.Value));
            Values result = steps[(string)step["do"]](arguments);
            arguments.AllUsed();
            return result;
        }

        private static Values Result(string name, object value)
        {
            return new Values { [name] = value };
        }

        private static List<object> List<T>(IEnumerable<T> items)
        {
            return items.Select(item => (object)item).ToList();
        }

        private static List<object> Longs(IEnumerable<int> items)
        {
            return List(items.Select(item => (long)item));
        }

        private Session Session(Arguments step)
        {
            return sessions[step.Text("session")];
        }

        private Values Counts(Arguments step, Action<Session> action)
        {
            action(Session(step));
            return CountsOf(Session(step));
        }

        private static Values CountsOf(Session session)
        {
            session.GetCounts(out long tokens, out long pending);
            return new Values { ["n_tokens"] = tokens, ["n_pending"] = pending };
        }

        private Values Encode(Arguments step)
        {
            TextFlags flags = step.TextFlags() | (step.Bool("first", true) ? 0 : TextFlags.Continue);
            using (Tokenizer tokenizer = model.GetTokenizer())
                return Result("ids", Longs(tokenizer.Encode(step.Text("text"), flags)));
        }

        private Values Decode(Arguments step)
        {
            using (Tokenizer tokenizer = model.GetTokenizer())
                return Result("text", tokenizer.Decode(step.Ids("ids")));
        }

        private Values DescribeStrategy(Arguments step)
        {
            return Result("canonical", Strategies.Describe(step.Text("strategy"), step.Long("train_len")));
        }

        private Values NewSession(Arguments step)
        {
            Arguments options = step.Inner("options");
            sessions[step.Text("as")] = model.CreateSession(new SessionOptions
            {
                Strategy = step.Text("strategy"),
                KvType = options.Constant<DataType>("kv_type"),
                KvOldType = options.Constant<DataType>("kv_old_type"),
                OldAfter = options.Long("old_after"),
                Overflow = options.Constant<OverflowPolicy>("overflow"),
                PrefillBlock = options.Int("prefill_block"),
                ExpectedTokens = options.Long("expected_tokens"),
                KvHostBudgetBytes = options.Long("kv_host_budget_bytes")
            });
            options.AllUsed();
            return new Values();
        }

        private Values FeedLabelled(Arguments step)
        {
            IEnumerable<Label> labels = step.Lists("labels").Select(label =>
                new Label((long)label[0], (long)label[1], (long)label[2]));
            return Counts(step, session => session.Feed(step.Text("text"), TextFlags.None, labels));
        }

        private Values FeedMessages(Arguments step)
        {
            var options = new ChatOptions { TemplateName = step.Text("template"), BeginAnswer = step.Bool("answer", true) };
            IEnumerable<Message> messages = step.Lists("messages").Select(message =>
                new Message((string)message[0], (string)message[1]));
            return Counts(step, session => session.FeedMessages(messages, options));
        }

        private Values Tokens(Arguments step)
        {
            return Result("ids", Longs(Session(step).Tokens().Skip(step.Int("first")).Take(step.Int("n"))));
        }

        private Values Edit(Arguments step)
        {
            EditResult result = Session(step).Edit(step.Text("text"),
                new EditOptions { Reuse = step.Constant<EditReuse>("reuse") });
            return new Values
            {
                ["n_tokens"] = result.TokenCount,
                ["n_kept"] = result.KeptCount,
                ["n_moved"] = result.MovedCount
            };
        }

        private Values Scores(Arguments step)
        {
            float[] scores = Session(step).Scores(step.Long("first"), step.Long("n"));
            return Result("values", List(scores.Select(score => (double)score)));
        }

        private Values Argmax(Arguments step)
        {
            float[] row = Session(step).Logits(step.Long("token"));
            return Result("id", (long)Array.IndexOf(row, row.Max()));
        }

        private Values Stats(Arguments step)
        {
            SessionStats stats = Session(step).Stats();
            return new Values
            {
                ["n_generated"] = stats.GeneratedCount,
                ["n_prefilled"] = stats.PrefilledCount,
                ["n_drafted"] = stats.DraftedCount,
                ["n_accepted"] = stats.AcceptedCount
            };
        }

        private static Values Shares(IEnumerable<LabelAttention> labels)
        {
            return Result("shares", List(labels.Select(label => List(new object[] { label.Id, label.Share }))));
        }

        private Values Passages(Arguments step)
        {
            return Result("passages", List(Session(step).Passages(step.Int("most")).Select(passage =>
                List(new[] { passage.Feed, passage.Begin, passage.End, passage.LabelId }))));
        }

        private Values Fork(Arguments step)
        {
            sessions[step.Text("as")] = Session(step).Fork();
            return new Values();
        }

        private Values Save(Arguments step)
        {
            Session(step).Save(Path.Combine(folder, step.Text("to")));
            return new Values();
        }

        private Values Load(Arguments step)
        {
            Session session = model.LoadSession(Path.Combine(folder, step.Text("from")));
            sessions[step.Text("as")] = session;
            return CountsOf(session);
        }

        private Values Close(Arguments step)
        {
            Session(step).Close();
            return new Values();
        }
    }
}
