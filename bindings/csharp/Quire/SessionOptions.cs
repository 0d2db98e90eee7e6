using System;
using System.Collections.Generic;
using System.Linq;

namespace Quire
{
    /// <summary>An adapter that a session uses.</summary>
    public sealed class SessionAdapter
    {
        /// <summary>`scale`: times the adapter's own.</summary>
        public SessionAdapter(Adapter adapter, double scale = 1)
        {
            Adapter = adapter ?? throw new ArgumentNullException(nameof(adapter));
            Scale = scale;
        }

        /// <summary>Of the session's model; the session keeps it alive.</summary>
        public Adapter Adapter { get; }

        /// <summary>Times the adapter's own; finite and not 0.</summary>
        public double Scale { get; }
    }

    /// <summary>What a session is made with. What is not set has its default; for a loaded session, the saved value.</summary>
    public sealed class SessionOptions
    {
        /// <summary>OldAfter: all chunks before a token's own are old text.</summary>
        public const long OldAtOnce = Constants.OldAtOnce;

        /// <summary>A strategy expression, such as "dca + yarn(factor=2)"; null: "full".</summary>
        public string Strategy { get; set; }

        /// <summary>What keys and values are stored as; default: F16.</summary>
        public DataType KvType { get; set; }

        /// <summary>What keys and values of old text are read as: Int8 or Int4; default: KvType.</summary>
        public DataType KvOldType { get; set; }

        /// <summary>Tokens after which text is old; 0: 4096; OldAtOnce.</summary>
        public long OldAfter { get; set; }

        /// <summary>What happens when the text becomes longer than the strategy reaches; default: an error.</summary>
        public OverflowPolicy Overflow { get; set; }

        /// <summary>The length that the session will reach, for strategies that depend on it; 0: unknown.</summary>
        public long ExpectedTokens { get; set; }

        /// <summary>Tokens per forward pass while fed text is processed; 0: 256, or 1024 on a GPU.</summary>
        public int PrefillBlock { get; set; }

        /// <summary>Most bytes of the KV cache on the device; 0: what it has. A model on a CPU keeps any.</summary>
        public long KvDeviceBudgetBytes { get; set; }

        /// <summary>Most bytes of the KV cache in memory; 0: no limit.</summary>
        public long KvHostBudgetBytes { get; set; }

        /// <summary>Most bytes of the KV cache in compressed memory; 0: no such tier.</summary>
        public long KvCompressedBudgetBytes { get; set; }

        /// <summary>Most bytes of the KV cache in its file; 0: no limit but the disk's.</summary>
        public long KvFileBudgetBytes { get; set; }

        /// <summary>Where the file tier has its unnamed temporary file; null: no file tier.</summary>
        public string KvFileDirectory { get; set; }

        /// <summary>Adapters that are used beside the model's weights.</summary>
        public IReadOnlyList<SessionAdapter> Adapters { get; set; } = new SessionAdapter[0];

        /// <summary>
        /// Whether the session takes over what others have computed of the same text, and gives them its own. The
        /// default is true. False for users who must not learn what others have read.
        /// </summary>
        public bool PrefixReuse { get; set; } = true;

        /// <summary>
        /// Whether layers with a window of their own keep what lies behind it, so that the text can be cut and edited
        /// anywhere. The default is false: they drop it, and the budgets hold a text many times longer.
        /// </summary>
        public bool KeepBehindWindows { get; set; }

        internal static unsafe NativeSessionOptions ToNative(SessionOptions options, Pins pins)
        {
            NativeSessionOptions native;
            Native.quire_session_options_init(&native, (UIntPtr)sizeof(NativeSessionOptions));
            if (options == null) return native;
            if (!options.PrefixReuse) native.flags |= (uint)SessionFlags.NoPrefixReuse;
            if (options.KeepBehindWindows) native.flags |= (uint)SessionFlags.KeepBehindWindows;
            native.strategy = pins.Text(options.Strategy, out native.strategy_len);
            native.kv_type = (int)options.KvType;
            native.kv_old_type = (int)options.KvOldType;
            native.old_after = options.OldAfter;
            native.overflow = (int)options.Overflow;
            native.expected_tokens = options.ExpectedTokens;
            native.prefill_block = options.PrefillBlock;
            native.kv_device_budget_bytes = options.KvDeviceBudgetBytes;
            native.kv_host_budget_bytes = options.KvHostBudgetBytes;
            native.kv_compressed_budget_bytes = options.KvCompressedBudgetBytes;
            native.kv_file_budget_bytes = options.KvFileBudgetBytes;
            native.kv_file_directory = pins.Text(options.KvFileDirectory, out native.kv_file_directory_len);
            NativeSessionAdapter[] adapters = options.Adapters.Select(used => new NativeSessionAdapter
            {
                adapter = pins.Handle(used.Adapter.Handle),
                scale = used.Scale
            }).ToArray();
            native.adapters = pins.Array(adapters);
            native.n_adapters = Calls.Length(adapters);
            return native;
        }
    }
}
