using System;
using System.Collections.Generic;
using System.Threading;

namespace Quire
{
    /// <summary>Models as files. Any thread may use this class.</summary>
    public static unsafe class ModelFiles
    {
        /// <summary>
        /// What the files of a model hold, as a JSON object: "format", "files", "metadata" and "tensors" with "name",
        /// "type", "shape", "bytes" and "file". Weights are not read.
        /// </summary>
        public static string Describe(string path)
        {
            byte[] name = Utf8.Bytes(path, nameof(path));
            using (var pins = new Pins())
            {
                var text = (byte*)pins.Array(name);
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_model_describe_files(text, Calls.Length(name), (byte*)buffer, capacity, out needed,
                        out error));
            }
        }

        /// <summary>The names of the recipes that Quantize knows.</summary>
        public static IReadOnlyList<string> Recipes()
        {
            return Utf8.Static(Native.quire_get_quantizations()).Split(new[] { ", " }, StringSplitOptions.None);
        }

        /// <summary>
        /// Writes a model to the GGUF file `outPath`, which appears when it is complete. `recipe`: null for q4_k_m;
        /// `threadCount`: 0: one for each usable core. Waits until done; progress as in Runtime.LoadModel.
        /// </summary>
        public static void Quantize(string path, string outPath, string recipe = null, int threadCount = 0,
            IProgress<Progress> progress = null, CancellationToken cancellationToken = default(CancellationToken))
        {
            byte[] from = Utf8.Bytes(path, nameof(path)), to = Utf8.Bytes(outPath, nameof(outPath));
            using (var pins = new Pins())
            using (var call = new LongCall(progress, cancellationToken))
            fixed (byte* fromText = from, toText = to)
            {
                NativeQuantizeOptions native;
                Native.quire_quantize_options_init(&native, (UIntPtr)sizeof(NativeQuantizeOptions));
                native.n_threads = threadCount;
                native.recipe = pins.Text(recipe, out native.recipe_len);
                native.cancel = call.Cancel;
                native.progress = call.Callback;
                native.progress_user_data = call.UserData;
                int status = Native.quire_model_quantize(fromText, Calls.Length(from), toText, Calls.Length(to),
                    &native, out NativeError error);
                call.Check(status, ref error);
            }
        }
    }
}
