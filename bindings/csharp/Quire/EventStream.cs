using System;
using System.Collections;
using System.Collections.Generic;
using System.Threading;

namespace Quire
{
    /// <summary>
    /// One computation on a session: process what was fed, then generate. Enumerating it gives its events up to the end
    /// event; leaving the loop early leaves the stream open, which Dispose closes. Taking events (Next, TryNext, Read,
    /// NextAsync and enumerators) is for one thread at a time (Status.Busy for another); any thread may call the other
    /// members meanwhile.
    /// </summary>
    public sealed partial class EventStream : QuireObject, IEnumerable<Event>
    {
        private static readonly Action<object> cancelQuietly = stream => ((EventStream)stream).CancelQuietly();

        private int taking;

        internal EventStream(StreamHandle handle, Session parent) : base(handle, parent)
        {
            Handle = handle;
        }

        internal StreamHandle Handle { get; }

        /// <summary>
        /// Waits for the next event; null after the end event. Cancelling stops the stream at a token boundary and
        /// throws StreamCanceledException, which has the end event. A failure while computing is thrown once; then comes null, and the
        /// session goes on from the token boundary that it reports.
        /// </summary>
        public Event Next(CancellationToken cancellationToken = default(CancellationToken))
        {
            using (CancelWith(cancellationToken)) return Delivered(Wait(), cancellationToken);
        }

        /// <summary>
        /// Waits at most so long; Timeout.InfiniteTimeSpan: forever. Status.Ok: there is an event; Status.Timeout: none
        /// came; Status.End: the end event was delivered before.
        /// </summary>
        public Status TryNext(TimeSpan timeout, out Event next)
        {
            return Take(Calls.Milliseconds(timeout), out next);
        }

        /// <summary>
        /// The events up to the end event. Cancelling stops the stream at a token boundary; StreamCanceledException is
        /// thrown behind the end event.
        /// </summary>
        public IEnumerable<Event> Read(CancellationToken cancellationToken = default(CancellationToken))
        {
            using (CancelWith(cancellationToken))
            {
                Event next, last = null;
                while ((next = Wait()) != null) yield return last = next;
                Delivered(last, cancellationToken);
            }
        }

        /// <summary>The events up to the end event.</summary>
        public IEnumerator<Event> GetEnumerator()
        {
            return Read().GetEnumerator();
        }

        IEnumerator IEnumerable.GetEnumerator()
        {
            return GetEnumerator();
        }

        /// <summary>
        /// Asks the stream to stop. The next event is then the end event, with FinishReason.Cancelled, unless the
        /// stream has come to its end already.
        /// </summary>
        public void Cancel()
        {
            Calls.Check(Native.quire_stream_cancel(Handle, out NativeError error), ref error);
        }

        /// <summary>
        /// Stops the stream and waits until no thread works for it. The session stands at the last delivered token.
        /// Later calls throw Closed. Never from a callback.
        /// </summary>
        public void Close()
        {
            Calls.Check(Native.quire_stream_close(Handle, out NativeError error), ref error);
        }

        /// <summary>Close, and releases the handle. A stream that is collected is closed without waiting.</summary>
        public override void Dispose()
        {
            DisposeWith(Close);
        }

        /// <summary>Cancelling the token cancels the stream until the registration is disposed.</summary>
        internal CancellationTokenRegistration CancelWith(CancellationToken token)
        {
            return token.CanBeCanceled ? token.Register(cancelQuietly, this) : default(CancellationTokenRegistration);
        }

        /// <summary>The next event, or null behind the last one.</summary>
        internal Event Wait()
        {
            Take(-1, out Event next);
            return next;
        }

        /// <summary>Whether the next event is there, or null behind the last one, without waiting for it.</summary>
        internal bool TryWait(out Event next)
        {
            return Take(0, out next) != Status.Timeout;
        }

        /// <summary>Throws if it is the end event of a stream that the token cancelled.</summary>
        internal static Event Delivered(Event next, CancellationToken token)
        {
            if (next != null && next.FinishReason == FinishReason.Cancelled && token.IsCancellationRequested)
                throw new StreamCanceledException(next, token);
            return next;
        }

        /// <summary>Each token comes through here. A negative number of milliseconds: no limit.</summary>
        private unsafe Status Take(int milliseconds, out Event next)
        {
            var native = new NativeEvent { struct_size = (uint)sizeof(NativeEvent) };
            // The event's text lives in the stream until the next event is asked for, so that must not be released before
            // it is copied, nor asked by another thread.
            bool kept = false;
            if (Interlocked.Exchange(ref taking, 1) != 0)
                throw QuireException.Busy("another thread waits for an event of this stream");
            try
            {
                Handle.DangerousAddRef(ref kept);
                int status = Native.quire_stream_next(Handle.DangerousGetHandle(), milliseconds, &native,
                    out NativeError error);
                next = status == (int)Status.Ok ? new Event(&native) : null;
                return Calls.Check(status, ref error);
            }
            finally
            {
                if (kept) Handle.DangerousRelease();
                Volatile.Write(ref taking, 0);
            }
        }

        /// <summary>For tokens: a stream that is gone needs no cancelling.</summary>
        private void CancelQuietly()
        {
            try
            {
                Cancel();
            }
            catch (QuireException)
            {
            }
            catch (ObjectDisposedException)
            {
            }
        }
    }
}
