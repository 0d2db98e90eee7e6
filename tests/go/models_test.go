package tests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	quire "quire.dev/go"
)

func TestModelInfo(t *testing.T) {
	info := try(sharedModel().Info())
	check(t, "the layers", info.Layers, 2)
	check(t, "the vocabulary", info.VocabSize, 320)
	check(t, "the type", info.WeightType, quire.TypeF32)
	check(t, "the architecture", try(sharedModel().Metadata("architecture")), "LlamaForCausalLM")
	_, err := sharedModel().Metadata("colour")
	fails(t, err, quire.ErrNotFound)
	files := try(quire.DescribeModelFiles(tinyModel))
	check(t, "the format", files.Format, "safetensors")
	check(t, "that tensors have shapes", len(files.Tensors[0].Shape) > 0, true)
}

func TestQuantize(t *testing.T) {
	check(t, "that there is a recipe", slices.Contains(quire.Quantizations(), "q4_k_m"), true)
	out, progress := filepath.Join(t.TempDir(), "model.gguf"), int64(0)
	must(quire.Quantize(t.Context(), tinyModel, out, &quire.QuantizeOptions{Recipe: "q8_0", Threads: 1,
		Progress: func(done, total int64) { progress = total - done }}))
	check(t, "what is left", progress, 0)
	files := try(quire.DescribeModelFiles(out))
	check(t, "its format", files.Format, "gguf")
	check(t, "its metadata", files.Metadata["general.architecture"], any("llama"))
	runtime, _ := shared()
	model := try(runtime.LoadModel(t.Context(), out, &quire.ModelOptions{ActivationType: quire.TypeF32, Load: quire.LoadRead}))
	check(t, "its type", try(model.Info()).WeightType, quire.TypeQ80)
	must(model.Close())
	packed := filepath.Join(t.TempDir(), "packed")
	must(try(runtime.LoadModel(t.Context(), out, &quire.ModelOptions{PackedDirectory: packed})).Close())
	check(t, "files of packed weights", len(try(os.ReadDir(packed))), 1)
	fails(t, quire.Quantize(t.Context(), tinyModel, out, &quire.QuantizeOptions{Recipe: "q1"}), quire.ErrInvalidArgument)
}

func TestDevices(t *testing.T) {
	runtime, _ := shared()
	cpu := last(try(runtime.Devices()))
	check(t, "a device", cpu.Name, "cpu")
	check(t, "its kind", cpu.Kind, quire.DeviceCPU)
	check(t, "whether it is usable", cpu.Flags, quire.DeviceUsable)
	model := try(runtime.LoadModel(t.Context(), tinyModel, &quire.ModelOptions{Device: "cpu"}))
	check(t, "why it runs there", try(model.Metadata("device_reason")), "asked for")
	must(model.Close())
	_, err := runtime.LoadModel(t.Context(), tinyModel, &quire.ModelOptions{Device: "gpu"})
	fails(t, err, quire.ErrInvalidArgument)
}

func TestAdapters(t *testing.T) {
	runtime, _ := shared()
	path := filepath.Join(adapters, "attention")
	adapter := try(sharedModel().LoadAdapter(t.Context(), path, &quire.AdapterOptions{Progress: func(int64, int64) {}}))
	info := try(adapter.Info())
	check(t, "its rank", info.Rank, 4)
	check(t, "what it does", info.Flags&quire.AdapterReplacesEmbedding, quire.AdapterReplacesEmbedding)
	check(t, "its base", try(adapter.Metadata("base_model")), "text_256")
	answer := func(model *quire.Model, scale float64) string {
		options := quire.SessionOptions{Strategy: "full + base(theta=10000)", KVType: quire.TypeF32}
		if scale != 0 {
			options.Adapters = []quire.SessionAdapter{{Adapter: adapter, Scale: scale}}
		}
		s := try(model.NewSession(&options))
		defer s.Close()
		must(s.FeedText("Rain fell on the harbour all night.", 0))
		return try(s.Answer(t.Context(), &quire.StreamOptions{MaxTokens: 24, Flags: quire.StreamIgnoreEOS}))
	}
	plain, twice := answer(sharedModel(), 0), answer(sharedModel(), 2)
	merged := try(runtime.LoadModel(t.Context(), tinyModel, &quire.ModelOptions{Merge: []quire.AdapterSource{{Path: path, Scale: 2}}}))
	check(t, "the merged model's answer", answer(merged, 0), twice)
	check(t, "that it changes the answer", plain == twice, false)
	_, err := sharedModel().LoadAdapter(t.Context(), "/no/such/adapter", nil)
	fails(t, err, quire.ErrNotFound)
	must(adapter.Close())
	for _, broken := range []*quire.Adapter{nil, adapter} {
		_, err = sharedModel().NewSession(&quire.SessionOptions{Adapters: []quire.SessionAdapter{{Adapter: broken, Scale: 1}}})
		fails(t, err, quire.ErrInvalidArgument)
	}
}

