using System;
using System.IO;
using System.Threading;

namespace Quire
{
    /// <summary>Immutable weights, shared by any number of sessions. Any thread may use it.</summary>
    public sealed unsafe class Model : QuireObject
    {
        internal Model(ModelHandle handle, Runtime parent) : base(handle, parent)
        {
            Handle = handle;
        }

        internal ModelHandle Handle { get; }

        /// <summary>What the model is made of.</summary>
        public ModelInfo Info()
        {
            var info = new NativeModelInfo { struct_size = (uint)sizeof(NativeModelInfo) };
            Calls.Check(Native.quire_model_get_info(Handle, &info, out NativeError error), ref error);
            return new ModelInfo(&info);
        }

        /// <summary>
        /// Metadata by key: "architecture", "rope_type", "rope_scaling", "tokenizer", "bos_token_id", "eos_token_ids",
        /// "sliding_window_layers", "sliding_window_tokens", "device", "device_reason", "identity", "config.json". Throws
        /// NotFound for others.
        /// </summary>
        public string Metadata(string key)
        {
            byte[] name = Utf8.Bytes(key, nameof(key));
            using (var pins = new Pins())
            {
                var text = (byte*)pins.Array(name);
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_model_get_metadata(Handle, text, Calls.Length(name), (byte*)buffer, capacity,
                        out needed, out error));
            }
        }

        /// <summary>The model's tokenizer.</summary>
        public Tokenizer GetTokenizer()
        {
            Calls.Check(Native.quire_model_get_tokenizer(Handle, out TokenizerHandle tokenizer, out NativeError error),
                ref error);
            return new Tokenizer(tokenizer, this);
        }

        /// <summary>Loads a PEFT LoRA directory for sessions of this model. As Runtime.LoadModel.</summary>
        public Adapter LoadAdapter(string path, IProgress<Progress> progress = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var call = new LongCall(progress, cancellationToken))
            fixed (byte* text = name)
            {
                NativeAdapterOptions native;
                Native.quire_adapter_options_init(&native, (UIntPtr)sizeof(NativeAdapterOptions));
                native.cancel = call.Cancel;
                native.progress = call.Callback;
                native.progress_user_data = call.UserData;
                int status = Native.quire_adapter_load(Handle, text, Calls.Length(name), &native,
                    out AdapterHandle adapter, out NativeError error);
                call.Check(status, ref error);
                return new Adapter(adapter, this);
            }
        }

        /// <summary>An empty session.</summary>
        public Session CreateSession(SessionOptions options = null)
        {
            using (var pins = new Pins())
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                Calls.Check(Native.quire_session_create(Handle, &native, out SessionHandle session,
                    out NativeError error), ref error);
                return new Session(session, this);
            }
        }

        /// <summary>An empty session with this strategy.</summary>
        public Session CreateSession(string strategy)
        {
            return CreateSession(new SessionOptions { Strategy = strategy });
        }

        /// <summary>
        /// A session that goes on where a saved one stood. The file must stay as it is while the session lives. Options
        /// that are not set are those of the saved session.
        /// </summary>
        public Session LoadSession(string path, SessionOptions options = null)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var pins = new Pins())
            fixed (byte* text = name)
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                Calls.Check(Native.quire_session_load(Handle, text, Calls.Length(name), &native,
                    out SessionHandle session, out NativeError error), ref error);
                return new Session(session, this);
            }
        }

        /// <summary>
        /// The same from a stream that can seek, the whole of it. The session owns the stream: it is read, one read at
        /// a time, on threads of the library too, and disposed (unless `leaveOpen`) when the last session that reads
        /// from it is gone. An exception of the stream is the inner exception of what this call throws, or becomes part
        /// of the message with which an EventStream ends. If this call throws, the stream stays the caller's.
        /// </summary>
        public Session LoadSession(Stream stream, SessionOptions options = null, bool leaveOpen = false)
        {
            var source = new SnapshotSource(stream, leaveOpen);
            using (var pins = new Pins())
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                NativeSnapshotReader reader = source.Open(true);
                int status = Native.quire_session_load_from(Handle, &reader, &native, out SessionHandle session,
                    out NativeError error);
                if (status < 0) source.Release();
                Calls.Check(status, ref error, source.Failure);
                return new Session(session, this);
            }
        }

        /// <summary>
        /// Throws what creating such a session would throw, and Overflow where the expected tokens exceed the
        /// strategy's reach. Makes nothing.
        /// </summary>
        public void CheckSession(SessionOptions options)
        {
            using (var pins = new Pins())
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                Calls.Check(Native.quire_model_check_session(Handle, &native, out NativeError error), ref error);
            }
        }

        /// <summary>The canonical strategy that such a session would have.</summary>
        public string DescribeStrategy(SessionOptions options)
        {
            using (var pins = new Pins())
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                NativeSessionOptions* nativePointer = &native;
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_model_describe_strategy(Handle, nativePointer, (byte*)buffer, capacity, out needed,
                        out error));
            }
        }

        /// <summary>
        /// How long such a session would take to read so many tokens and to answer, by a short measurement on this
        /// machine as it is now.
        /// </summary>
        public RateEstimate EstimateRates(long tokenCount, SessionOptions options = null)
        {
            using (var pins = new Pins())
            {
                NativeSessionOptions native = SessionOptions.ToNative(options, pins);
                var estimate = new NativeRateEstimate { struct_size = (uint)sizeof(NativeRateEstimate) };
                Calls.Check(Native.quire_model_estimate_rates(Handle, &native, tokenCount, &estimate,
                    out NativeError error), ref error);
                return new RateEstimate(&estimate);
            }
        }
    }
}
