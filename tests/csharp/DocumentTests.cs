using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;

namespace Quire.Tests
{
    /// <summary>What sessions hold: logits, tiers, edits, passages, and what they share.</summary>
    internal sealed class DocumentTests : WithModel
    {
        [Test]
        private void LogitsAndScoresAgree()
        {
            Session session = NewSession(new SessionOptions { KvType = DataType.F32 });
            int[] ids = { 1, 300, 301, 302, 303, 304 };
            session.FeedTokens(ids);
            session.Prefill(new StreamOptions { Score = true, KeepLogits = true, KeepHidden = true });
            float[] logits = session.Logits(0, ids.Length), scores = session.Scores(0, ids.Length);
            Check.Equal(6 * 320, logits.Length);
            Check.True(float.IsNaN(scores[0]), "nothing stands before the first token");
            for (int position = 1; position < ids.Length; position++)
            {
                float[] row = logits.Skip((position - 1) * 320).Take(320).ToArray();
                double sum = Math.Log(row.Sum(value => Math.Exp(value)));
                Check.True(Math.Abs(scores[position] - (row[ids[position]] - sum)) < 1e-4, "log p of " + position);
            }
            Check.Sequence(logits.Skip(5 * 320), session.Logits());
            float[] states = session.HiddenStates(1, 3);
            Check.Equal(3 * Model.Info().HiddenSize, states.Length);
            Check.Sequence(states.Skip(2 * Model.Info().HiddenSize), session.HiddenStates(3));
            Check.Fails(Status.NotFound, () => session.Logits(7));
        }

        [Test]
        private void TextIsFedAsStringOrBytes()
        {
            const string text = "Größe: 雨 and 😀";
            byte[] bytes = Encoding.UTF8.GetBytes("__" + text);
            Session one = Fed(text), two = NewSession();
            two.Feed(new ReadOnlySpan<byte>(bytes, 2, bytes.Length - 2));
            Check.Sequence(one.Tokens(), two.Tokens());
            two.Reset();
            two.Feed(bytes.Skip(2).ToArray());
            Check.Sequence(one.Tokens(), two.Tokens());
            two.Feed(default(ReadOnlySpan<byte>));
            Check.Equal(one.PendingCount, two.PendingCount);
            Check.True(!NewSession().Tokens().Any(), "a new session has no tokens");
        }

        [Test]
        private void PositionsOfTheirOwn()
        {
            Session session = NewSession("full");
            session.FeedTokens(new[] { 5, 6 }, new long[] { 9, 11 });
            Check.Equal(2L, session.PendingCount);
            QuireException exception = Check.Fails(Status.InvalidArgument,
                () => NewSession("full").FeedTokens(new[] { 5, 6 }, new long[] { 9, 9 }));
            Check.Equal(1L, exception.Offset);
        }

        [Test]
        private void Tiers()
        {
            Session session = NewSession(new SessionOptions
            {
                KvHostBudgetBytes = 60000,
                KvFileDirectory = Folder,
                PrefillBlock = 16,
                PrefixReuse = false
            });
            session.FeedTokens(Shared.Ids(200));
            session.Prefill();
            TierStats host = session.TierStats(Tier.Host);
            Check.True(host.BytesPeak <= host.BudgetBytes, "the budget holds");
            Check.Equal(Tier.Host, host.Tier);
            Check.True(session.TierStats(Tier.File).BytesWritten > 0, "chunks went to the file");
            Check.Equal(0L, session.TierStats(Tier.Device).Bytes);
        }

        [Test]
        private void Edits()
        {
            int[] ids = Enumerable.Range(0, 200).Select(i => 3 + (i * i * i + 7 * i) % 299).ToArray();
            int[] changed = ids.Take(80).Concat(ids.Skip(100)).ToArray();
            var options = new SessionOptions { Strategy = "dca(kv_chunk=16)", PrefixReuse = false };
            Session session = NewSession(options), anew = NewSession(options);
            session.FeedTokens(ids);
            session.Prefill();
            anew.FeedTokens(changed);
            anew.Prefill();
            using (Session exact = session.Fork())
            {
                EditResult result = exact.EditTokens(changed);
                Check.Sequence(new long[] { 180, 80, 0 }, new[] { result.TokenCount, result.KeptCount, result.MovedCount });
                exact.Prefill();
                Check.Sequence(anew.Logits(), exact.Logits());
            }
            EditResult edited = session.EditTokens(changed, new EditOptions { Reuse = EditReuse.Approximate });
            Check.Equal(96L, edited.MovedCount);
            Event prefill = Events(session, new StreamOptions()).Last(next => next.Kind == EventKind.Prefill);
            Check.Equal(96L, prefill.Moved);
            Check.Equal(96L, session.Stats().MovedCount);
            var labels = new EditOptions { Labels = new[] { new Label(0, 7, 1) } };
            Check.Equal(0L, session.Edit("The sky is grey.", labels).KeptCount);
            Check.Fails(Status.Unsupported, () => NewSession("longheads(chunk=16, chunks=4)").EditTokens(ids,
                new EditOptions { Reuse = EditReuse.Approximate }));
        }

