using System;
using System.IO;
using System.Threading;

namespace Quire
{
    /// <summary>
    /// A model plus a long-context strategy plus the text read so far (its KV cache). One thread at a time may use it;
    /// there is no thread affinity. Any thread may call TokenCount, PendingCount, Stats, TierStats, Strategy,
    /// Fingerprint, Close and Dispose at any time. While a stream is open, other calls throw Busy.
    /// </summary>
    public sealed partial class Session : QuireObject
    {
        internal Session(SessionHandle handle, QuireObject parent) : base(handle, parent)
        {
            Handle = handle;
        }

        internal SessionHandle Handle { get; }

        /// <summary>Another session that stands where this one does, and shares with it what both hold.</summary>
        public Session Fork()
        {
            Calls.Check(Native.quire_session_fork(Handle, out SessionHandle fork, out NativeError error), ref error);
            return new Session(fork, Parent);
        }

        /// <summary>
        /// Writes the session to a file, which appears whole or not at all. Where the file has the session's past, only
        /// what is new is written behind it, unless `whole`. Progress as in Runtime.LoadModel.
        /// </summary>
        public unsafe void Save(string path, bool whole = false, IProgress<Progress> progress = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var call = new LongCall(progress, cancellationToken))
            fixed (byte* text = name)
            {
                NativeSnapshotOptions options = Snapshot.Options(call, whole);
                int status = Native.quire_session_save(Handle, text, Calls.Length(name), &options,
                    out NativeError error);
                call.Check(status, ref error);
            }
        }

        /// <summary>
        /// Writes the session to a stream, from where that stands on, and flushes it. What a save that fails has
        /// written is of no use. An exception of the stream is the inner exception of the one thrown.
        /// </summary>
        public unsafe void Save(Stream stream, IProgress<Progress> progress = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            using (var target = new SnapshotTarget(stream))
            using (var call = new LongCall(progress, cancellationToken))
            {
                NativeSnapshotOptions options = Snapshot.Options(call, false);
                NativeSnapshotWriter writer = target.Open();
                int status = Native.quire_session_save_to(Handle, &writer, &options, out NativeError error);
                call.Check(status, ref error, target.Failure);
            }
        }

        /// <summary>
        /// Cancels an open stream, waits until no thread works on the session, and frees its memory. Calls on it then
        /// throw Closed. Never from a callback.
        /// </summary>
        public void Close()
        {
            Calls.Check(Native.quire_session_close(Handle, out NativeError error), ref error);
        }

        /// <summary>Close, and releases the handle. A session that is collected is released without waiting.</summary>
        public override void Dispose()
        {
            DisposeWith(Close);
        }
    }
}
