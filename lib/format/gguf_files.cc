#include "lib/format/gguf_files.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <span>
#include <utility>

#include "lib/support/quantization.h"

namespace quire {
namespace {

constexpr int64_t kMaxParts = 4096;
constexpr int64_t kMaxSmallTensor = 1 << 16;  // elements

constexpr struct {
  std::string_view gguf, hugging_face;
} kNames[] = {{"token_embd.weight", "model.embed_tokens.weight"},
              {"output_norm.weight", "model.norm.weight"},
              {"output.weight", "lm_head.weight"}};

// Of tensors of a layer: blk.LAYER.NAME.SUFFIX and model.layers.LAYER.NAME.SUFFIX.
constexpr struct {
  std::string_view gguf, hugging_face;
} kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_qkv", "self_attn.qkv_proj"},  {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},           {"ffn_down", "mlp.down_proj"}};
// The norms of layers that have some behind attention and the MLP too; the others' only one there is ffn_norm.
constexpr struct {
  std::string_view gguf, hugging_face;
} kSandwichNames[] = {{"post_attention_norm", "post_attention_layernorm"},
                      {"ffn_norm", "pre_feedforward_layernorm"},
                      {"post_ffw_norm", "post_feedforward_layernorm"}};
// Of architectures whose gate and up projections are one tensor; GGUF calls it as others call their up projection.
constexpr std::string_view kFusedUp = "ffn_up", kFusedGateUp = "mlp.gate_up_proj";

constexpr std::string_view kInterleavedArchitectures[] = {"llama", "mistral", "mistral3", "smollm3", "granite"};

Result<int64_t> integer_or(const GgufHeader& header, std::string_view key, int64_t otherwise) {
  const auto at = header.metadata.find(key);
  if (at == header.metadata.end()) return otherwise;
  if (const int64_t* value = at->second.integer()) return *value;
  return Status(Code::kBadFile, std::string(key) + " must be an integer");
}

TensorInfo info_of(const GgufTensor& tensor) {
  TensorInfo info;
  info.dtype = tensor.type->name;
  info.shape = tensor.shape;
  info.begin = tensor.begin, info.end = tensor.end;
  return info;
}

struct Opened {
  std::unique_ptr<ReadFile> file;
  GgufHeader header;
};

Result<Opened> open_file(const std::string& path) {
  Opened opened;
  QUIRE_ASSIGN(opened.file, ReadFile::open(path));
  const ReadAt read = [&](int64_t offset, std::span<std::byte> out) { return opened.file->read_at(offset, out); };
  auto header = read_gguf_header(read, opened.file->size());
  if (!header.ok()) return header.status().with_context(path);
  opened.header = std::move(*header);
  return opened;
}

// "-00001-of-00003.gguf"
std::string part_ending(int64_t part, int64_t n_parts) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05lld-of-%05lld.gguf", static_cast<long long>(part + 1),
                static_cast<long long>(n_parts));
  return text;
}

// Checks that the file says that it is this one of so many.
Status check_part(const std::string& path, const GgufHeader& header, int64_t part, int64_t n_parts) {
  auto number = integer_or(header, "split.no", 0), count = integer_or(header, "split.count", 1);
  if (!number.ok()) return number.status().with_context(path);
  if (!count.ok()) return count.status().with_context(path);
  if (*number == part && *count == n_parts) return {};
  return Status(Code::kBadFile, path + " says it is file " + std::to_string(*number + 1) + " of " +
                                    std::to_string(*count) + "; expected file " + std::to_string(part + 1) + " of " +
                                    std::to_string(n_parts) +
                                    (part == 0 ? ": a split model is opened by its first file" : ""));
}

// Renames PREFIX LAYER . NAME . SUFFIX; `name` of NAME is empty if it knows none. Other tensors keep their name.
template <typename Name>
std::string rename_layer_tensor(std::string_view tensor, std::string_view prefix, std::string_view new_prefix,
                                const Name& name) {
  const size_t name_at = tensor.find('.', prefix.size()), suffix_at = tensor.rfind('.');
  if (!tensor.starts_with(prefix) || name_at >= suffix_at) return std::string(tensor);
  const std::string_view found = name(tensor.substr(name_at + 1, suffix_at - name_at - 1));
  if (found.empty()) return std::string(tensor);
  const std::string_view layer = tensor.substr(prefix.size(), name_at - prefix.size());
  return std::string(new_prefix) + std::string(layer) + "." + std::string(found) +
         std::string(tensor.substr(suffix_at));
}

constexpr std::string_view kGgufPrefix = "blk.", kHuggingFacePrefix = "model.layers.";

}  // namespace

