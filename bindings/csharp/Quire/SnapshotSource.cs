using System;
using System.IO;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>
    /// A stream that a snapshot is read from, from its first byte on. The library may read on several threads at once;
    /// the stream sees one read at a time. Sessions keep it alive by a GCHandle, which the destroy callback frees.
    /// </summary>
    internal sealed unsafe class SnapshotSource
    {
        private const int BufferBytes = 1 << 18;

        private static readonly NativeReadCallback onRead = OnRead;
        private static readonly NativeDestroyCallback onDestroy = OnDestroy;
        private static readonly IntPtr onReadPointer = Marshal.GetFunctionPointerForDelegate(onRead);
        private static readonly IntPtr onDestroyPointer = Marshal.GetFunctionPointerForDelegate(onDestroy);

        private readonly object reading = new object();
        private readonly Stream stream;
        private readonly bool leaveOpen;
        private byte[] buffer = new byte[0];
        private GCHandle self;

        internal SnapshotSource(Stream stream, bool leaveOpen)
        {
            if (stream == null) throw new ArgumentNullException(nameof(stream));
            if (!stream.CanSeek) throw new ArgumentException("a snapshot is read in any order: the stream must seek");
            this.stream = stream;
            this.leaveOpen = leaveOpen;
        }

        /// <summary>What the stream threw last.</summary>
        internal Exception Failure { get; private set; }

        /// <summary>`owned`: by a session, until the library destroys it. Else, and after a failure, Release.</summary>
        internal NativeSnapshotReader Open(bool owned)
        {
            long length = stream.Length;
            NativeSnapshotReader reader;
            Native.quire_snapshot_reader_init(&reader, (UIntPtr)sizeof(NativeSnapshotReader));
            self = GCHandle.Alloc(this);
            reader.n_bytes = length;
            reader.read = onReadPointer;
            reader.destroy = owned ? onDestroyPointer : IntPtr.Zero;
            reader.user_data = GCHandle.ToIntPtr(self);
            return reader;
        }

        internal void Release()
        {
            self.Free();
        }

        private int Read(long offset, IntPtr target, int count)
        {
            lock (reading)
            {
                if (buffer.Length < count) buffer = new byte[count];
                stream.Position = offset;
                int read = stream.Read(buffer, 0, count);
                if (read < 0 || read > count) throw new IOException("Read returned " + read + " of " + count + " bytes");
                Marshal.Copy(buffer, 0, target, read);
                return read;
            }
        }

        private static long OnRead(IntPtr userData, long offset, IntPtr target, UIntPtr count, IntPtr error)
        {
            var source = (SnapshotSource)GCHandle.FromIntPtr(userData).Target;
            try
            {
                return source.Read(offset, target, (int)Math.Min(count.ToUInt64(), BufferBytes));
            }
            catch (Exception exception)
            {
                source.Failure = exception;
                SnapshotErrors.Tell(exception, (NativeError*)error);
                return -1;
            }
        }

        private static void OnDestroy(IntPtr userData)
        {
            var source = (SnapshotSource)GCHandle.FromIntPtr(userData).Target;
            source.Release();
            try
            {
                if (!source.leaveOpen) source.stream.Dispose();
            }
            catch (Exception)
            {
                // Nothing may pass through C, and nothing was written that could be lost.
            }
        }
    }
}
