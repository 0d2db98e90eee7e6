using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace Quire.Tests
{
    /// <summary>Sessions in files and streams.</summary>
    internal sealed class SnapshotTests : WithModel
    {
        private Session Read(int count, string strategy = "dca(kv_chunk=16)")
        {
            Session session = NewSession(new SessionOptions { Strategy = strategy, KvType = DataType.F32, PrefillBlock = 64 });
            session.FeedTokens(Shared.Ids(count));
            session.Prefill();
            return session;
        }

        [Test]
        private void AFileGoesOnWhereItStood()
        {
            string path = Path.Combine(Folder, "saved.quire");
            Session session = Read(300);
            session.FeedTokens(Shared.Ids(100));
            session.Save(path);
            Dictionary<string, object> described = Json.ReadObject(Snapshot.Describe(path));
            Check.Equal(300L, (long)described["n_tokens"]);
            Check.Equal(100L, (long)described["n_pending"]);
            Check.Equal(new FileInfo(path).Length, (long)described["bytes"]);
            Session loaded = Keep(Model.LoadSession(path, new SessionOptions { PrefixReuse = false }));
            Check.Equal(300L, loaded.TokenCount);
            Check.Equal(session.Strategy(), loaded.Strategy());
            Check.Sequence(Ids(session, Tokens(12)), Ids(loaded, Tokens(12)));
            Check.Equal(100L, loaded.Stats().PrefilledCount);
            Check.True(loaded.TierStats(Tier.Snapshot).BytesRead > 0, "it reads from the file");
            Check.Contains("its strategy is dca(", Check.Fails(Status.InvalidArgument,
                () => Model.LoadSession(path, new SessionOptions { Strategy = "full" })).Description);
            Check.Fails(Status.NotFound, () => Model.LoadSession(path + ".none"));
        }

        [Test]
        private void DamageIsFound()
        {
            string path = Path.Combine(Folder, "saved.quire");
            Read(200).Save(path, true);
            Snapshot.Verify(path);
            byte[] bytes = File.ReadAllBytes(path);
            bytes[bytes.Length / 2] ^= 1;
            File.WriteAllBytes(path, bytes);
            Check.Contains("is damaged", Check.Fails(Status.BadFile, () => Snapshot.Verify(path)).Description);
            Check.Fails(Status.BadFile, () => Snapshot.Verify(new MemoryStream(bytes)));
            File.WriteAllBytes(path, bytes.Take(100).ToArray());
            Check.Fails(Status.BadFile, () => Snapshot.Describe(path));
        }

        [Test]
        private void AStreamHoldsTheSameBytes()
        {
            string path = Path.Combine(Folder, "saved.quire");
            Session session = Read(300);
            session.Save(path);
            var memory = new MemoryStream();
            session.Save(memory);
            Check.True(memory.ToArray().SequenceEqual(File.ReadAllBytes(path)), "the bytes are the same");
            Check.Equal(Snapshot.Describe(path), Snapshot.Describe(memory));
            Snapshot.Verify(memory);
            Session fork;
            using (Session loaded = Model.LoadSession(memory)) fork = Keep(loaded.Fork());
            for (int round = 0; round < 3; round++)
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
            }
            // The fork reads the stream, which no variable of the session's holds any more.
            Check.Sequence(Ids(session, Tokens(12)), Ids(fork, Tokens(12)));
            Check.True(memory.CanRead, "the stream is open as long as a session reads");
        }

        [Test]
        private void TheLastSessionClosesTheStream()
        {
            using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1 }))
            using (Model model = runtime.LoadModel(Shared.TinyModel))
            {
                MemoryStream owned = new MemoryStream(), kept = new MemoryStream();
                using (Session session = model.CreateSession("dca"))
                {
                    session.FeedTokens(Shared.Ids(100));
                    session.Prefill();
                    session.Save(owned);
                    session.Save(kept);
                }
                using (Session session = model.LoadSession(owned))
                using (Session other = model.LoadSession(kept, null, true)) Check.True(owned.CanRead, "both are in use");
                runtime.Close();
                Check.True(!owned.CanRead && kept.CanRead, "only what the session owned is closed");
                Check.Fails(Status.Closed, () => model.LoadSession(kept));
                Check.True(kept.CanRead, "what was not taken over stays open");
            }
        }

        /// <summary>A stream that throws at its n-th use.</summary>
        private sealed class Failing : MemoryStream
        {
            internal int Good { get; set; } = int.MaxValue;

            private void Count()
            {
                if (--Good < 0) throw new IOException("the shelf is full");
            }

            public override void Write(byte[] buffer, int offset, int count)
            {
                Count();
                base.Write(buffer, offset, count);
            }

            public override void Flush()
            {
                Count();
                base.Flush();
            }

            public override int Read(byte[] buffer, int offset, int count)
            {
                Count();
                return base.Read(buffer, offset, count);
            }
        }

        private static void Full(Action action)
        {
            QuireException exception = Check.Fails(Status.Io, action);
            Check.Contains("IOException: the shelf is full", exception.Description);
        }

        [Test]
        private void ExceptionsOfWriting()
        {
            Session session = Read(100);
            var counting = new Failing();
            session.Save(counting);
            int uses = int.MaxValue - counting.Good;
            foreach (int good in new[] { 0, 1, uses / 2, uses - 1 })
            {
                QuireException exception = Check.Fails(Status.Io, () => session.Save(new Failing { Good = good }));
                Check.Equal("the shelf is full", exception.InnerException.Message);
            }
            Check.Throws<ArgumentNullException>(() => session.Save((Stream)null));
        }

        [Test]
        private void ExceptionsOfReading()
        {
            Session session = Read(100);
            var failing = new Failing();
            session.Save(failing);
            Ids(session, Tokens(5));
            Session loaded = null;
            for (int good = 0; loaded == null; good++)
            {
                failing.Good = good;
                try
                {
                    loaded = Keep(Model.LoadSession(failing, new SessionOptions { PrefixReuse = false }));
                }
                catch (QuireException exception)
                {
                    Check.Equal(Status.Io, exception.Status);
                    Check.Equal("the shelf is full", exception.InnerException.Message);
                }
            }
            failing.Good = 0;
            Full(() => Ids(loaded, Tokens(5)));
            failing.Good = int.MaxValue;
            // Tokens that came before the failure are part of the session.
            loaded.Prefill();
            Ids(loaded, Tokens(105 - (int)loaded.TokenCount));
            Check.Sequence(session.Tokens(), loaded.Tokens());
            failing.Good = 0;
            Full(() => Snapshot.Describe(failing));
            Full(() => Snapshot.Verify(failing));
        }
    }
}
