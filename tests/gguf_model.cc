#include "tests/gguf_model.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace quire::test {
namespace {

struct Block {
  uint32_t type;
  uint64_t elements, bytes;
  std::array<int, 2> scales;  // where a block has an f16 scale or offset; -1: nowhere
};

constexpr Block kBlocks[] = {{0, 1, 4, {-1, -1}},    {1, 1, 2, {-1, -1}},     {30, 1, 2, {-1, -1}},
                             {8, 32, 34, {0, -1}},   {2, 32, 18, {0, -1}},    {3, 32, 20, {0, 2}},
                             {6, 32, 22, {0, -1}},   {7, 32, 24, {0, 2}},     {12, 256, 144, {0, 2}},
                             {13, 256, 176, {0, 2}}, {10, 256, 84, {80, 82}}, {11, 256, 110, {108, -1}},
                             {20, 32, 18, {0, -1}},  {23, 256, 136, {0, -1}}, {14, 256, 210, {208, -1}}};

const Block& block_of(uint32_t type) {
  return *std::find_if(std::begin(kBlocks), std::end(kBlocks) - 1, [&](const Block& b) { return b.type == type; });
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& bytes, std::string_view text) {
  append<uint64_t>(bytes, text.size());
  bytes += text;
}

template <typename T>
std::string stored(GgufKind kind, T value) {
  std::string bytes;
  append<uint32_t>(bytes, kind);
  append(bytes, value);
  return bytes;
}

std::string stored_array(GgufKind kind, size_t n) {
  std::string bytes;
  append<uint32_t>(bytes, kGgufArray);
  append<uint32_t>(bytes, kind);
  append<uint64_t>(bytes, n);
  return bytes;
}

template <typename T>
std::string stored_numbers(GgufKind kind, const std::vector<T>& values) {
  std::string bytes = stored_array(kind, values.size());
  for (const T value : values) append(bytes, value);
  return bytes;
}

// Numbers that are the same in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }

 private:
  uint64_t state_;
};

// Values in (-0.25, 0.25), and bytes of any numbers with a scale of 2^-9.
std::string random_data(const Block& block, uint64_t elements, uint64_t seed) {
  Random random(seed);
  std::string data;
  for (uint64_t i = 0; i < elements / block.elements; ++i) {
    if (block.elements > 1) {
      const size_t begin = data.size();
      for (uint64_t j = 0; j < block.bytes; ++j) data += static_cast<char>(random.next());
      constexpr uint16_t kScale = 6 << 10;
      for (const int at : block.scales) {
        if (at >= 0) std::memcpy(&data[begin + static_cast<size_t>(at)], &kScale, sizeof kScale);
      }
    } else if (block.type == 1) {  // f16: a sign, an exponent of 2^-3 to 2^-10, 10 bits
      append(data, static_cast<uint16_t>((random.next() & 0x83ff) | (5 + random.next() % 8) << 10));
    } else {
      const float value = (static_cast<float>(random.next() % 4096) - 2048) / 8192;
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      block.type == 0 ? append(data, bits) : append(data, static_cast<uint16_t>(bits >> 16));
    }
  }
  return data;
}

void add_bpe(GgufModel& model) {
  std::vector<std::string> tokens;
  for (int c = '!'; c <= '~'; ++c) tokens.emplace_back(1, static_cast<char>(c));
  for (const char* more : {"\xC4\xA0", "\xC4\x8A", "th", "the", "\xC4\xA0the", "<|im_start|>", kGgufBpeControl}) {
    tokens.emplace_back(more);
  }
  std::vector<int32_t> types(tokens.size(), 1);
  types[types.size() - 1] = types[types.size() - 2] = 3;
  const auto last = static_cast<uint32_t>(tokens.size()) - 1;
  model.set("tokenizer.ggml.model", "gpt2");
  model.set("tokenizer.ggml.pre", "qwen2");
  model.set("tokenizer.ggml.tokens", tokens);
  model.set("tokenizer.ggml.token_type", types);
  model.set("tokenizer.ggml.merges", std::vector<std::string>{"t h", "th e", "\xC4\xA0 the"});
  model.set("tokenizer.ggml.bos_token_id", last - 1);
  model.set("tokenizer.ggml.eos_token_id", last);
  model.set(
      "tokenizer.chat_template",
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
      "+ '\n'}}{% endfor %}");
}

