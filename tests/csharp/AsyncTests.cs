using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Runtime.InteropServices;
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

        /// <summary>There is no descriptor for the first wait: that fails, keeps nothing, and later ones work.</summary>
        [Test]
        private void AWaitThatCannotBegin()
        {
            FieldInfo wake = typeof(WaitLoop).GetField("wake", BindingFlags.Static | BindingFlags.NonPublic);
            var allocator = new CountingAllocator();
            var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1, Allocator = allocator });
            Model model = runtime.LoadModel(Shared.TinyModel);
            Session session = model.CreateSession(new SessionOptions { Strategy = "dca", PrefillBlock = 16 });
            session.FeedTokens(Shared.Ids(20000));
            EventStream stream = session.Open();
            stream.WaitDescriptor();
            wake.SetValue(null, -1);
            GetLimit(OpenFiles, out Limits limits);
            var none = new Limits { most = limits.most };
            SetLimit(OpenFiles, ref none);
            try
            {
                Check.Throws<InvalidOperationException>(() =>
                {
                    while (stream.NextAsync().GetAwaiter().GetResult() != null)
                    {
                    }
                });
            }
            finally
            {
                SetLimit(OpenFiles, ref limits);
            }
            Check.True(ReadAll(stream).Wait(TimeSpan.FromMinutes(1)), "the stream is read to its end");
            foreach (QuireObject item in new QuireObject[] { stream, session, model, runtime }) item.SafeHandle.Dispose();
            Check.True(allocator.FallsTo(0), allocator.Bytes + " bytes are left");
        }

        private const int OpenFiles = 7; // RLIMIT_NOFILE

        [StructLayout(LayoutKind.Sequential)]
        private struct Limits
        {
            internal UIntPtr now;
            internal UIntPtr most;
        }

        [DllImport("libc.so.6", EntryPoint = "getrlimit")]
        private static extern int GetLimit(int resource, out Limits limits);

        [DllImport("libc.so.6", EntryPoint = "setrlimit")]
        private static extern int SetLimit(int resource, ref Limits limits);

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

        /// <summary>
        /// Reads an answer whose beginning is held back in part, because the end of it could begin a stop string, and
        /// cancels when all of the beginning is read that was not: no text of tokens that the session keeps is lost.
        /// `read` is given a session, options, a token, and what takes the text.
        /// </summary>
        private void Cancelled(Action<Session, StreamOptions, CancellationToken, Action<string>> read)
        {
            List<Event> whole = Events(Fed(), Tokens(24));
            int count = 1 + whole.FindIndex(next => next.Text.Length > 1);
            string beginning = string.Concat(whole.Take(count).Select(next => next.Text));
            StreamOptions options = Tokens(24);
            options.StopStrings = new[] { beginning.Substring(beginning.Length - 1) + "\u0001" };
            Session session = Fed();
            long prompt = session.PendingCount;
            string found = "";
            using (var source = new CancellationTokenSource())
            {
                var exception = Check.Throws<StreamCanceledException>(() => read(session, options, source.Token, text =>
                {
                    found += text;
                    if (found.Length == beginning.Length - 1) source.Cancel();
                }));
                Check.Equal(source.Token, exception.CancellationToken);
                Check.Equal(beginning.Substring(beginning.Length - 1), exception.End.Text);
            }
            Check.Equal(beginning, found);
            Check.Equal(prompt + whole.Take(count).Count(next => next.Kind == EventKind.Token), session.TokenCount);
        }

        [Test]
        private void CancellingLosesNoText()
        {
            Cancelled((session, options, token, take) =>
            {
                foreach (string text in session.Generate(options, token)) take(text);
            });
            Cancelled((session, options, token, take) =>
            {
                foreach (Event next in Keep(session.Open(options)).Read(token)) take(next.Text);
            });
            Cancelled((session, options, token, take) =>
            {
                IAsyncEnumerator<string> texts = session.GenerateAsync(options, token).GetAsyncEnumerator();
                while (texts.MoveNextAsync().GetAwaiter().GetResult()) take(texts.Current);
            });
            Cancelled((session, options, token, take) =>
            {
                IAsyncEnumerator<Event> events = Keep(session.Open(options)).GetAsyncEnumerator(token);
                while (events.MoveNextAsync().GetAwaiter().GetResult()) take(events.Current.Text);
            });
            foreach (bool waits in new[] { false, true })
            {
                Cancelled((session, options, token, take) =>
                {
                    EventStream stream = Keep(session.Open(options));
                    try
                    {
                        while (true) take((waits ? stream.Next(token) : stream.NextAsync(token).Result).Text);
                    }
                    catch (StreamCanceledException exception)
                    {
                        take(exception.End.Text);
                        throw;
                    }
                });
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
