using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;

namespace Quire.Tests
{
    /// <summary>Streams: what is generated, and how it ends.</summary>
    internal sealed class StreamTests : WithModel
    {
        [Test]
        private void EventsComeInOrder()
        {
            Session session = Fed("Every chapter began with a map.");
            long prompt = session.PendingCount;
            List<Event> events = Events(session, Tokens(5));
            EventKind[] kinds = events.Select(next => next.Kind).ToArray();
            Check.Sequence(kinds.OrderBy(kind => kind), kinds);
            Check.Equal(5, kinds.Count(kind => kind == EventKind.Token));
            Event end = events.Last();
            Check.Equal(EventKind.End, end.Kind);
            Check.Equal(FinishReason.MaxTokens, end.FinishReason);
            Check.Equal(prompt + 5, session.TokenCount);
            Check.Equal(0L, session.PendingCount);
            Check.True(events.Where(next => next.Kind == EventKind.Token).All(next => next.Logprob < 0), "log p is negative");
            Check.Equal(5L, session.Stats().GeneratedCount);
        }

        [Test]
        private void TextIsTheSameHoweverItIsRead()
        {
            var options = new StreamOptions { MaxTokens = 24, Temperature = 1, TopK = 40, Seed = 7, IgnoreEos = true };
            string text = string.Concat(Fed().Generate(options));
            Check.True(text.Length > 0, "there is text");
            Check.Equal(text, string.Concat(Fed().Generate(options)));
            Check.Equal(text, string.Concat(Events(Fed(), options).Select(next => next.Text)));
            options.MaxUndelivered = 8;
            Check.Equal(text, string.Concat(Fed().Generate(options)));
        }

        [Test]
        private void LeavingTheLoopLeavesTheRest()
        {
            int[] whole = Ids(Fed(), Tokens(8));
            Session session = Fed();
            long prompt = session.PendingCount;
            foreach (string piece in session.Generate(Tokens(8))) break;
            long taken = session.TokenCount - prompt;
            Check.True(taken >= 1 && taken < 8, taken + " tokens were taken");
            Check.Sequence(whole.Skip((int)taken), Ids(session, Tokens(8 - (int)taken)));
        }

        [Test]
        private void NoticesComeOnce()
        {
            Session session = NewSession(new SessionOptions { Strategy = "auto", ExpectedTokens = 100 });
            session.Feed("Every chapter began with a map.");
            List<Event> events = Events(session, Tokens(2));
            Check.Equal(EventKind.Notice, events[0].Kind);
            Check.Equal(MessageCode.AutoChoice, events[0].Code);
            Check.Contains(session.Strategy(), events[0].Message);
            Check.True(Events(session, Tokens(2)).All(next => next.Kind != EventKind.Notice), "a notice comes once");
        }

        [Test]
        private void StopConditions()
        {
            List<Event> whole = Events(Fed(), Tokens(12));
            string text = string.Concat(whole.Select(next => next.Text));
            int[] ids = Ids(whole);
            StreamOptions options = Tokens(12);
            options.StopTokens = new[] { ids[3] };
            Event end = Events(Fed(), options).Last();
            Check.Equal(FinishReason.StopId, end.FinishReason);
            Check.Equal(ids[3], end.Token);
            options = Tokens(12);
            string stop = text.Substring(text.Length / 2);
            options.StopStrings = new[] { "never this, surely", stop };
            List<Event> cut = Events(Fed(), options);
            Check.Equal(FinishReason.StopString, cut.Last().FinishReason);
            Check.Equal(1, cut.Last().StopIndex);
            Check.Equal(text.Substring(0, text.IndexOf(stop, StringComparison.Ordinal)),
                string.Concat(cut.Select(next => next.Text)));
        }

        [Test]
        private void StopsForAnOpenStream()
        {
            int[] whole = Ids(Fed(), Tokens(12));
            StreamOptions ahead = Tokens(12);
            ahead.MaxUndelivered = 8;
            using (EventStream stream = Fed().Open(ahead))
            {
                Event first = stream.First(next => next.Kind == EventKind.Token);
                stream.AddStopStrings(new[] { "never this, surely" });
                stream.AddStopTokens(new[] { whole[5] });
                List<Event> rest = stream.ToList();
                int[] expected = whole.Take(Array.IndexOf(whole, whole[5], 1)).ToArray();
                Check.Sequence(expected, new[] { first.Token }.Concat(Ids(rest)));
                Check.Equal(FinishReason.StopId, rest.Last().FinishReason);
            }
        }

        [Test]
        private void Deadlines()
        {
            Session session = LongReader();
            Event end = Events(session, new StreamOptions { Deadline = TimeSpan.FromMilliseconds(50) }).Last();
            Check.Equal(FinishReason.Deadline, end.FinishReason);
            Check.Equal(200000L, session.TokenCount + session.PendingCount);
            Check.True(session.PendingCount > 0, "it did not read all");
        }

        [Test]
        private void TimeoutsAndTheWaitDescriptor()
        {
            using (EventStream stream = LongReader().Open())
            {
                Event next;
                while (stream.TryNext(TimeSpan.Zero, out next) == Status.Ok)
                {
                }
                Check.Equal(Status.Timeout, stream.TryNext(TimeSpan.FromHours(-1), out next));
                var poll = new Poll { descriptor = stream.WaitDescriptor(), events = PollIn };
                Check.Equal(1, WaitFor(ref poll, (UIntPtr)1u, 60000));
                Check.Equal(Status.Ok, stream.TryNext(TimeSpan.Zero, out next));
                Check.Equal(EventKind.Prefill, next.Kind);
                stream.Cancel();
                Check.Equal(FinishReason.Cancelled, stream.Last().FinishReason);
                Check.Equal(Status.End, stream.TryNext(Timeout.InfiniteTimeSpan, out next));
                Check.Equal(null, stream.Next());
            }
        }

        [Test]
        private void ADisposedStreamSaysSo()
        {
            Session session = Fed();
            EventStream stream = session.Open(Tokens(4));
            stream.Close();
            Check.Fails(Status.Closed, () => stream.Next());
            stream.Dispose();
            stream.Dispose();
            Check.Throws<ObjectDisposedException>(() => stream.Next());
            Check.Equal(4, Ids(session, Tokens(4)).Length);
        }

        private const short PollIn = 1;

        [StructLayout(LayoutKind.Sequential)]
        private struct Poll
        {
            internal int descriptor;
            internal short events;
            internal short returned;
        }

        [DllImport("libc.so.6", EntryPoint = "poll")]
        private static extern int WaitFor(ref Poll descriptors, UIntPtr count, int milliseconds);
    }
}
