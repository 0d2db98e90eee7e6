using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;

namespace Quire
{
    /// <summary>A function of the form `buf, cap, *needed`, its other arguments bound.</summary>
    internal delegate int BufferCall(IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error);

    /// <summary>How C is called: results of any length, and errors.</summary>
    internal static unsafe class Calls
    {
        /// <summary>Throws for a failure; returns other statuses.</summary>
        internal static Status Check(int status, ref NativeError error, Exception inner = null)
        {
            if (status < 0) throw QuireException.Of(status, ref error, inner);
            return (Status)status;
        }

        /// <summary>Asks for the length, then for the elements; again if there are more of them by then.</summary>
        internal static T[] Array<T>(BufferCall call) where T : struct
        {
            while (true)
            {
                Check(call(IntPtr.Zero, UIntPtr.Zero, out UIntPtr needed, out NativeError error), ref error);
                T[] array = Room<T>(needed.ToUInt64());
                if (array.Length == 0) return array;
                GCHandle pin = GCHandle.Alloc(array, GCHandleType.Pinned);
                try
                {
                    int status = call(pin.AddrOfPinnedObject(), needed, out needed, out error);
                    if (status == (int)Status.BufferTooSmall) continue;
                    Check(status, ref error);
                }
                finally
                {
                    pin.Free();
                }
                if ((int)needed.ToUInt64() < array.Length) System.Array.Resize(ref array, (int)needed.ToUInt64());
                return array;
            }
        }

        /// <summary>An array of so many elements. Throws OutOfMemory where there cannot be one.</summary>
        private static T[] Room<T>(ulong count)
        {
            try
            {
                return new T[checked((int)count)];
            }
            catch (Exception exception) when (exception is OverflowException || exception is OutOfMemoryException)
            {
                throw QuireException.OutOfMemory("no memory for a result of " + count + " elements", exception);
            }
        }

        internal static string Text(BufferCall call)
        {
            return System.Text.Encoding.UTF8.GetString(Array<byte>(call));
        }

        internal static UIntPtr Length(System.Array array)
        {
            return (UIntPtr)(uint)(array == null ? 0 : array.Length);
        }

        /// <summary>As an array, without a copy where it is one.</summary>
        internal static T[] ToArray<T>(IEnumerable<T> items, string name)
        {
            if (items == null) throw new ArgumentNullException(name);
            return items as T[] ?? items.ToArray();
        }

        /// <summary>As C takes it, never less than asked for. Of what is left of a time that is over: 0.</summary>
        internal static int Milliseconds(TimeSpan timeout)
        {
            if (timeout == Timeout.InfiniteTimeSpan) return -1;
            return (int)Math.Min(Math.Max(Math.Ceiling(timeout.TotalMilliseconds), 0), int.MaxValue);
        }
    }
}
