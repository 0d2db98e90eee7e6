using System;
using System.IO;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>A stream that a snapshot is written to, during one call and on its thread.</summary>
    internal sealed unsafe class SnapshotTarget : IDisposable
    {
        private const int BufferBytes = 1 << 16;

        private static readonly NativeWriteCallback onWrite = OnWrite;
        private static readonly NativeCommitCallback onCommit = OnCommit;
        private static readonly IntPtr onWritePointer = Marshal.GetFunctionPointerForDelegate(onWrite);
        private static readonly IntPtr onCommitPointer = Marshal.GetFunctionPointerForDelegate(onCommit);

        private readonly Stream stream;
        private readonly byte[] buffer = new byte[BufferBytes];
        private readonly GCHandle self;

        internal SnapshotTarget(Stream stream)
        {
            this.stream = stream ?? throw new ArgumentNullException(nameof(stream));
            self = GCHandle.Alloc(this);
        }

        /// <summary>What the stream threw.</summary>
        internal Exception Failure { get; private set; }

        internal NativeSnapshotWriter Open()
        {
            NativeSnapshotWriter writer;
            Native.quire_snapshot_writer_init(&writer, (UIntPtr)sizeof(NativeSnapshotWriter));
            writer.write = onWritePointer;
            writer.commit = onCommitPointer;
            writer.user_data = GCHandle.ToIntPtr(self);
            return writer;
        }

        public void Dispose()
        {
            self.Free();
        }

        private static long OnWrite(IntPtr userData, IntPtr bytes, UIntPtr count, IntPtr error)
        {
            var target = (SnapshotTarget)GCHandle.FromIntPtr(userData).Target;
            try
            {
                int taken = (int)Math.Min(count.ToUInt64(), BufferBytes);
                Marshal.Copy(bytes, target.buffer, 0, taken);
                target.stream.Write(target.buffer, 0, taken);
                return taken;
            }
            catch (Exception exception)
            {
                target.Failure = exception;
                SnapshotErrors.Tell(exception, (NativeError*)error);
                return -1;
            }
        }

        private static int OnCommit(IntPtr userData, IntPtr error)
        {
            var target = (SnapshotTarget)GCHandle.FromIntPtr(userData).Target;
            try
            {
                target.stream.Flush();
                return 0;
            }
            catch (Exception exception)
            {
                target.Failure = exception;
                SnapshotErrors.Tell(exception, (NativeError*)error);
                return -1;
            }
        }
    }

    internal static unsafe class SnapshotErrors
    {
        /// <summary>What C is told of an exception, which must not pass through it.</summary>
        internal static void Tell(Exception exception, NativeError* error)
        {
            // On Unix the HResult of an IOException of the system is its error number.
            if (exception is IOException && exception.HResult > 0 && exception.HResult < 4096)
                error->os_error = exception.HResult;
            byte[] text = System.Text.Encoding.UTF8.GetBytes(exception.GetType().Name + ": " + exception.Message);
            int length = Math.Min(text.Length, Constants.ErrorMessageBytes - 1);
            while (length < text.Length && length > 0 && (text[length] & 0xC0) == 0x80) length--;
            Marshal.Copy(text, 0, (IntPtr)error->message, length);
            error->message[length] = 0;
        }
    }
}
