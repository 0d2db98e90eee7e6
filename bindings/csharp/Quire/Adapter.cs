using System;

namespace Quire
{
    /// <summary>A LoRA adapter of one model, for sessions (SessionOptions.Adapters). Any thread may use it.</summary>
    public sealed unsafe class Adapter : QuireObject
    {
        internal Adapter(AdapterHandle handle, Model parent) : base(handle, parent)
        {
            Handle = handle;
        }

        internal AdapterHandle Handle { get; }

        /// <summary>What the adapter is made of.</summary>
        public AdapterInfo Info()
        {
            var info = new NativeAdapterInfo { struct_size = (uint)sizeof(NativeAdapterInfo) };
            Calls.Check(Native.quire_adapter_get_info(Handle, &info, out NativeError error), ref error);
            return new AdapterInfo(&info);
        }

        /// <summary>Metadata by key: "identity" or "base_model". Throws NotFound for others.</summary>
        public string Metadata(string key)
        {
            byte[] name = Utf8.Bytes(key, nameof(key));
            using (var pins = new Pins())
            {
                var text = (byte*)pins.Array(name);
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_adapter_get_metadata(Handle, text, Calls.Length(name), (byte*)buffer, capacity,
                        out needed, out error));
            }
        }
    }
}
