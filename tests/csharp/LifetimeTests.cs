using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;

namespace Quire.Tests
{
    /// <summary>In which order objects may go, on which threads, and that nothing of them stays.</summary>
    internal sealed class LifetimeTests : WithModel
    {
        /// <summary>On a thread of its own, whose stack then holds nothing: Mono takes what lies there for references.</summary>
        private static void Apart(Action action)
        {
            Exception failure = null;
            var thread = new Thread(() =>
            {
                try
                {
                    action();
                }
                catch (Exception exception)
                {
                    failure = exception;
                }
            });
            thread.Start();
            thread.Join();
            if (failure != null) throw failure;
        }

        private static void Collect()
        {
            for (int round = 0; round < 3; round++)
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
            }
        }

        private static IEnumerable<T[]> Orders<T>(T[] items)
        {
            if (items.Length == 0) return new[] { items };
            return items.SelectMany((first, index) => Orders(items.Where((item, other) => other != index).ToArray())
                .Select(rest => new[] { first }.Concat(rest).ToArray()));
        }

        /// <summary>All that hangs on one runtime, with a stream at work.</summary>
        private static QuireObject[] Everything(IMemoryAllocator allocator)
        {
            var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1, Allocator = allocator });
            Model model = runtime.LoadModel(Shared.TinyModel);
            Session session = model.CreateSession("dca");
            session.FeedTokens(Shared.Ids(600));
            EventStream stream = session.Open(Tokens(3));
            stream.Next();
            return new QuireObject[] { runtime, model, model.GetTokenizer(), session, stream };
        }

        [Test]
        private void HandlesGoInEveryOrder()
        {
            var allocator = new CountingAllocator();
            int orders = 0;
            foreach (int[] order in Orders(Enumerable.Range(0, 5).ToArray()))
            {
                orders++;
                QuireObject[] objects = Everything(allocator);
                // The references alone: to dispose a runtime or session would close what hangs on it.
                foreach (int index in order) objects[index].SafeHandle.Dispose();
            }
            Check.Equal(120, orders);
            Check.True(allocator.FallsTo(0), allocator.Bytes + " bytes are left");
        }

        [Test]
        private void ObjectsAreDisposedInEveryOrder()
        {
            var allocator = new CountingAllocator();
            foreach (int[] order in Orders(Enumerable.Range(0, 5).ToArray()).Where((order, index) => index % 7 == 0))
            {
                QuireObject[] objects = Everything(allocator);
                foreach (int index in order) objects[index].Dispose();
                Check.Equal(0L, allocator.Bytes);
            }
        }

        [Test]
        private void TheFinalizerThreadReleases()
        {
            var allocator = new CountingAllocator();
            var logs = new List<WeakReference>();
            for (int round = 0; round < 8; round++)
            {
                Apart(() =>
                {
                    Everything(allocator);
                    var log = new LogTarget();
                    logs.Add(new WeakReference(log));
                    new Runtime(new RuntimeOptions { ThreadCount = 1, Log = log.Add });
                });
                Collect();
            }
            Check.True(allocator.FallsTo(0), allocator.Bytes + " bytes are left");
            // What callbacks use goes with the runtime: its destroy callback lets go of it.
            Check.True(SpinWait.SpinUntil(() =>
            {
                Collect();
                return logs.All(log => !log.IsAlive);
            }, TimeSpan.FromMinutes(1)), "the logs were collected");
        }

        [Test]
        private void AThousandSessionsLeaveNothing()
        {
            var allocator = new CountingAllocator();
            using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1, Allocator = allocator }))
            using (Model model = runtime.LoadModel(Shared.TinyModel))
            {
                Apart(() => ReadAndForget(model, 1));
                Collect();
                // The scratch memory of the model stays, for its next sessions.
                using (Session session = model.CreateSession()) session.Feed("Rain");
                long before = 0;
                for (int round = 0; round < 20; round++)
                {
                    Apart(() => ReadAndForget(model, 50));
                    Collect();
                    if (round == 0) before = allocator.Bytes;
                }
                Check.True(before > 0 && allocator.FallsTo(before), before + " bytes became " + allocator.Bytes);
            }
            Check.Equal(0L, allocator.Bytes);
        }

        private static void ReadAndForget(Model model, int count)
        {
            for (int index = 0; index < count; index++)
            {
                Session session = model.CreateSession();
                session.Feed("Rain fell on the harbour");
                foreach (Event next in session.Open(Tokens(2))) GC.KeepAlive(next);
            }
        }

        [Test]
        private void AForkDoesNotKeepWhatItCameFrom()
        {
            WeakReference first = null;
            Apart(() =>
            {
                Session session = Model.CreateSession();
                session.Feed("Rain fell");
                first = new WeakReference(session);
                Keep(session.Fork());
            });
            Check.True(SpinWait.SpinUntil(() =>
            {
                Collect();
                return !first.IsAlive;
            }, TimeSpan.FromSeconds(20)), "the first session was collected");
        }

        [Test]
        private void AStreamOutlivesWhatItCameFrom()
        {
            Runtime runtime = new Runtime(new RuntimeOptions { ThreadCount = 1 });
            Model model = runtime.LoadModel(Shared.TinyModel);
            Session session = model.CreateSession();
            session.Feed("Rain fell");
            using (EventStream stream = session.Open(Tokens(3)))
            {
                runtime.SafeHandle.Dispose();
                model.Dispose();
                session.SafeHandle.Dispose();
                Check.Equal(FinishReason.MaxTokens, stream.Last().FinishReason);
            }
            Check.Throws<ObjectDisposedException>(() => model.CreateSession());
        }

        [Test]
        private void ClosingARuntimeEndsEverything()
        {
            var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1 });
            Session session = runtime.LoadModel(Shared.TinyModel).CreateSession("dca");
            session.FeedTokens(Shared.Ids(100000));
            EventStream stream = session.Open(Tokens(1));
            runtime.Close();
            Check.Fails(Status.Closed, () => Ids(stream));
            Check.Fails(Status.Closed, () => session.Fork());
            session.Dispose();
            runtime.Dispose();
            stream.Dispose();
        }

        [Test]
        private void SharedHandlesAreCountedAndNotClosed()
        {
            Session session = Fed();
            using (EventStream stream = session.Open(Tokens(4)))
            {
                using (EventStream shared = Interop.ShareStream(stream.SafeHandle.DangerousGetHandle())) shared.Next();
                using (Session shared = Interop.ShareSession(session.SafeHandle.DangerousGetHandle()))
                    Check.Equal(session.Strategy(), shared.Strategy());
                Check.Equal(4, Ids(stream).Length);
            }
            using (Runtime shared = Interop.ShareRuntime(Runtime.SafeHandle.DangerousGetHandle()))
                Check.Equal(Runtime.Devices().Count, shared.Devices().Count);
            using (Model shared = Interop.ShareModel(Model.SafeHandle.DangerousGetHandle()))
            using (Tokenizer tokenizer = shared.GetTokenizer())
            using (Tokenizer same = Interop.ShareTokenizer(tokenizer.SafeHandle.DangerousGetHandle()))
                Check.Equal(tokenizer.VocabSize, same.VocabSize);
            using (Adapter adapter = Model.LoadAdapter(Shared.Adapters + "/attention"))
            using (Adapter shared = Interop.ShareAdapter(adapter.SafeHandle.DangerousGetHandle()))
                Check.Equal(adapter.Metadata("identity"), shared.Metadata("identity"));
            using (var store = new Store(Folder))
            using (Store shared = Interop.ShareStore(store.SafeHandle.DangerousGetHandle()))
                Check.Equal(store.Describe(), shared.Describe());
            Native.quire_cancel_create(out CancelHandle cancel, out NativeError error);
            using (cancel)
            using (CancelHandle shared = QuireHandle.Share<CancelHandle>(cancel.DangerousGetHandle()))
                Check.Equal(cancel.DangerousGetHandle(), shared.DangerousGetHandle());
            Check.Throws<ArgumentNullException>(() => Interop.ShareModel(IntPtr.Zero));
            session.Truncate(0);
        }

        private sealed class LogTarget
        {
            private int lines;

            internal void Add(LogLevel level, string message)
            {
                Interlocked.Increment(ref lines);
            }
        }
    }
}