void add_sentencepiece(GgufModel& model) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  std::vector<float> scores = {0, 0, 0};
  const auto add = [&](std::string text) {
    tokens.push_back(std::move(text)), types.push_back(1), scores.push_back(-static_cast<float>(tokens.size()));
  };
  for (const char* text : {"th", "the", "\xE2\x96\x81the", "\xE2\x96\x81"}) add(text);
  for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c));
  model.set("tokenizer.ggml.model", "llama");
  model.set("tokenizer.ggml.tokens", tokens);
  model.set("tokenizer.ggml.token_type", types);
  model.set("tokenizer.ggml.scores", scores);
  model.set("tokenizer.ggml.bos_token_id", uint32_t{1});
  model.set("tokenizer.ggml.eos_token_id", uint32_t{2});
  model.set("tokenizer.ggml.unknown_token_id", uint32_t{0});
}

uint64_t n_tokens(const std::string& stored_tokens) {
  uint64_t n = 0;
  std::memcpy(&n, stored_tokens.data() + 8, sizeof n);
  return n;
}

}  // namespace

std::string* GgufModel::find(std::string_view key) {
  const auto at = std::find_if(metadata.begin(), metadata.end(), [&](const auto& entry) { return entry.first == key; });
  return at == metadata.end() ? nullptr : &at->second;
}

GgufTensorData* GgufModel::tensor(std::string_view name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  return at == tensors.end() ? nullptr : &*at;
}

void GgufModel::put(std::string_view key, std::string type_and_value) {
  if (std::string* old = find(key)) {
    *old = std::move(type_and_value);
  } else {
    metadata.emplace_back(key, std::move(type_and_value));
  }
}

void GgufModel::set(std::string_view key, uint32_t value) { put(key, stored(kGgufU32, value)); }
void GgufModel::set(std::string_view key, float value) { put(key, stored(kGgufF32, value)); }
void GgufModel::set(std::string_view key, bool value) { put(key, stored(kGgufBool, static_cast<uint8_t>(value))); }

void GgufModel::set(std::string_view key, std::string_view value) {
  std::string bytes;
  append<uint32_t>(bytes, kGgufString);
  append_text(bytes, value);
  put(key, std::move(bytes));
}

void GgufModel::set(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes = stored_array(kGgufString, values.size());
  for (const std::string& value : values) append_text(bytes, value);
  put(key, std::move(bytes));
}

void GgufModel::set(std::string_view key, const std::vector<int32_t>& values) {
  put(key, stored_numbers(kGgufI32, values));
}
void GgufModel::set(std::string_view key, const std::vector<float>& values) {
  put(key, stored_numbers(kGgufF32, values));
}

void GgufModel::remove(std::string_view key) {
  std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
}

void GgufModel::remove_tensor(std::string_view name) {
  std::erase_if(tensors, [&](const auto& t) { return t.name == name; });
}

void GgufModel::add_tensor(std::string name, std::vector<uint64_t> dims, uint32_t type) {
  uint64_t elements = 1;
  for (const uint64_t n : dims) elements *= n;
  std::string data = random_data(block_of(type), elements, tensors.size());
  tensors.push_back({std::move(name), std::move(dims), type, std::move(data), {}});
}

std::string GgufModel::file() const {
  std::string bytes = "GGUF";
  append(bytes, version);
  append(bytes, n_tensors.value_or(tensors.size()));
  append(bytes, n_keys.value_or(metadata.size()));
  for (const auto& [key, value] : metadata) {
    append_text(bytes, key);
    bytes += value;
  }
  const uint64_t step = std::max<uint64_t>(alignment, 1);
  const auto rounded = [&](uint64_t n) { return (n + step - 1) / step * step; };
  uint64_t at = 0;
  for (const GgufTensorData& t : tensors) {
    append_text(bytes, t.name);
    append(bytes, static_cast<uint32_t>(t.dims.size()));
    for (const uint64_t n : t.dims) append(bytes, n);
    append(bytes, t.type);
    append(bytes, t.offset.value_or(at));
    at += rounded(t.data.size());
  }
  for (const GgufTensorData& t : tensors) {
    bytes.resize(rounded(bytes.size()));
    bytes += t.data;
  }
  bytes.resize(rounded(bytes.size()));
  return bytes;
}