func TestTokenizer(t *testing.T) {
	runtime, _ := shared()
	tokenizer := try(sharedModel().Tokenizer())
	text := "Rain fell on the harbour: 雨 😀"
	ids := try(tokenizer.Encode(text, 0))
	bos, there := tokenizer.BOS()
	check(t, "that it begins with BOS", there && ids[0] == bos, true)
	check(t, "the text", try(tokenizer.Decode(ids, 0)), text)
	same(t, "without BOS", try(tokenizer.Encode(text, quire.TextNoBOS)), ids[1:])
	bytes := []byte{}
	for _, id := range ids {
		bytes = append(bytes, try(tokenizer.TokenBytes(id))...)
	}
	check(t, "the bytes", strings.TrimSpace(string(bytes)), text)
	check(t, "whether 2 ends a text", tokenizer.IsEOS(2), true)
	alone := try(runtime.LoadTokenizer(filepath.Join(tinyModel, "tokenizer.model")))
	same(t, "the same alone", try(alone.Encode(text, 0)), ids)
	check(t, "the vocabulary", alone.VocabSize(), tokenizer.VocabSize())
	check(t, "nothing", len(try(tokenizer.Encode("", quire.TextNoBOS))), 0)
	must(alone.Close())
	check(t, "a closed one's vocabulary", alone.VocabSize(), 0)
	check(t, "a closed one's end", alone.IsEOS(2), false)
	_, there = alone.BOS()
	check(t, "a closed one's BOS", there, false)
}

func TestChat(t *testing.T) {
	names := []string{}
	for _, template := range try(quire.ChatTemplates()) {
		names = append(names, template.Name)
	}
	check(t, "that llama2 is known", slices.Contains(names, "llama2"), true)
	tokenizer := try(sharedModel().Tokenizer())
	_, err := tokenizer.ChatTemplate()
	fails(t, err, quire.ErrNotFound)
	messages := []quire.Message{{Role: "system", Text: "Be brief."}, {Role: "user", Text: "one</s>"}}
	llama := &quire.ChatOptions{TemplateName: "llama2"}
	check(t, "the text", try(tokenizer.RenderChat(messages, llama)), "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]")
	check(t, "the date", strings.Contains(try(tokenizer.RenderChat(messages, &quire.ChatOptions{TemplateName: "llama3.1",
		Date: "2025-03-09"})), "Today Date: 09 Mar 2025\n"), true)
	ids := try(tokenizer.EncodeChat(messages, llama))
	s := session(t, quire.SessionOptions{Strategy: "dca"})
	must(s.FeedMessages(messages, llama))
	same(t, "what was fed", try(s.Tokens()), ids)
	drain(t, s, quire.StreamOptions{MaxTokens: 3, Flags: quire.StreamIgnoreEOS})
	must(s.FeedMessages([]quire.Message{{Role: "user", Text: "three"}}, nil))
}

func TestWithoutWeights(t *testing.T) {
	runtime, model := shared()
	long := &quire.SessionOptions{Strategy: "dca", ExpectedTokens: 5000}
	must(runtime.CheckSession(tinyModel, nil, long))
	must(model.CheckSession(long))
	for strategy, status := range map[string]quire.Status{"full": quire.ErrOverflow, "fool": quire.ErrBadStrategy,
		"beacon": quire.ErrUnsupported} {
		options := &quire.SessionOptions{Strategy: strategy, ExpectedTokens: 5000}
		fails(t, runtime.CheckSession(tinyModel, &quire.ModelOptions{}, options), status)
		fails(t, model.CheckSession(options), status)
	}
	check(t, "the strategy", try(runtime.DescribeStrategy(tinyModel, nil, long)), try(model.DescribeStrategy(long)))
	plan := try(runtime.PlanMemory(tinyModel, nil, long, 1000))
	check(t, "the plan", plan.KVHostBytes > 0 && plan.KVFileBytes == 0, true)
	estimate := try(model.EstimateRates(long, 1000))
	check(t, "the estimate", estimate.Prefill > 0 && estimate.DecodeToken > 0, true)
}

func TestStrategies(t *testing.T) {
	terms := try(quire.ListStrategies(&quire.StrategyOptions{TrainLen: 4096}))
	check(t, "the number of terms", len(terms) > 20, true)
	for _, term := range terms {
		check(t, "that it is described", term.Description != "" && term.Kind != "", true)
	}
	check(t, "the canonical form", strings.Contains(try(quire.DescribeStrategy("dca", &quire.StrategyOptions{TrainLen: 4096})), "chunk=3072"), true)
	matrix := try(quire.StrategyPositions("dca(chunk=6, cap=9)", &quire.StrategyOptions{TrainLen: 10}, &quire.PositionView{Queries: 12, Keys: 12}))
	same(t, "the last row", matrix[11*12:], []float64{9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0})
	check(t, "what is not visible", matrix[1] != matrix[1], true)
	_, err := quire.DescribeStrategy("dca", nil)
	fails(t, err, quire.ErrInvalidArgument)
}
