using System;
using System.Collections.Generic;
using System.Threading;
using System.Threading.Tasks;

namespace Quire
{
    public sealed partial class Session
    {
        /// <summary>
        /// Starts to process what was fed and then to generate. Returns at once; the runtime's threads compute.
        /// </summary>
        public unsafe EventStream Open(StreamOptions options = null)
        {
            using (var pins = new Pins())
            {
                NativeStreamOptions native = StreamOptions.ToNative(options, pins);
                Calls.Check(Native.quire_stream_open(Handle, &native, out StreamHandle stream, out NativeError error),
                    ref error);
                return new EventStream(stream, this);
            }
        }

        /// <summary>
        /// The answer as pieces of text. Leaving the loop early closes the stream. Cancelling throws
        /// OperationCanceledException; the session then stands behind the last piece.
        /// </summary>
        public IEnumerable<string> Generate(StreamOptions options,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            cancellationToken.ThrowIfCancellationRequested();
            using (EventStream stream = Open(options))
                foreach (Event next in stream.Read(cancellationToken))
                    if (next.Text.Length > 0) yield return next.Text;
        }

        /// <summary>The same for `await foreach`; no thread waits meanwhile. Each enumeration opens a stream.</summary>
        public IAsyncEnumerable<string> GenerateAsync(StreamOptions options,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            return new Answer(this, options, cancellationToken);
        }

        /// <summary>Processes what was fed and generates nothing. `options`: what to keep.</summary>
        public void Prefill(StreamOptions options = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            using (EventStream stream = OpenPrefill(options, cancellationToken))
            using (stream.CancelWith(cancellationToken))
            {
                while (EventStream.Delivered(stream.Wait(), cancellationToken) != null)
                {
                }
            }
        }

        /// <summary>The same as a task; no thread waits meanwhile.</summary>
        public async Task PrefillAsync(StreamOptions options = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            EventStream stream = OpenPrefill(options, cancellationToken);
            try
            {
                using (stream.CancelWith(cancellationToken))
                {
                    while (EventStream.Delivered(await stream.WaitAsync().ConfigureAwait(false), cancellationToken)
                        != null)
                    {
                    }
                }
            }
            finally
            {
                await stream.DisposeAsync().ConfigureAwait(false);
            }
        }

        private EventStream OpenPrefill(StreamOptions options, CancellationToken cancellationToken)
        {
            if (options != null && options.MaxTokens != 0)
                throw new ArgumentException("MaxTokens must be 0", nameof(options));
            cancellationToken.ThrowIfCancellationRequested();
            return Open(options);
        }

        private sealed class Answer : IAsyncEnumerable<string>
        {
            private readonly Session session;
            private readonly StreamOptions options;
            private readonly CancellationToken token;

            internal Answer(Session session, StreamOptions options, CancellationToken token)
            {
                this.session = session;
                this.options = options;
                this.token = token;
            }

            public IAsyncEnumerator<string> GetAsyncEnumerator(CancellationToken cancellationToken)
            {
                // The one of WithCancellation counts before that of GenerateAsync.
                CancellationToken used = cancellationToken.CanBeCanceled ? cancellationToken : token;
                used.ThrowIfCancellationRequested();
                return new AsyncEnumerator<string>(session.Open(options),
                    next => next.Text.Length > 0 ? next.Text : null, true, used);
            }
        }
    }
}