std::vector<GgufModel> GgufModel::split(uint32_t n) const {
  std::vector<GgufModel> parts(n);
  for (GgufModel& part : parts) part.version = version, part.alignment = alignment;
  parts[0].metadata = metadata;
  for (size_t i = 0; i < tensors.size(); ++i) parts[i % n].tensors.push_back(tensors[i]);
  for (uint32_t i = 0; i < n; ++i) {
    parts[i].set("split.no", i);
    parts[i].set("split.count", n);
  }
  return parts;
}

GgufModel make_gguf_model(const GgufShape& shape) {
  GgufModel model;
  const bool is_fused = shape.architecture == "phi3";
  const auto add = [&](const char* key, auto value) { model.set(shape.architecture + "." + key, value); };
  model.set("general.architecture", shape.architecture);
  add("block_count", kGgufLayers);
  add("context_length", uint32_t{256});
  add("embedding_length", kGgufHidden);
  add("feed_forward_length", kGgufBetween);
  add("attention.head_count", kGgufHeads);
  add("attention.head_count_kv", kGgufKvHeads);
  add("attention.layer_norm_rms_epsilon", 1e-5f);
  add("rope.freq_base", 10000.0f);
  if (shape.architecture == "granite") {
    add("embedding_scale", 12.0f);
    add("residual_scale", 0.22f);
    add("attention.scale", 0.125f);
    add("logit_scale", 8.0f);
  }
  const bool is_gemma = shape.architecture == "gemma3";
  if (is_gemma) {
    add("attention.sliding_window", uint32_t{32});
    add("attention.sliding_window_pattern", uint32_t{2});
  }
  shape.is_bpe ? add_bpe(model) : add_sentencepiece(model);

  const uint64_t vocabulary = n_tokens(*model.find("tokenizer.ggml.tokens"));
  const uint64_t head = kGgufHidden / kGgufHeads, kv = head * kGgufKvHeads;
  size_t n_matrices = 0;
  const auto matrix = [&](const std::string& name, uint64_t columns, uint64_t rows) {
    const uint32_t type = shape.types[n_matrices++ % shape.types.size()];
    model.add_tensor(name + ".weight", {columns, rows}, columns % block_of(type).elements == 0 ? type : 0);
  };
  const auto vector = [&](const std::string& name, uint64_t n) { model.add_tensor(name, {n}, 0); };
  matrix("token_embd", kGgufHidden, vocabulary);
  for (uint32_t layer = 0; layer < kGgufLayers; ++layer) {
    const std::string l = "blk." + std::to_string(layer) + ".";
    vector(l + "attn_norm.weight", kGgufHidden);
    if (is_fused) {
      matrix(l + "attn_qkv", kGgufHidden, kGgufHidden + 2 * kv);
    } else {
      matrix(l + "attn_q", kGgufHidden, kGgufHidden);
      matrix(l + "attn_k", kGgufHidden, kv);
      matrix(l + "attn_v", kGgufHidden, kv);
    }
    matrix(l + "attn_output", kGgufHidden, kGgufHidden);
    if (shape.has_biases) {
      vector(l + "attn_q.bias", kGgufHidden);
      vector(l + "attn_k.bias", kv);
      vector(l + "attn_v.bias", kv);
    }
    if (is_gemma) {
      vector(l + "post_attention_norm.weight", kGgufHidden);
      vector(l + "post_ffw_norm.weight", kGgufHidden);
    }
    if (shape.architecture == "qwen3" || is_gemma) {
      vector(l + "attn_q_norm.weight", head);
      vector(l + "attn_k_norm.weight", head);
    }
    vector(l + "ffn_norm.weight", kGgufHidden);
    if (!is_fused) matrix(l + "ffn_gate", kGgufHidden, kGgufBetween);
    matrix(l + "ffn_up", kGgufHidden, is_fused ? 2 * kGgufBetween : kGgufBetween);
    matrix(l + "ffn_down", kGgufBetween, kGgufHidden);
  }
  vector("output_norm.weight", kGgufHidden);
  if (!shape.is_tied) matrix("output", kGgufHidden, vocabulary);
  return model;
}

}  // namespace quire::test
