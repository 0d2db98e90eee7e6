using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>
    /// What the options structs of one call point to: pinned arrays, and handles that must not be released
    /// meanwhile. Disposing lets go of all of it.
    /// </summary>
    internal sealed class Pins : IDisposable
    {
        private readonly List<GCHandle> arrays = new List<GCHandle>();
        private readonly List<SafeHandle> handles = new List<SafeHandle>();

        /// <summary>The address of the first element; NULL for no array, or none with elements.</summary>
        internal IntPtr Array<T>(T[] array) where T : struct
        {
            if (array == null || array.Length == 0) return IntPtr.Zero;
            GCHandle pin = GCHandle.Alloc(array, GCHandleType.Pinned);
            arrays.Add(pin);
            return pin.AddrOfPinnedObject();
        }

        /// <summary>A string as UTF-8. NULL for null; an empty string has an address.</summary>
        internal IntPtr Text(string text, out UIntPtr length)
        {
            length = UIntPtr.Zero;
            if (text == null) return IntPtr.Zero;
            byte[] bytes = Utf8.Encoding.GetBytes(text);
            length = Calls.Length(bytes);
            return Array(bytes.Length == 0 ? new byte[1] : bytes);
        }

        /// <summary>The handle's address, which stays good until this is disposed.</summary>
        internal IntPtr Handle(SafeHandle handle)
        {
            bool added = false;
            handle.DangerousAddRef(ref added);
            handles.Add(handle);
            return handle.DangerousGetHandle();
        }

        /// <summary>Strings as quire_text structs.</summary>
        internal NativeText[] Texts(IEnumerable<string> texts)
        {
            return texts.Select(text =>
            {
                if (text == null) throw new ArgumentException("a string is null");
                var native = new NativeText();
                native.data = Text(text, out native.len);
                return native;
            }).ToArray();
        }

        public void Dispose()
        {
            foreach (GCHandle pin in arrays) pin.Free();
            foreach (SafeHandle handle in handles) handle.DangerousRelease();
            arrays.Clear();
            handles.Clear();
        }
    }
}
