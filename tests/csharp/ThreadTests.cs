using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;

namespace Quire.Tests
{
    /// <summary>Several threads at once.</summary>
    internal sealed class ThreadTests : WithModel
    {
        private static void OnThreads(int count, Action<int> action)
        {
            var failures = new List<Exception>();
            Thread[] threads = Enumerable.Range(0, count).Select(index => new Thread(() =>
            {
                try
                {
                    action(index);
                }
                catch (Exception exception)
                {
                    lock (failures) failures.Add(exception);
                }
            })).ToArray();
            foreach (Thread thread in threads) thread.Start();
            foreach (Thread thread in threads) thread.Join();
            if (failures.Count > 0) throw new AggregateException(failures);
        }

        [Test]
        private void EightStreamsAtOnce()
        {
            int[] whole = Ids(Fed(), Tokens(40));
            var found = new int[8][];
            using (var start = new Barrier(8))
            {
                OnThreads(8, index =>
                {
                    using (Session session = Model.CreateSession("dca"))
                    {
                        session.Feed("The reader turns the leaves");
                        start.SignalAndWait();
                        found[index] = Ids(session, Tokens(40));
                    }
                });
            }
            foreach (int[] tokens in found) Check.Sequence(whole, tokens);
        }

        [Test]
        private void CancelFromAnotherThreadWhileItReads()
        {
            foreach (bool byToken in new[] { false, true })
            {
                Session session = LongReader();
                using (var source = new CancellationTokenSource())
                using (EventStream stream = session.Open(Tokens(10)))
                {
                    var canceller = new Thread(() =>
                    {
                        SpinWait.SpinUntil(() => session.TokenCount > 0);
                        if (byToken) source.Cancel();
                        else stream.Cancel();
                    });
                    canceller.Start();
                    if (byToken)
                        Check.Throws<OperationCanceledException>(() => stream.Read(source.Token).Count());
                    else
                        Check.Equal(FinishReason.Cancelled, stream.Last().FinishReason);
                    canceller.Join();
                }
                Check.Equal(200000L, session.TokenCount + session.PendingCount);
                Check.True(session.PendingCount > 0, "it did not read all");
                Check.True(Experimental.Probes(session).TasksAfterCancel <= 2, "threads end the task they are in");
                session.Reset();
                Check.Equal(0L, session.TokenCount + session.PendingCount);
            }
        }

        [Test]
        private void OneThreadAtATimeTakesEvents()
        {
            // All of it in one block, which takes seconds.
            using (Session session = Model.CreateSession(new SessionOptions { Strategy = "dca", PrefillBlock = 65536 }))
            {
                session.FeedTokens(Enumerable.Repeat(5, 60000));
                using (EventStream stream = session.Open(Tokens(1)))
                {
                    int refused = 0;
                    OnThreads(2, index =>
                    {
                        Event next;
                        try
                        {
                            while (Volatile.Read(ref refused) == 0) stream.TryNext(TimeSpan.FromSeconds(10), out next);
                        }
                        catch (QuireException exception)
                        {
                            Check.Equal(Status.Busy, exception.Status);
                            Interlocked.Increment(ref refused);
                            stream.Cancel();
                        }
                    });
                    Check.Equal(1, refused);
                }
            }
        }

        [Test]
        private void DisposingWhileAnotherThreadWaits()
        {
            for (int round = 0; round < 10; round++)
            {
                Session session = LongReader(50000);
                EventStream stream = session.Open(Tokens(10));
                OnThreads(2, index =>
                {
                    if (index == 0)
                    {
                        SpinWait.SpinUntil(() => session.TokenCount > 0);
                        stream.Dispose();
                        return;
                    }
                    try
                    {
                        while (stream.Next() != null)
                        {
                        }
                    }
                    catch (ObjectDisposedException)
                    {
                    }
                    catch (QuireException exception)
                    {
                        Check.Equal(Status.Closed, exception.Status);
                    }
                });
            }
        }

        [Test]
        private void ForksAnswerAtOnce()
        {
            Session document = Fed("Every chapter began with a map. ");
            document.Prefill();
            string[] questions = { "Who drew it?", "Where did it end?", "Who drew it?" };
            Session[] forks = questions.Select(question => Keep(document.Fork())).ToArray();
            var answers = new string[forks.Length];
            OnThreads(forks.Length, index =>
            {
                forks[index].Feed(questions[index]);
                answers[index] = string.Concat(forks[index].Generate(Tokens(12)));
            });
            Check.Equal(answers[0], answers[2]);
            document.Feed(questions[1]);
            Check.Equal(answers[1], string.Concat(document.Generate(Tokens(12))));
        }
    }
}
