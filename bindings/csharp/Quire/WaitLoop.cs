using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Quire
{
    /// <summary>
    /// A thread that polls the wait descriptors of all streams whose next event is awaited, so that no thread of the
    /// pool waits. It begins with the first such stream, and ends with the process.
    /// </summary>
    internal static unsafe class WaitLoop
    {
        private const short PollIn = 1;
        private const int CloseOnExec = 0x80000; // EFD_CLOEXEC
        private static readonly object gate = new object();
        private static readonly List<Waiting> added = new List<Waiting>();

        /// <summary>
        /// An eventfd that ends the poll in progress when streams are added; -1 as long as the thread does not run.
        /// </summary>
        private static int wake = -1;

        /// <summary>Until an event, a failure or the end of the stream waits to be taken.</summary>
        internal static Task Ready(EventStream stream)
        {
            int descriptor = stream.WaitDescriptor();
            Waiting waiting;
            lock (gate)
            {
                if (wake < 0) Start();
                waiting = new Waiting(stream.Handle, descriptor);
                added.Add(waiting);
            }
            ulong one = 1;
            write(wake, &one, (UIntPtr)sizeof(ulong));
            return waiting.Task;
        }

        private static void Start()
        {
            int descriptor = eventfd(0, CloseOnExec);
            if (descriptor < 0) throw new InvalidOperationException("no eventfd: error " + Marshal.GetLastWin32Error());
            try
            {
                new Thread(() => Run(descriptor)) { IsBackground = true, Name = "quire-wait" }.Start();
            }
            catch
            {
                close(descriptor);
                throw;
            }
            wake = descriptor;
        }

        private static void Run(int woken)
        {
            var waiting = new List<Waiting>();
            var polled = new PollDescriptor[8];
            while (true)
            {
                lock (gate)
                {
                    waiting.AddRange(added);
                    added.Clear();
                }
                if (polled.Length <= waiting.Count) polled = new PollDescriptor[2 * waiting.Count];
                polled[0] = new PollDescriptor { descriptor = woken, events = PollIn };
                for (int index = 0; index < waiting.Count; index++)
                    polled[index + 1] = new PollDescriptor { descriptor = waiting[index].Descriptor, events = PollIn };
                fixed (PollDescriptor* first = polled)
                    if (poll(first, (UIntPtr)(uint)(waiting.Count + 1), -1) < 0) continue; // by a signal
                ulong count;
                if (polled[0].returned != 0) read(woken, &count, (UIntPtr)sizeof(ulong));
                for (int index = waiting.Count - 1; index >= 0; index--)
                {
                    if (polled[index + 1].returned == 0) continue;
                    waiting[index].Complete();
                    waiting.RemoveAt(index);
                }
            }
        }

        /// <summary>One wait for a stream, which is not released meanwhile, for its descriptor would be another's then.</summary>
        private sealed class Waiting
        {
            private readonly StreamHandle handle;
            private readonly TaskCompletionSource<bool> source =
                new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);

            internal Waiting(StreamHandle handle, int descriptor)
            {
                bool kept = false;
                handle.DangerousAddRef(ref kept);
                this.handle = handle;
                Descriptor = descriptor;
            }

            internal int Descriptor { get; }

            internal Task Task
            {
                get { return source.Task; }
            }

            internal void Complete()
            {
                handle.DangerousRelease();
                source.SetResult(true);
            }
        }

        [StructLayout(LayoutKind.Sequential)]
        private struct PollDescriptor
        {
            internal int descriptor;
            internal short events;
            internal short returned;
        }

        [DllImport("libc.so.6", SetLastError = true)]
        private static extern int eventfd(uint initial, int flags);

        [DllImport("libc.so.6")]
        private static extern int close(int descriptor);

        [DllImport("libc.so.6")]
        private static extern int poll(PollDescriptor* descriptors, UIntPtr count, int milliseconds);

        [DllImport("libc.so.6")]
        private static extern IntPtr read(int descriptor, void* bytes, UIntPtr count);

        [DllImport("libc.so.6")]
        private static extern IntPtr write(int descriptor, void* bytes, UIntPtr count);
    }
}