Result<GgufModel> open_gguf(const std::string& path, const CancelToken* cancel) {
  QUIRE_TRY(check_cancelled(cancel));
  QUIRE_ASSIGN(Opened first, open_file(path));
  auto count = integer_or(first.header, "split.count", 1);
  if (!count.ok()) return count.status().with_context(path);
  const int64_t n_parts = std::max<int64_t>(*count, 1);  // 0: files that were never split say so, too
  if (n_parts > kMaxParts) {
    return Status(Code::kBadFile, path + ": split.count is " + std::to_string(n_parts) + "; at most " +
                                      std::to_string(kMaxParts) + " files are expected");
  }
  GgufModel model;
  model.files.push_back(std::move(first.file));
  model.header = std::move(first.header);
  if (n_parts == 1) return model;
  QUIRE_TRY(check_part(path, model.header, 0, n_parts));
  const std::string ending = part_ending(0, n_parts);
  if (!path.ends_with(ending)) {
    return Status(Code::kBadFile,
                  path + " is the first of " + std::to_string(n_parts) + " files; its name must end in " + ending);
  }
  const std::string stem = path.substr(0, path.size() - ending.size());
  for (int64_t part = 1; part < n_parts; ++part) {
    QUIRE_TRY(check_cancelled(cancel));
    const std::string other = stem + part_ending(part, n_parts);
    auto file = open_file(other);
    if (file.status().code() == Code::kNotFound) {
      return Status(Code::kNotFound, path + " is the first of " + std::to_string(n_parts) + " files, of which file " +
                                         std::to_string(part + 1) + " is missing: " + other);
    }
    if (!file.ok()) return file.status();
    Opened opened = std::move(*file);
    QUIRE_TRY(check_part(other, opened.header, part, n_parts));
    for (auto& [name, tensor] : opened.header.tensors) tensor.file = static_cast<size_t>(part);
    model.header.tensors.merge(opened.header.tensors);
    if (!opened.header.tensors.empty()) {
      return Status(Code::kBadFile,
                    other + ": tensor " + opened.header.tensors.begin()->first + " is in another file too");
    }
    model.files.push_back(std::move(opened.file));
  }
  return model;
}

Result<std::vector<float>> read_gguf_values(const GgufModel& model, std::string_view name) {
  const auto at = model.header.tensors.find(name);
  if (at == model.header.tensors.end()) return std::vector<float>();
  const GgufTensor& tensor = at->second;
  const ReadFile& file = *model.files[tensor.file];
  int64_t n = 1;
  for (const int64_t dimension : tensor.shape) n *= dimension;
  if (n > kMaxSmallTensor) {
    return Status(Code::kBadFile, file.path() + ": tensor " + at->first + " has " + std::to_string(n) +
                                      " elements; at most " + std::to_string(kMaxSmallTensor) + " are expected");
  }
  QUIRE_ASSIGN(const ElementType type, check_tensor(file.path(), name, info_of(tensor), tensor.shape));
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.end - tensor.begin));
  QUIRE_TRY(file.read_at(tensor.begin, bytes));
  std::vector<float> values(static_cast<size_t>(n));
  dequantize(type, bytes.data(), n, values.data());
  return values;
}

std::string hugging_face_name(std::string_view gguf_name, bool fused_projections, bool sandwich_norms) {
  for (const auto& [gguf, hugging_face] : kNames) {
    if (gguf_name == gguf) return std::string(hugging_face);
  }
  return rename_layer_tensor(gguf_name, kGgufPrefix, kHuggingFacePrefix, [&](std::string_view name) {
    if (fused_projections && name == kFusedUp) return kFusedGateUp;
    if (sandwich_norms) {
      for (const auto& [gguf, hugging_face] : kSandwichNames) {
        if (name == gguf) return hugging_face;
      }
    }
    for (const auto& [gguf, hugging_face] : kLayerNames) {
      if (name == gguf) return hugging_face;
    }
    return std::string_view();
  });
}

std::string gguf_name(std::string_view hugging_face_name, bool sandwich_norms) {
  for (const auto& [gguf, hugging_face] : kNames) {
    if (hugging_face_name == hugging_face) return std::string(gguf);
  }
  return rename_layer_tensor(hugging_face_name, kHuggingFacePrefix, kGgufPrefix, [&](std::string_view name) {
    if (name == kFusedGateUp) return kFusedUp;
    if (sandwich_norms) {
      for (const auto& [gguf, hugging_face] : kSandwichNames) {
        if (name == hugging_face) return gguf;
      }
    }
    for (const auto& [gguf, hugging_face] : kLayerNames) {
      if (name == hugging_face) return gguf;
    }
    return std::string_view();
  });
}

bool gguf_interleaves_heads(std::string_view architecture) {
  return std::find(std::begin(kInterleavedArchitectures), std::end(kInterleavedArchitectures), architecture) !=
         std::end(kInterleavedArchitectures);
}

bool is_rotated_projection(std::string_view hugging_face_name) {
  return hugging_face_name.find(".self_attn.q_proj.") != std::string_view::npos ||
         hugging_face_name.find(".self_attn.k_proj.") != std::string_view::npos;
}

Result<std::unique_ptr<TensorFiles>> gguf_tensor_files(GgufModel model, const ModelConfig& config,
                                                       TensorFiles::Access access) {
  const auto architecture = model.header.metadata.find("general.architecture");
  const std::string* name = architecture == model.header.metadata.end() ? nullptr : architecture->second.string();
  const bool interleaved = name && gguf_interleaves_heads(*name);
  std::vector<TensorMap> tensors(model.files.size());
  for (const auto& [gguf_name, tensor] : model.header.tensors) {
    TensorInfo info = info_of(tensor);
    std::string known = hugging_face_name(gguf_name, config.fused_projections, config.sandwich_norms);
    if (interleaved && is_rotated_projection(known)) info.interleaved_rows = config.head_dim;
    if (!tensors[tensor.file].emplace(std::move(known), std::move(info)).second) {
      return Status(Code::kBadFile,
                    model.files[tensor.file]->path() + ": tensor " + gguf_name + " is there under two names");
    }
  }
  auto files = std::make_unique<TensorFiles>(access);
  for (size_t i = 0; i < tensors.size(); ++i) QUIRE_TRY(files->add(std::move(model.files[i]), std::move(tensors[i])));
  return files;
}

}  // namespace quire
