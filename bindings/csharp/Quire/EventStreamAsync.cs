using System;
using System.Collections.Generic;
using System.Threading;
using System.Threading.Tasks;

namespace Quire
{
    public sealed partial class EventStream : IAsyncEnumerable<Event>
    {
        /// <summary>Next as a task; no thread waits meanwhile. One call at a time.</summary>
        public ValueTask<Event> NextAsync(CancellationToken cancellationToken = default(CancellationToken))
        {
            // Of a token that is cancelled already the slow way sees to it that the stream is stopped.
            if (!cancellationToken.IsCancellationRequested && TryWait(out Event waiting))
                return new ValueTask<Event>(Delivered(waiting, cancellationToken));
            return new ValueTask<Event>(CancellableAsync(cancellationToken));
        }

        /// <summary>The events up to the end event, for `await foreach`; cancelling as in Read.</summary>
        public IAsyncEnumerator<Event> GetAsyncEnumerator(
            CancellationToken cancellationToken = default(CancellationToken))
        {
            return new AsyncEnumerator<Event>(this, next => next, false, cancellationToken);
        }

        /// <summary>The next event, or null behind the last one.</summary>
        internal async Task<Event> WaitAsync()
        {
            Event next;
            while (!TryWait(out next)) await WaitLoop.Ready(this).ConfigureAwait(false);
            return next;
        }

        private async Task<Event> CancellableAsync(CancellationToken token)
        {
            using (CancelWith(token)) return Delivered(await WaitAsync().ConfigureAwait(false), token);
        }
    }

    /// <summary>
    /// What `pick` makes of a stream's events, those left out of which it makes null. `owned`: it disposes the stream,
    /// too. The token cancels the stream as long as the enumerator is not disposed.
    /// </summary>
    internal sealed class AsyncEnumerator<T> : IAsyncEnumerator<T> where T : class
    {
        private readonly EventStream stream;
        private readonly Func<Event, T> pick;
        private readonly bool owned;
        private readonly CancellationToken token;
        private readonly CancellationTokenRegistration registration;
        private Event last;

        internal AsyncEnumerator(EventStream stream, Func<Event, T> pick, bool owned, CancellationToken token)
        {
            this.stream = stream;
            this.pick = pick;
            this.owned = owned;
            this.token = token;
            registration = stream.CancelWith(token);
        }

        public T Current { get; private set; }

        public ValueTask<bool> MoveNextAsync()
        {
            while (stream.TryWait(out Event next))
                if (Move(next)) return new ValueTask<bool>(Current != null);
            return new ValueTask<bool>(WaitAsync());
        }

        public ValueTask DisposeAsync()
        {
            registration.Dispose();
            return owned ? stream.DisposeAsync() : default(ValueTask);
        }

        /// <summary>Until there is something to give, or the stream has ended.</summary>
        private async Task<bool> WaitAsync()
        {
            while (!Move(await stream.WaitAsync().ConfigureAwait(false)))
            {
            }
            return Current != null;
        }

        /// <summary>Whether Current changed: to what the event is for the caller, or to null at the end.</summary>
        private bool Move(Event next)
        {
            if (next == null) EventStream.Delivered(last, token);
            last = next;
            Current = next == null ? null : pick(next);
            return next == null || Current != null;
        }
    }
}
