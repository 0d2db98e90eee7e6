using System;
using System.Collections.Generic;
using System.Linq;
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

        /// <summary>
        /// Asks for the length, then for the elements; again if there are more of them by then. Where there are no more
        /// than `guess` elements, one call is enough.
        /// </summary>
        internal static T[] Array<T>(BufferCall call, int guess = 0) where T : struct
        {
            var count = (ulong)guess;
            while (true)
            {
                T[] array = Room<T>(count);
                int status = Fill(call, array, out count, out NativeError error);
                if (status == (int)Status.BufferTooSmall) continue;
                Check(status, ref error);
                if (count > (ulong)array.Length) continue;
                if (count < (ulong)array.Length) System.Array.Resize(ref array, (int)count);
                return array;
            }
        }

        /// <summary>One call. `count`: how many elements there are.</summary>
        private static int Fill<T>(BufferCall call, T[] array, out ulong count, out NativeError error) where T : struct
        {
            using (var pins = new Pins())
            {
                int status = call(pins.Array(array), Length(array), out UIntPtr needed, out error);
                count = needed.ToUInt64();
                return status;
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

        internal static string Text(BufferCall call, int guess = 0)
        {
            return System.Text.Encoding.UTF8.GetString(Array<byte>(call, guess));
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
