using System;
using System.Collections.Generic;

namespace Quire
{
    /// <summary>
    /// Closes what is still open when the process ends: a thread of the library that called a log or an allocator then
    /// would find no managed code any more.
    /// </summary>
    internal static class OpenRuntimes
    {
        private static readonly List<WeakReference<Runtime>> runtimes = new List<WeakReference<Runtime>>();

        static OpenRuntimes()
        {
            AppDomain.CurrentDomain.ProcessExit += (sender, arguments) => Close();
        }

        internal static void Add(Runtime runtime)
        {
            lock (runtimes)
            {
                runtimes.RemoveAll(other => !other.TryGetTarget(out Runtime alive) || alive.SafeHandle.IsClosed);
                runtimes.Add(new WeakReference<Runtime>(runtime));
            }
        }

        private static void Close()
        {
            WeakReference<Runtime>[] left;
            lock (runtimes) left = runtimes.ToArray();
            foreach (WeakReference<Runtime> runtime in left)
                if (runtime.TryGetTarget(out Runtime alive)) alive.Dispose();
        }
    }
}
