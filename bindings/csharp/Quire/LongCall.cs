using System;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Threading;

namespace Quire
{
    /// <summary>How far a call is, in bytes.</summary>
    public struct Progress
    {
        internal Progress(long done, long total)
        {
            Done = done;
            Total = total;
        }

        /// <summary>Bytes that are done.</summary>
        public long Done { get; }

        /// <summary>Bytes of all that is to be done.</summary>
        public long Total { get; }
    }

    /// <summary>
    /// A call that reports progress and can be cancelled. An exception of the progress object must not pass through C:
    /// it cancels the call, and is thrown when that has returned.
    /// </summary>
    internal sealed class LongCall : IDisposable
    {
        private static readonly NativeProgressCallback onProgress = OnProgress;
        private static readonly IntPtr onProgressPointer = Marshal.GetFunctionPointerForDelegate(onProgress);

        private readonly IProgress<Progress> progress;
        private readonly CancellationToken token;
        private readonly CancelHandle cancel;
        private readonly CancellationTokenRegistration registration;
        private readonly GCHandle self;
        private ExceptionDispatchInfo failure;

        internal LongCall(IProgress<Progress> progress, CancellationToken token)
        {
            token.ThrowIfCancellationRequested();
            this.progress = progress;
            this.token = token;
            Calls.Check(Native.quire_cancel_create(out cancel, out NativeError error), ref error);
            registration = token.Register(state => Native.quire_cancel_trigger((CancelHandle)state), cancel);
            self = GCHandle.Alloc(this);
        }

        /// <summary>Good until this is disposed.</summary>
        internal IntPtr Cancel
        {
            get { return cancel.DangerousGetHandle(); }
        }

        internal IntPtr Callback
        {
            get { return progress == null ? IntPtr.Zero : onProgressPointer; }
        }

        internal IntPtr UserData
        {
            get { return GCHandle.ToIntPtr(self); }
        }

        internal void Check(int status, ref NativeError error, Exception inner = null)
        {
            if (failure != null) failure.Throw();
            if (status == (int)Status.Cancelled && token.IsCancellationRequested)
                throw new OperationCanceledException("the call was cancelled", token);
            Calls.Check(status, ref error, inner);
        }

        public void Dispose()
        {
            registration.Dispose();
            self.Free();
            cancel.Dispose();
        }

        private static void OnProgress(IntPtr userData, long done, long total)
        {
            var call = (LongCall)GCHandle.FromIntPtr(userData).Target;
            if (call.failure != null) return;
            try
            {
                call.progress.Report(new Progress(done, total));
            }
            catch (Exception exception)
            {
                call.failure = ExceptionDispatchInfo.Capture(exception);
                Native.quire_cancel_trigger(call.cancel);
            }
        }
    }
}
