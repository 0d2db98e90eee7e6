using System;

namespace Quire
{
    /// <summary>
    /// Memory for weights, KV cache and scratch. Both functions run on any thread of the runtime, several at once; they
    /// must return soon and call nothing of this library.
    /// </summary>
    public interface IMemoryAllocator
    {
        /// <summary>
        /// Memory aligned to `alignment`, a power of two; IntPtr.Zero where there is none, and so counts an exception.
        /// </summary>
        IntPtr Allocate(ulong size, ulong alignment);

        /// <summary>`memory`, `size` and `alignment` as they were allocated. Exceptions are ignored.</summary>
        void Free(IntPtr memory, ulong size, ulong alignment);
    }

    /// <summary>What a Runtime is made with. A default is what 0 or null means.</summary>
    public sealed class RuntimeOptions
    {
        /// <summary>Compute threads; 0: one for each usable core.</summary>
        public int ThreadCount { get; set; }

        /// <summary>Threads that move chunks between tiers; 0: one; -1: none.</summary>
        public int IoThreadCount { get; set; }

        /// <summary>
        /// Is given each line of the log, on threads of the library or inside calls. It must return soon and must not
        /// call the library, but for Dispose of what never waits and for cancelling. Exceptions that leave it are
        /// ignored. Null: nothing is logged.
        /// </summary>
        public Action<LogLevel, string> Log { get; set; }

        /// <summary>How many lines of the log are kept for Runtime.TakeLogLine; 0: none.</summary>
        public int KeptLogLineCount { get; set; }

        /// <summary>The most talkative level wanted; 0: warnings.</summary>
        public LogLevel LogLevel { get; set; }

        /// <summary>Null: the system's memory.</summary>
        public IMemoryAllocator Allocator { get; set; }

        /// <summary>Most bytes that the KV caches of all sessions hold on a device; 0: no limit.</summary>
        public long KvDeviceBudgetBytes { get; set; }

        /// <summary>Most bytes that the KV caches of all sessions hold in memory; 0: no limit.</summary>
        public long KvHostBudgetBytes { get; set; }

        /// <summary>Most bytes that the KV caches of all sessions hold in compressed memory; 0: no limit.</summary>
        public long KvCompressedBudgetBytes { get; set; }

        /// <summary>Most bytes that the KV caches of all sessions hold in files; 0: no limit.</summary>
        public long KvFileBudgetBytes { get; set; }

        /// <summary>
        /// Most bytes that are kept of sessions that are gone, for the next one whose text begins alike; 0: none.
        /// </summary>
        public long PrefixCacheBytes { get; set; }
    }
}