        [Test]
        private void Passages()
        {
            string[] pages = Enumerable.Range(0, 12).Select(page =>
                "page " + page + " tells of the number " + page * 7 + " and of nothing else. ").ToArray();
            var labels = new List<Label>();
            foreach (string page in pages)
            {
                long begin = labels.Count == 0 ? 0 : labels.Last().End;
                labels.Add(new Label(begin, begin + page.Length, 50 + labels.Count));
            }
            Session session = NewSession();
            string text = string.Concat(pages);
            session.Feed(text, TextFlags.None, labels);
            StreamOptions options = Tokens(4);
            options.Cite = true;
            options.CiteEnd = session.PendingCount;
            session.Feed("which number is it? ");
            Events(session, options);
            IReadOnlyList<Passage> passages = session.Passages(3);
            Check.Equal(3, passages.Count);
            int[] tokens = session.Tokens();
            using (Tokenizer tokenizer = Model.GetTokenizer())
            {
                foreach (Passage passage in passages)
                {
                    string spelt = tokenizer.Decode(tokens.Skip((int)passage.FirstToken).Take((int)passage.TokenCount));
                    Check.Equal(text.Substring((int)passage.Begin, (int)(passage.End - passage.Begin)).Trim(), spelt.Trim());
                    Check.Equal(50 + passage.Label, passage.LabelId);
                }
            }
            IReadOnlyList<LabelAttention> shares = session.LabelShares();
            Check.Sequence(Enumerable.Range(50, 12).Select(id => (long)id), shares.Select(label => label.Id));
            Check.True(Math.Abs(shares.Sum(label => label.Share) - 1) < 1e-6, "the shares are all");
            Check.Fails(Status.Unsupported, () => session.LabelAttention());
            Events(session, Tokens(2));
            Check.Fails(Status.NotFound, () => session.Passages());
        }

        [Test]
        private void PrefixesAreReused()
        {
            int[] ids = Shared.Ids(300);
            using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 2, PrefixCacheBytes = 1 << 30 }))
            using (Model model = runtime.LoadModel(Shared.TinyModel))
            {
                int[] expected = null;
                foreach (bool again in new[] { false, true })
                {
                    using (Session session = model.CreateSession("dca(kv_chunk=32)"))
                    {
                        session.FeedTokens(ids);
                        List<Event> events = Events(session, Tokens(4));
                        Event prefill = events.Last(next => next.Kind == EventKind.Prefill);
                        Check.Equal(again ? 288L : 0L, prefill.Reused);
                        Check.Equal(again ? ReuseMiss.Complete : ReuseMiss.Unknown, prefill.ReuseMiss);
                        if (again) Check.Sequence(expected, Ids(events));
                        expected = Ids(events);
                    }
                }
                Check.Equal(288L, runtime.Stats().PrefixCacheTokens);
                Check.True(runtime.Stats().PrefixCacheBytes > 0, "chunks are kept");
            }
            Session off = NewSession(new SessionOptions { Strategy = "dca(kv_chunk=32)", PrefixReuse = false });
            off.FeedTokens(ids);
            Check.Equal(ReuseMiss.Off, Events(off, Tokens(1)).Last(next => next.Kind == EventKind.Prefill).ReuseMiss);
        }

        [Test]
        private void BudgetsOfARuntimeHold()
        {
            using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 2, KvHostBudgetBytes = 1 << 20 }))
            using (Model model = runtime.LoadModel(Shared.TinyModel))
            using (Session session = model.CreateSession(new SessionOptions { Overflow = OverflowPolicy.Extrapolate }))
            {
                session.FeedTokens(Shared.Ids(4000));
                Check.Contains("1048576", Check.Fails(Status.Budget, () => session.Prefill()).Description);
            }
        }

        [Test]
        private void RandomText()
        {
            Session session = NewSession();
            Experimental.FillRandom(session, 1000, 7);
            Check.Equal(1000L, session.TokenCount);
            Check.Equal(2, Ids(session, Tokens(2)).Length);
        }
    }
}
