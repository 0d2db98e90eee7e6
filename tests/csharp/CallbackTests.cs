using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Threading;

namespace Quire.Tests
{
    /// <summary>What the library calls: it must find its object whatever was collected, and stop no exception.</summary>
    internal sealed class CallbackTests : WithModel
    {
        private sealed class Report : IProgress<Progress>
        {
            private readonly Action<Progress> action;

            internal Report(Action<Progress> action)
            {
                this.action = action;
            }

            void IProgress<Progress>.Report(Progress value)
            {
                action(value);
            }
        }

        [Test]
        private void TheLogSurvivesCollections()
        {
            var lines = new List<string>();
            using (var runtime = new Runtime(new RuntimeOptions
            {
                ThreadCount = 1,
                LogLevel = LogLevel.Info,
                Log = (level, message) =>
                {
                    lock (lines) lines.Add(level + " " + message);
                }
            }))
            {
                for (int round = 0; round < 3; round++)
                {
                    GC.Collect();
                    GC.WaitForPendingFinalizers();
                    lines.Clear();
                    runtime.LoadModel(Shared.TinyModel).Dispose();
                    Check.True(lines.Any(line => line.StartsWith("Info ") && line.Contains("text_256")), "a line came");
                }
            }
        }

        [Test]
        private void LogLinesAreKeptUntilTheyAreTaken()
        {
            using (var runtime = new Runtime(new RuntimeOptions
            {
                ThreadCount = 1,
                LogLevel = LogLevel.Info,
                KeptLogLineCount = 2
            }))
            {
                Check.True(runtime.TakeLogLine() == null, "there is no line yet");
                for (int round = 0; round < 3; round++) runtime.LoadModel(Shared.TinyModel).Dispose();
                for (int round = 0; round < 2; round++)
                {
                    LogLine line = runtime.TakeLogLine();
                    Check.Equal(LogLevel.Info, line.Level);
                    Check.True(line.Text.Contains("text_256"), line.Text);
                    Check.Equal(0L, line.LostCount);
                }
                Check.True(runtime.TakeLogLine() == null, "all lines were taken");
                runtime.LoadModel(Shared.TinyModel).Dispose();
                Check.Equal(1L, runtime.TakeLogLine().LostCount);
            }
        }

        [Test]
        private void ALogThatThrowsHarmsNobody()
        {
            int calls = 0;
            using (var runtime = new Runtime(new RuntimeOptions
            {
                ThreadCount = 1,
                LogLevel = LogLevel.Debug,
                Log = (level, message) =>
                {
                    Interlocked.Increment(ref calls);
                    throw new InvalidOperationException("never seen");
                }
            }))
            {
                runtime.LoadModel(Shared.TinyModel).Dispose();
            }
            Check.True(calls > 0, "the log was called");
        }

        [Test]
        private void ProgressComesOnTheCallersThread()
        {
            var reports = new List<Progress>();
            int thread = Thread.CurrentThread.ManagedThreadId;
            using (Runtime.LoadModel(Shared.TinyModel, null, new Report(progress =>
            {
                GC.Collect();
                Check.Equal(thread, Thread.CurrentThread.ManagedThreadId);
                reports.Add(progress);
            })))
            {
                Check.True(reports.Count > 0, "progress was reported");
                Check.Equal(reports.Last().Total, reports.Last().Done);
            }
        }

        [Test]
        private void ProgressThatThrowsEndsTheCall()
        {
            var report = new Report(progress => { throw new InvalidOperationException("enough"); });
            string path = Path.Combine(Folder, "session.quire");
            using (Session session = Fed())
            {
                session.Prefill();
                session.Save(path);
                var calls = new Dictionary<string, Action>
                {
                    ["load"] = () => Runtime.LoadModel(Shared.TinyModel, null, report),
                    ["adapter"] = () => Model.LoadAdapter(Shared.Adapters + "/attention", report),
                    ["quantize"] = () => ModelFiles.Quantize(Shared.TinyModel, path + ".gguf", "q8_0", 1, report),
                    ["verify"] = () => Snapshot.Verify(path, report),
                    ["save"] = () => session.Save(path, true, report)
                };
                foreach (KeyValuePair<string, Action> call in calls)
                    Check.Equal("enough", Check.Throws<InvalidOperationException>(call.Value).Message, call.Key);
                Check.True(!File.Exists(path + ".gguf"), "no file is left");
                Snapshot.Verify(path);
            }
        }

        [Test]
        private void TokensCancelLongCalls()
        {
            using (var source = new CancellationTokenSource())
            {
                var report = new Report(progress => source.Cancel());
                Check.Throws<OperationCanceledException>(() =>
                    Runtime.LoadModel(Shared.TinyModel, null, report, source.Token));
                Check.Throws<OperationCanceledException>(() =>
                    Model.LoadAdapter(Shared.Adapters + "/attention", null, source.Token));
            }
        }

        /// <summary>Memory that a host gives, by functions that throw where there is none.</summary>
        [Test]
        private void AnAllocatorThatThrows()
        {
            var allocator = new Limited();
            using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1, Allocator = allocator }))
            {
                Check.Fails(Status.OutOfMemory, () => runtime.LoadModel(Shared.TinyModel));
                allocator.Limit = long.MaxValue;
                using (Model model = runtime.LoadModel(Shared.TinyModel))
                using (Session session = model.CreateSession())
                {
                    session.Feed("Rain");
                    Check.Equal(2, Ids(session, Tokens(2)).Length);
                    GC.Collect();
                    Check.True(allocator.Bytes > model.Info().WeightBytes, "weights and more are its memory");
                }
            }
            Check.Equal(0L, allocator.Bytes);
        }

        private sealed class Limited : IMemoryAllocator
        {
            private readonly CountingAllocator memory = new CountingAllocator();

            internal long Limit { get; set; } = 200000;

            internal long Bytes
            {
                get { return memory.Bytes; }
            }

            public IntPtr Allocate(ulong size, ulong alignment)
            {
                if (memory.Bytes + (long)size > Limit) throw new InvalidOperationException("no more");
                return memory.Allocate(size, alignment);
            }

            public void Free(IntPtr address, ulong size, ulong alignment)
            {
                memory.Free(address, size, alignment);
            }
        }
    }
}
