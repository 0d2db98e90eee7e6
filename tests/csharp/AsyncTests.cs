using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

namespace Quire.Tests
{
    /// <summary>
    /// Async streams, by the calls that `await foreach` and `await using` make: Mono's compiler does not know these.
    /// </summary>
    internal sealed class AsyncTests : WithModel
    {
        private static async Task<List<T>> ReadAll<T>(IAsyncEnumerable<T> items, CancellationToken token = default(CancellationToken))
        {
            var found = new List<T>();
            IAsyncEnumerator<T> enumerator = items.GetAsyncEnumerator(token);
            try
            {
                while (await enumerator.MoveNextAsync()) found.Add(enumerator.Current);
            }
            finally
            {
                await enumerator.DisposeAsync();
            }
            return found;
        }

        [Test]
        private void AsyncAndSyncAreTheSame()
        {
            int[] whole = Ids(Fed(), Tokens(12));
            string text = string.Concat(Fed().Generate(Tokens(12)));
            using (EventStream stream = Fed().Open(Tokens(12)))
            {
                List<Event> events = ReadAll(stream).Result;
                Check.Sequence(whole, Ids(events));
                Check.Equal(EventKind.End, events.Last().Kind);
                Check.Equal(null, stream.NextAsync().Result);
            }
            Check.Equal(text, string.Concat(ReadAll(Fed().GenerateAsync(Tokens(12))).Result));
        }

        [Test]
        private void SeveralAtOnce()
        {
            int[] whole = Ids(Fed(), Tokens(12));
            Task<List<Event>>[] tasks = Enumerable.Range(1, 8).Select(index =>
                ReadAll(Keep(Fed().Open(Tokens(index))))).ToArray();
            for (int index = 1; index <= 8; index++) Check.Sequence(whole.Take(index), Ids(tasks[index - 1].Result));
        }

        /// <summary>Many streams are awaited, and there is a moment in which all threads of the pool are free.</summary>
        [Test]
        private void NoThreadWaits()
        {
            using (var source = new CancellationTokenSource())
            {
                Task[] reading = Enumerable.Range(0, 16).Select(index =>
                    LongReader(20000).PrefillAsync(null, source.Token)).ToArray();
                bool free = SpinWait.SpinUntil(() =>
                {
                    ThreadPool.GetMaxThreads(out int most, out int mostIo);
                    ThreadPool.GetAvailableThreads(out int available, out int availableIo);
                    return available == most;
                }, TimeSpan.FromMinutes(1));
                Check.True(free && reading.All(task => !task.IsCompleted), "all read, and no thread waits");
                source.Cancel();
                foreach (Task task in reading)
                    Check.Throws<OperationCanceledException>(() => task.GetAwaiter().GetResult());
            }
        }

        /// <summary>It ends: by Closed, or, where the reader sees the cancel that is part of closing first, by that.</summary>
        [Test]
        private void ClosingWhatIsAwaited()
        {
            foreach (bool runtimeToo in new[] { false, true })
            {
                using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1 }))
                {
                    Session session = runtime.LoadModel(Shared.TinyModel).CreateSession("dca");
                    session.FeedTokens(Shared.Ids(50000));
                    EventStream stream = session.Open();
                    Task<List<Event>> reading = ReadAll(stream);
                    SpinWait.SpinUntil(() => session.TokenCount > 0);
                    if (runtimeToo) runtime.Close();
                    else stream.Close();
                    try
                    {
                        Check.Equal(FinishReason.Cancelled, reading.GetAwaiter().GetResult().Last().FinishReason);
                    }
                    catch (QuireException exception)
                    {
                        Check.Equal(Status.Closed, exception.Status);
                    }
                }
            }
        }

        [Test]
        private void CancellingWhileItReads()
        {
            foreach (bool texts in new[] { false, true })
            {
                Session session = LongReader();
                using (var source = new CancellationTokenSource())
                {
                    // The first report of progress comes while most of the text is unread.
                    Task reading = texts ? (Task)ReadAll(session.GenerateAsync(Tokens(9), source.Token))
                        : ReadAll(Keep(session.Open(Tokens(9))), source.Token);
                    SpinWait.SpinUntil(() => session.TokenCount > 0);
                    source.Cancel();
                    var exception = Check.Throws<OperationCanceledException>(() => reading.GetAwaiter().GetResult());
                    Check.Equal(source.Token, exception.CancellationToken);
                }
                Check.Equal(200000L, session.TokenCount + session.PendingCount);
                Check.True(session.PendingCount > 0, "it did not read all");
                session.DiscardPending();
                session.Prefill();
            }
        }

        [Test]
        private void ATokenThatIsCancelledAlready()
        {
            var cancelled = new CancellationToken(true);
            Session session = Fed();
            Check.Throws<OperationCanceledException>(() => ReadAll(session.GenerateAsync(Tokens(3)), cancelled)
                .GetAwaiter().GetResult());
            Check.Throws<OperationCanceledException>(() => session.PrefillAsync(null, cancelled).GetAwaiter().GetResult());
            Check.Throws<OperationCanceledException>(() => session.Generate(Tokens(3), cancelled).ToList());
            Check.Equal(3, Ids(session, Tokens(3)).Length);
        }

        [Test]
        private void LeavingEarlyClosesTheStream()
        {
            Session session = Fed();
            IAsyncEnumerator<string> enumerator = session.GenerateAsync(Tokens(1000)).GetAsyncEnumerator();
            Check.True(enumerator.MoveNextAsync().AsTask().Result, "there is a first piece");
            enumerator.DisposeAsync().AsTask().Wait();
            session.Feed(" and ");
            session.PrefillAsync().Wait();
            Check.Equal(0L, session.PendingCount);
        }

        [Test]
        private void AClosedStreamFails()
        {
            EventStream stream = Fed().Open(Tokens(3));
            stream.Close();
            Check.Fails(Status.Closed, () => ReadAll(stream).GetAwaiter().GetResult());
            stream.DisposeAsync().AsTask().Wait();
            Session session = Fed();
            session.DisposeAsync().AsTask().Wait();
            Check.Throws<ObjectDisposedException>(() => session.Feed("more"));
        }
    }
}
