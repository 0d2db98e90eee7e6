using System;
using System.Runtime.InteropServices;
using System.Threading;

namespace Quire.Tests
{
    /// <summary>Memory of the system, which knows how much of it is in use.</summary>
    internal sealed class CountingAllocator : IMemoryAllocator
    {
        private long bytes;

        internal long Bytes
        {
            get { return Interlocked.Read(ref bytes); }
        }

        /// <summary>
        /// Whether no more than this is in use: at once, or when the threads of the library have taken down what was
        /// released. A minute is for machines that are busy.
        /// </summary>
        internal bool FallsTo(long limit)
        {
            return SpinWait.SpinUntil(() => Bytes <= limit, TimeSpan.FromMinutes(1));
        }

        public IntPtr Allocate(ulong size, ulong alignment)
        {
            var atLeast = Math.Max(alignment, (ulong)IntPtr.Size);
            if (posix_memalign(out IntPtr memory, (UIntPtr)atLeast, (UIntPtr)size) != 0) return IntPtr.Zero;
            Interlocked.Add(ref bytes, (long)size);
            return memory;
        }

        public void Free(IntPtr memory, ulong size, ulong alignment)
        {
            free(memory);
            Interlocked.Add(ref bytes, -(long)size);
        }

        [DllImport("libc.so.6")]
        private static extern int posix_memalign(out IntPtr memory, UIntPtr alignment, UIntPtr size);

        [DllImport("libc.so.6")]
        private static extern void free(IntPtr memory);
    }
}
