using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;

namespace Quire
{
    /// <summary>Threads, memory and the log sink; everything else hangs off one. Any thread may use it.</summary>
    public sealed unsafe class Runtime : QuireObject
    {
        internal Runtime(RuntimeHandle handle) : base(handle, null)
        {
            Handle = handle;
        }

        /// <summary>Starts the compute threads.</summary>
        public Runtime(RuntimeOptions options = null) : this(Create(options ?? new RuntimeOptions()))
        {
            OpenRuntimes.Add(this);
        }

        internal RuntimeHandle Handle { get; }

        private static RuntimeHandle Create(RuntimeOptions options)
        {
            NativeRuntimeOptions native;
            Native.quire_runtime_options_init(&native, (UIntPtr)sizeof(NativeRuntimeOptions));
            native.n_threads = options.ThreadCount;
            native.log_level = (int)options.LogLevel;
            native.n_io_threads = options.IoThreadCount;
            native.n_kept_log_lines = options.KeptLogLineCount;
            native.kv_device_budget_bytes = options.KvDeviceBudgetBytes;
            native.kv_host_budget_bytes = options.KvHostBudgetBytes;
            native.kv_compressed_budget_bytes = options.KvCompressedBudgetBytes;
            native.kv_file_budget_bytes = options.KvFileBudgetBytes;
            native.prefix_cache_bytes = options.PrefixCacheBytes;
            if (options.Log != null)
            {
                native.log = RuntimeCallbacks.Log;
                native.log_user_data = GCHandle.ToIntPtr(GCHandle.Alloc(options.Log));
                native.log_destroy = RuntimeCallbacks.Destroy;
            }
            if (options.Allocator != null)
            {
                native.alloc = RuntimeCallbacks.Allocate;
                native.free = RuntimeCallbacks.Free;
                native.alloc_user_data = GCHandle.ToIntPtr(GCHandle.Alloc(options.Allocator));
                native.alloc_destroy = RuntimeCallbacks.Destroy;
            }
            int status = Native.quire_runtime_create(&native, out RuntimeHandle handle, out NativeError error);
            if (status < 0)
            {
                // A create that fails leaves the user_data to the caller.
                if (options.Log != null) GCHandle.FromIntPtr(native.log_user_data).Free();
                if (options.Allocator != null) GCHandle.FromIntPtr(native.alloc_user_data).Free();
            }
            Calls.Check(status, ref error);
            return handle;
        }

        /// <summary>What models can run on, in the order in which "auto" prefers them, the unusable ones too.</summary>
        public IReadOnlyList<DeviceInfo> Devices()
        {
            Calls.Check(Native.quire_runtime_get_device_count(Handle, out int count, out NativeError error), ref error);
            var devices = new List<DeviceInfo>();
            for (int index = 0; index < count; index++)
            {
                var info = new NativeDeviceInfo { struct_size = (uint)sizeof(NativeDeviceInfo) };
                Calls.Check(Native.quire_runtime_get_device_info(Handle, index, &info, out error), ref error);
                devices.Add(new DeviceInfo(&info));
            }
            return devices;
        }

        /// <summary>
        /// Takes the oldest line of the log that was kept (RuntimeOptions.KeptLogLineCount) and not taken yet; null: there is
        /// none.
        /// </summary>
        public LogLine TakeLogLine()
        {
            int level = 0;
            long lostCount = 0;
            string text = Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_runtime_take_log_line(Handle, out level, out lostCount, (byte*)buffer, capacity, out needed,
                    out error));
            return level == 0 ? null : new LogLine((LogLevel)level, text, lostCount);
        }

        /// <summary>What is kept of sessions that are gone (RuntimeOptions.PrefixCacheBytes).</summary>
        public RuntimeStats Stats()
        {
            var stats = new NativeRuntimeStats { struct_size = (uint)sizeof(NativeRuntimeStats) };
            Calls.Check(Native.quire_runtime_get_stats(Handle, &stats, out NativeError error), ref error);
            return new RuntimeStats(&stats);
        }

