using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Text;

namespace Quire.Tests
{
    /// <summary>Models: what they are made of, tokenizers, adapters, and what is known without weights.</summary>
    internal sealed class ModelTests : WithModel
    {
        [Test]
        private void InfoAndMetadata()
        {
            ModelInfo info = Model.Info();
            Check.Sequence(new[] { 2, 4, 2, 24, 320 },
                new[] { info.LayerCount, info.QueryHeadCount, info.KvHeadCount, info.HeadDim, info.VocabSize });
            Check.Equal(256L, info.TrainLen);
            Check.Equal(DataType.F32, info.WeightType);
            Check.Equal("LlamaForCausalLM", Model.Metadata("architecture"));
            Check.Equal(320L, (long)Json.ReadObject(Model.Metadata("config.json"))["vocab_size"]);
        }

        [Test]
        private void Devices()
        {
            DeviceInfo cpu = Runtime.Devices()[0];
            Check.Equal("cpu", cpu.Name);
            Check.Equal(DeviceKind.Cpu, cpu.Kind);
            Check.Equal(DeviceFlags.Usable, cpu.Flags);
            Check.True(cpu.MemoryBytes >= cpu.FreeBytes && cpu.FreeBytes > 0, "memory is known");
            using (Model model = Runtime.LoadModel(Shared.TinyModel, new ModelOptions { Device = "cpu" }))
                Check.Equal("asked for", model.Metadata("device_reason"));
            Check.Fails(Status.InvalidArgument,
                () => Runtime.LoadModel(Shared.TinyModel, new ModelOptions { Device = "gpu" }));
        }

        [Test]
        private void Quantizing()
        {
            Check.True(ModelFiles.Recipes().Contains("q4_k_m"), "there is a recipe of that name");
            string path = Path.Combine(Folder, "model.gguf");
            ModelFiles.Quantize(Shared.TinyModel, path, "q8_0", 1);
            Dictionary<string, object> files = Json.ReadObject(ModelFiles.Describe(path));
            Check.Equal("gguf", (string)files["format"]);
            Check.True(((List<object>)files["tensors"]).Any(tensor =>
                (string)((Dictionary<string, object>)tensor)["type"] == "Q8_0"), "tensors have the type");
            using (Model model = Runtime.LoadModel(path, new ModelOptions
            {
                LoadMethod = LoadMethod.Mmap,
                ActivationType = DataType.F32
            }))
                Check.Equal(DataType.Q8_0, model.Info().WeightType);
            string packed = path + ".kept";
            Runtime.LoadModel(path, new ModelOptions { PackedDirectory = packed }).Dispose();
            Check.Equal(1, Directory.GetFiles(packed, "*.packed").Length);
            Check.Fails(Status.InvalidArgument, () => ModelFiles.Quantize(Shared.TinyModel, path, "q1"));
        }

        [Test]
        private void Adapters()
        {
            string path = Path.Combine(Shared.Adapters, "attention");
            using (Adapter adapter = Model.LoadAdapter(path))
            {
                Check.Equal(AdapterFlags.ReplacesEmbedding | AdapterFlags.ChangesQueriesOrKeys, adapter.Info().Flags);
                Check.Equal(4, adapter.Info().Rank);
                Check.Equal("text_256", adapter.Metadata("base_model"));
                Check.Equal(32, adapter.Metadata("identity").Length);
                string plain = Answer(Model), beside = Answer(Model, new SessionAdapter(adapter));
                string twice = Answer(Model, new SessionAdapter(adapter, 2));
                Check.Equal(3, new[] { plain, beside, twice }.Distinct().Count());
                var options = new ModelOptions { Merge = new[] { new AdapterSource(path, 2) } };
                using (Model merged = Runtime.LoadModel(Shared.TinyModel, options)) Check.Equal(twice, Answer(merged));
                Check.Fails(Status.InvalidArgument, () => Answer(Model, new SessionAdapter(adapter, 0)));
            }
            Check.Fails(Status.NotFound, () => Model.LoadAdapter("/no/such/adapter"));
        }

        private static string Answer(Model model, params SessionAdapter[] adapters)
        {
            var options = new SessionOptions
            {
                Strategy = "full + base(theta=10000)",
                KvType = DataType.F32,
                Adapters = adapters
            };
            using (Session session = model.CreateSession(options))
            {
                Check.Equal(32, session.Fingerprint().Length);
                session.Feed("Rain fell on the harbour all night.");
                return string.Concat(session.Generate(Tokens(24)));
            }
        }

        [Test]
        private void Tokenizers()
        {
            const string text = "Rain fell on the harbour: 雨 😀";
            using (Tokenizer tokenizer = Model.GetTokenizer())
            {
                int[] ids = tokenizer.Encode(text);
                Check.Equal(tokenizer.BosToken, ids[0]);
                Check.Equal(text, tokenizer.Decode(ids));
                Check.Sequence(ids, tokenizer.Encode(Encoding.UTF8.GetBytes(text)));
                Check.Sequence(ids.Skip(1), tokenizer.Encode(text, TextFlags.NoBos));
                Check.Equal(text, Encoding.UTF8.GetString(ids.SelectMany(tokenizer.TokenBytes).ToArray()).Trim());
                Check.Equal("<s>", tokenizer.Decode(new[] { 1 }, DecodeFlags.Special));
                Check.True(tokenizer.IsEos(2) && !tokenizer.IsEos(3), "2 ends a text");
                Check.Equal(320, tokenizer.VocabSize);
                Check.Equal("", tokenizer.Decode(new int[0]));
                using (Tokenizer alone = Runtime.LoadTokenizer(Shared.TinyModel)) Check.Sequence(ids, alone.Encode(text));
            }
        }

        [Test]
        private void WithoutWeights()
        {
            var dca = new SessionOptions { Strategy = "dca", ExpectedTokens = 5000 };
            Runtime.CheckSession(Shared.TinyModel, dca);
            Model.CheckSession(dca);
            foreach (var wrong in new Dictionary<string, Status>
            {
                ["full"] = Status.Overflow, ["fool"] = Status.BadStrategy, ["beacon"] = Status.Unsupported
            })
            {
                var options = new SessionOptions { Strategy = wrong.Key, ExpectedTokens = 5000 };
                Check.Fails(wrong.Value, () => Runtime.CheckSession(Shared.TinyModel, options));
                Check.Fails(wrong.Value, () => Model.CheckSession(options));
            }
            Check.Equal(Model.DescribeStrategy(dca), Runtime.DescribeStrategy(Shared.TinyModel, dca));
            MemoryPlan plan = Runtime.PlanMemory(Shared.TinyModel, 1000, null, dca);
            Check.True(plan.KvHostBytes > 0 && plan.WeightBytes > 0, "the plan has bytes");
            Check.Equal(0L, plan.KvFileBytes);
            RateEstimate estimate = Model.EstimateRates(1000, dca);
            Check.True(estimate.PrefillNanoseconds > 0, "the estimate has a time");
            Check.Equal(estimate.DecodeTokenNanoseconds, estimate.DecodeTokenColdNanoseconds);
        }
    }
}
