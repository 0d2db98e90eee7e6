using System;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>
    /// One reference to an object of the library. Handles keep their parents alive inside the library, and releasing
    /// never waits, so the finalizer thread may release them in any order.
    /// </summary>
    internal abstract class QuireHandle : SafeHandle
    {
        protected QuireHandle() : base(IntPtr.Zero, true)
        {
        }

        public override bool IsInvalid
        {
            get { return handle == IntPtr.Zero; }
        }

        protected abstract void Retain(IntPtr pointer);

        protected abstract void Release(IntPtr pointer);

        protected override bool ReleaseHandle()
        {
            Release(handle);
            return true;
        }

        /// <summary>A reference of its own to an object that somebody else has.</summary>
        internal static T Share<T>(IntPtr pointer) where T : QuireHandle, new()
        {
            if (pointer == IntPtr.Zero) throw new ArgumentNullException(nameof(pointer));
            var shared = new T();
            shared.Retain(pointer);
            shared.SetHandle(pointer);
            return shared;
        }
    }
}