        /// <summary>
        /// Loads a model: a Hugging Face directory or a GGUF file. Waits until it is loaded; progress comes on this
        /// thread. An exception of `progress` ends the call, which throws it.
        /// </summary>
        public Model LoadModel(string path, ModelOptions options = null, IProgress<Progress> progress = null,
            CancellationToken cancellationToken = default(CancellationToken))
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var pins = new Pins())
            using (var call = new LongCall(progress, cancellationToken))
            {
                NativeModelOptions native = ModelOptions.ToNative(options, pins);
                native.cancel = call.Cancel;
                native.progress = call.Callback;
                native.progress_user_data = call.UserData;
                fixed (byte* text = name)
                {
                    int status = Native.quire_model_load(Handle, text, Calls.Length(name), &native,
                        out ModelHandle model, out NativeError error);
                    call.Check(status, ref error);
                    return new Model(model, this);
                }
            }
        }

        /// <summary>The tokenizer of a model directory, tokenizer.model, tokenizer.json or GGUF file; no weights.</summary>
        public Tokenizer LoadTokenizer(string path)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            fixed (byte* text = name)
            {
                Calls.Check(Native.quire_tokenizer_load(Handle, text, Calls.Length(name),
                    out TokenizerHandle tokenizer, out NativeError error), ref error);
                return new Tokenizer(tokenizer, this);
            }
        }

        /// <summary>What the model in `path` and a session of so many tokens would take. Loads nothing.</summary>
        public MemoryPlan PlanMemory(string path, long tokenCount, ModelOptions modelOptions = null,
            SessionOptions sessionOptions = null)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var pins = new Pins())
            fixed (byte* text = name)
            {
                NativeModelOptions model = ModelOptions.ToNative(modelOptions, pins);
                NativeSessionOptions session = SessionOptions.ToNative(sessionOptions, pins);
                var plan = new NativeMemoryPlan { struct_size = (uint)sizeof(NativeMemoryPlan) };
                Calls.Check(Native.quire_runtime_plan_memory(Handle, text, Calls.Length(name), &model, &session,
                    tokenCount, &plan, out NativeError error), ref error);
                return new MemoryPlan(&plan);
            }
        }

        /// <summary>
        /// Throws what creating such a session of the model in `path` would throw, and Overflow where the expected
        /// tokens exceed the strategy's reach. Loads nothing.
        /// </summary>
        public void CheckSession(string path, SessionOptions sessionOptions, ModelOptions modelOptions = null)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var pins = new Pins())
            fixed (byte* text = name)
            {
                NativeModelOptions model = ModelOptions.ToNative(modelOptions, pins);
                NativeSessionOptions session = SessionOptions.ToNative(sessionOptions, pins);
                Calls.Check(Native.quire_runtime_check_session(Handle, text, Calls.Length(name), &model, &session,
                    out NativeError error), ref error);
            }
        }

        /// <summary>The canonical strategy of such a session of the model in `path`. Loads nothing.</summary>
        public string DescribeStrategy(string path, SessionOptions sessionOptions, ModelOptions modelOptions = null)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var pins = new Pins())
            {
                var text = (byte*)pins.Array(name);
                NativeModelOptions model = ModelOptions.ToNative(modelOptions, pins);
                NativeModelOptions* modelPointer = &model;
                NativeSessionOptions session = SessionOptions.ToNative(sessionOptions, pins);
                NativeSessionOptions* sessionPointer = &session;
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_runtime_describe_strategy(Handle, text, Calls.Length(name), modelPointer, sessionPointer,
                        (byte*)buffer, capacity, out needed, out error));
            }
        }

        /// <summary>
        /// Cancels everything that runs, frees all sessions' memory and ends all threads; waits until none is left.
        /// Calls on what belongs to this runtime then throw a QuireException with Status.Closed. Never from a callback.
        /// </summary>
        public void Close()
        {
            Calls.Check(Native.quire_runtime_close(Handle, out NativeError error), ref error);
        }

        /// <summary>Close, and releases the handle.</summary>
        public override void Dispose()
        {
            DisposeWith(Close);
        }
    }
}
