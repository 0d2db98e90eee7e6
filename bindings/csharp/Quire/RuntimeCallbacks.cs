using System;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>
    /// What a runtime calls. The delegates are static and never collected; the objects behind them are found by a
    /// GCHandle, which the library's destroy callback frees.
    /// </summary>
    internal static class RuntimeCallbacks
    {
        private static readonly NativeLogCallback onLog = OnLog;
        private static readonly NativeAllocCallback onAllocate = OnAllocate;
        private static readonly NativeFreeCallback onFree = OnFree;
        private static readonly NativeDestroyCallback onDestroy = OnDestroy;

        internal static readonly IntPtr Log = Marshal.GetFunctionPointerForDelegate(onLog);
        internal static readonly IntPtr Allocate = Marshal.GetFunctionPointerForDelegate(onAllocate);
        internal static readonly IntPtr Free = Marshal.GetFunctionPointerForDelegate(onFree);

        /// <summary>Frees the GCHandle that is its user_data. Others have it too.</summary>
        internal static readonly IntPtr Destroy = Marshal.GetFunctionPointerForDelegate(onDestroy);

        private static void OnLog(IntPtr userData, int level, IntPtr message, UIntPtr length)
        {
            try
            {
                var log = (Action<LogLevel, string>)GCHandle.FromIntPtr(userData).Target;
                log((LogLevel)level, Utf8.Text(message, length));
            }
            catch (Exception)
            {
                // Nothing may pass through C, and nobody waits for a line of the log.
            }
        }

        private static IntPtr OnAllocate(IntPtr userData, UIntPtr size, UIntPtr alignment)
        {
            try
            {
                var allocator = (IMemoryAllocator)GCHandle.FromIntPtr(userData).Target;
                return allocator.Allocate(size.ToUInt64(), alignment.ToUInt64());
            }
            catch (Exception)
            {
                return IntPtr.Zero;
            }
        }

        private static void OnFree(IntPtr userData, IntPtr memory, UIntPtr size, UIntPtr alignment)
        {
            try
            {
                var allocator = (IMemoryAllocator)GCHandle.FromIntPtr(userData).Target;
                allocator.Free(memory, size.ToUInt64(), alignment.ToUInt64());
            }
            catch (Exception)
            {
                // Nothing may pass through C; the memory is the allocator's.
            }
        }

        private static void OnDestroy(IntPtr userData)
        {
            GCHandle.FromIntPtr(userData).Free();
        }
    }
}
