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

    internal sealed class RuntimeHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_runtime_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_runtime_release(pointer);
        }
    }

    internal sealed class CancelHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_cancel_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_cancel_release(pointer);
        }
    }

    internal sealed class ModelHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_model_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_model_release(pointer);
        }
    }

    internal sealed class AdapterHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_adapter_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_adapter_release(pointer);
        }
    }

    internal sealed class TokenizerHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_tokenizer_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_tokenizer_release(pointer);
        }
    }

    internal sealed class SessionHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_session_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_session_release(pointer);
        }
    }

    internal sealed class StreamHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_stream_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_stream_release(pointer);
        }
    }

    internal sealed class StoreHandle : QuireHandle
    {
        protected override void Retain(IntPtr pointer)
        {
            Native.quire_store_retain(pointer);
        }

        protected override void Release(IntPtr pointer)
        {
            Native.quire_store_release(pointer);
        }
    }
}
