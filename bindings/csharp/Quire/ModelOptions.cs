using System;
using System.Collections.Generic;
using System.Linq;

namespace Quire
{
    /// <summary>A LoRA adapter's directory, to be merged into a model's weights.</summary>
    public sealed class AdapterSource
    {
        /// <summary>`scale`: times the adapter's own.</summary>
        public AdapterSource(string path, double scale = 1)
        {
            Path = path ?? throw new ArgumentNullException(nameof(path));
            Scale = scale;
        }

        /// <summary>The directory.</summary>
        public string Path { get; }

        /// <summary>Times the adapter's own; finite and not 0.</summary>
        public double Scale { get; }
    }

    /// <summary>How a model is loaded. What is not set has its default.</summary>
    public sealed class ModelOptions
    {
        /// <summary>
        /// How weight files are read. With LoadMethod.Mmap the system ends this process if another program shortens a
        /// mapped file.
        /// </summary>
        public LoadMethod LoadMethod { get; set; }

        /// <summary>What the projection matrices are kept as; default: each part as it is stored.</summary>
        public DataType WeightType { get; set; }

        /// <summary>
        /// What rows may be rounded to on the CPU. Int8 (default): to 8 bits for quantised weights, to bf16 for weights in
        /// bf16. Bf16: the latter alone. F32: they stay as they are, which is several times slower.
        /// </summary>
        public DataType ActivationType { get; set; }

        /// <summary>Adapters to be merged into the weights.</summary>
        public IReadOnlyList<AdapterSource> Merge { get; set; } = new AdapterSource[0];

        /// <summary>The directory of an Activation Beacon plug-in; null: the checkpoint's own, if it has any.</summary>
        public string BeaconPath { get; set; }

        /// <summary>The name of a device (Runtime.Devices); null or "auto": the first usable one.</summary>
        public string Device { get; set; }

        /// <summary>
        /// A directory that keeps weights as the CPU multiplies with them: the first load writes a file there, later ones map
        /// it. Whoever shortens that file ends this process; deleting it is safe. Null: none is kept.
        /// </summary>
        public string PackedDirectory { get; set; }

        internal static unsafe NativeModelOptions ToNative(ModelOptions options, Pins pins)
        {
            NativeModelOptions native;
            Native.quire_model_options_init(&native, (UIntPtr)sizeof(NativeModelOptions));
            if (options == null) return native;
            native.load = (int)options.LoadMethod;
            native.weight_type = (int)options.WeightType;
            native.activation_type = (int)options.ActivationType;
            NativeAdapterSource[] sources = options.Merge.Select(source =>
            {
                var merged = new NativeAdapterSource { scale = source.Scale };
                merged.path = pins.Text(source.Path, out merged.path_len);
                return merged;
            }).ToArray();
            native.merge = pins.Array(sources);
            native.n_merge = Calls.Length(sources);
            native.beacon_path = pins.Text(options.BeaconPath, out native.beacon_path_len);
            native.device = pins.Text(options.Device, out native.device_len);
            native.packed_directory = pins.Text(options.PackedDirectory, out native.packed_directory_len);
            return native;
        }
    }
}
