using System;
using System.IO;
using System.Linq;

namespace Quire.Tests
{
    /// <summary>Every status that a call can fail with, raised and caught.</summary>
    internal sealed class ErrorTests : WithModel
    {
        [Test]
        private void WrongArguments()
        {
            Check.Fails(Status.InvalidArgument, () => new Runtime(new RuntimeOptions { ThreadCount = -1 }));
            Check.Fails(Status.InvalidArgument, () => NewSession().Truncate(1));
            Check.Throws<ArgumentNullException>(() => NewSession().Feed((string)null));
            Check.Throws<ArgumentException>(() => NewSession().Feed("half a pair \ud83d"));
            Check.Throws<ArgumentException>(() => NewSession("full").FeedTokens(new[] { 5, 6 }, new long[] { 9 }));
            Check.Throws<ArgumentException>(() => Fed().Prefill(Tokens(1)));
        }

        [Test]
        private void WrongFiles()
        {
            Check.Fails(Status.NotFound, () => Runtime.LoadModel("/no/such/folder"));
            Check.Fails(Status.NotFound, () => Model.Metadata("colour"));
            string path = Path.Combine(Folder, "damaged.quire");
            File.WriteAllBytes(path, new byte[5000]);
            Check.Fails(Status.BadFile, () => Model.LoadSession(path));
            QuireException exception = Check.Fails(Status.Io, () => Fed().Save(Path.Combine(Folder, new string('x', 300))));
            Check.True(exception.SystemError != 0, "the system's error number is there");
        }

        [Test]
        private void WrongTexts()
        {
            Session session = NewSession();
            QuireException exception = Check.Fails(Status.InvalidText,
                () => session.Feed(new byte[] { 104, 97, 108, 102, 0xe9, 0x9b }));
            Check.Equal(4L, exception.Offset);
            exception = Check.Fails(Status.InvalidToken, () => session.FeedTokens(new[] { 5, 320 }));
            Check.Equal(1L, exception.Offset);
            exception = Check.Fails(Status.BadStrategy, () => Model.CreateSession("full("));
            Check.Equal(5L, exception.Offset);
            Check.Fails(Status.Unsupported, () => session.FeedTokens(new[] { 5, 6 }, new long[] { 9, 11 }));
        }

        [Test]
        private void WrongTimes()
        {
            Session session = NewSession();
            Check.Fails(Status.Empty, () => session.Open(Tokens(1)));
            session.Feed("Rain");
            using (EventStream stream = session.Open(Tokens(1000)))
                Check.Fails(Status.Busy, () => session.Feed("more"));
            session.Close();
            Check.Fails(Status.Closed, () => session.Feed("more"));
            session.Dispose();
            Check.Throws<ObjectDisposedException>(() => session.Feed("more"));
        }

        [Test]
        private void TooMuch()
        {
            Session session = NewSession("full");
            session.FeedTokens(Enumerable.Repeat(3, 250));
            Check.Fails(Status.Overflow, () => session.Open(Tokens(100)));
            Check.Fails(Status.Budget, () => NewSession(new SessionOptions { KvCompressedBudgetBytes = 1 }));
        }

        [Test]
        private void ResultsThatAreTooLarge()
        {
            Session session = Fed();
            Check.Fails(Status.NotFound, () => session.Logits(0, 1L << 50));
            Check.Fails(Status.NotFound, () => session.Scores(0, 1L << 50));
            Check.Fails(Status.NotFound, () => session.HiddenStates(0, 1L << 50));
            Check.Fails(Status.OutOfMemory, () => Calls.Array<byte>(
                (IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                {
                    needed = (UIntPtr)(1UL << 50);
                    error = default(NativeError);
                    return (int)Status.Ok;
                }));
        }

        /// <summary>Logits that are no numbers, of a model whose weights are none.</summary>
        [Test]
        private void NoNumbers()
        {
            foreach (string path in Directory.GetFiles(Shared.TinyModel))
                File.Copy(path, Path.Combine(Folder, Path.GetFileName(path)));
            string weights = Path.Combine(Folder, "model.safetensors");
            byte[] bytes = File.ReadAllBytes(weights);
            for (int at = 8 + (int)BitConverter.ToInt64(bytes, 0); at < bytes.Length; at++) bytes[at] = 0xff;
            File.WriteAllBytes(weights, bytes);
            using (Model model = Runtime.LoadModel(Folder))
            using (Session session = model.CreateSession())
            {
                session.FeedTokens(new[] { 1, 5 });
                using (EventStream stream = session.Open(Tokens(2)))
                {
                    Check.Fails(Status.Numeric, () => Ids(stream));
                    Check.Equal(null, stream.Next(), "a failure is thrown once");
                }
            }
        }

        [Test]
        private void NoMemory()
        {
            using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1, Allocator = new Empty() }))
                Check.Fails(Status.OutOfMemory, () => runtime.LoadModel(Shared.TinyModel));
        }

        /// <summary>The binding offers enough room itself, so these two are raised by calls of the layer below.</summary>
        [Test]
        private void WhatNoCallerSees()
        {
            Check.Fails(Status.BufferTooSmall, OfferOneByte);
            QuireException made = Check.Fails(Status.Internal, BeInternal);
            Check.Equal("INTERNAL: x", made.Message);
        }

        private static unsafe void OfferOneByte()
        {
            byte* room = stackalloc byte[1];
            int status = Native.quire_chat_get_list(room, (UIntPtr)1u, out UIntPtr needed, out NativeError error);
            Check.True(needed.ToUInt64() > 1, "it says how much to offer");
            Calls.Check(status, ref error);
        }

        private static unsafe void BeInternal()
        {
            var error = new NativeError { code = (int)Status.Internal, offset = -1 };
            error.message[0] = (byte)'x';
            Calls.Check(error.code, ref error);
        }

        /// <summary>What is thrown has the status's name in front, and every status has one.</summary>
        [Test]
        private void NamesAreTheLibrarys()
        {
            foreach (Status status in Enum.GetValues(typeof(Status)))
            {
                string name = Utf8.Static(Native.quire_get_status_name((int)status));
                Check.Equal(status.ToString().ToUpperInvariant(), name.Replace("_", ""));
            }
        }

        private sealed class Empty : IMemoryAllocator
        {
            public IntPtr Allocate(ulong size, ulong alignment)
            {
                return IntPtr.Zero;
            }

            public void Free(IntPtr memory, ulong size, ulong alignment)
            {
                throw new InvalidOperationException("nothing was allocated");
            }
        }
    }
}
