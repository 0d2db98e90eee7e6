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
} kLayerNames[] = {{"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
                   {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
                   {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
                   {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
                   {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                   {"ffn_down", "mlp.down_proj"}};

// Their converters store Q and K for a rotation of neighbouring elements.
constexpr std::string_view kInterleavedArchitectures[] = {"llama", "smollm3"};

bool is_interleaved(std::string_view gguf_name) {
  return gguf_name.starts_with("blk.") &&
         (gguf_name.find(".attn_q.") != std::string_view::npos || gguf_name.find(".attn_k.") != std::string_view::npos);
}

Result<int64_t> integer_or(const GgufHeader& header, std::string_view key, int64_t otherwise) {
  const auto at = header.metadata.find(key);
  if (at == header.metadata.end()) return otherwise;
  if (const int64_t* value = at->second.integer()) return *value;
  return Status(Code::kBadFile, std::string(key) + " must be an integer");
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
                                    std::to_string(n_parts));
}

}  // namespace

bool is_gguf_path(std::string_view path) { return path.ends_with(".gguf"); }

Result<GgufModel> open_gguf(const std::string& path, const CancelToken* cancel) {
  QUIRE_TRY(check_cancelled(cancel));
  QUIRE_ASSIGN(Opened first, open_file(path));
  GgufModel model;
  model.path = path;
  auto count = integer_or(first.header, "split.count", 1);
  if (!count.ok()) return count.status().with_context(path);
  const int64_t n_parts = std::max<int64_t>(*count, 1);  // 0: files that were never split say so, too
  if (n_parts > kMaxParts) {
    return Status(Code::kBadFile, path + ": split.count is " + std::to_string(n_parts) + "; at most " +
                                      std::to_string(kMaxParts) + " files are expected");
  }
  if (n_parts > 1) {
    QUIRE_TRY(check_part(path, first.header, 0, n_parts));
    if (!path.ends_with(part_ending(0, n_parts))) {
      return Status(Code::kBadFile, path + " is the first of " + std::to_string(n_parts) +
                                        " files; its name must end in " + part_ending(0, n_parts));
    }
  }
  model.parts.push_back({std::move(first.file), std::exchange(first.header.tensors, {})});
  model.header = std::move(first.header);
  const std::string stem = path.substr(0, path.size() - (n_parts > 1 ? part_ending(0, n_parts).size() : 0));
  for (int64_t part = 1; part < n_parts; ++part) {
    QUIRE_TRY(check_cancelled(cancel));
    const std::string other = stem + part_ending(part, n_parts);
    QUIRE_ASSIGN(Opened opened, open_file(other));
    QUIRE_TRY(check_part(other, opened.header, part, n_parts));
    model.parts.push_back({std::move(opened.file), std::move(opened.header.tensors)});
  }
  return model;
}

Result<std::vector<float>> read_gguf_values(const GgufModel& model, std::string_view name) {
  for (const GgufModel::Part& part : model.parts) {
    const auto at = part.tensors.find(name);
    if (at == part.tensors.end()) continue;
    const GgufTensor& tensor = at->second;
    int64_t n = 1;
    for (const int64_t dimension : tensor.shape) n *= dimension;
    if (n > kMaxSmallTensor) {
      return Status(Code::kBadFile, part.file->path() + ": tensor " + at->first + " has " + std::to_string(n) +
                                        " elements; at most " + std::to_string(kMaxSmallTensor) + " are expected");
    }
    const TensorInfo info{tensor.type->name, tensor.shape, tensor.begin, tensor.end};
    QUIRE_ASSIGN(const ElementType type, check_tensor(part.file->path(), name, info, tensor.shape));
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.end - tensor.begin));
    QUIRE_TRY(part.file->read_at(tensor.begin, bytes));
    std::vector<float> values(static_cast<size_t>(n));
    dequantize(type, bytes.data(), n, values.data());
    return values;
  }
  return std::vector<float>();
}

std::string hugging_face_name(std::string_view gguf_name) {
  for (const auto& [gguf, hugging_face] : kNames) {
    if (gguf_name == gguf) return std::string(hugging_face);
  }
  constexpr std::string_view kLayer = "blk.";
  const size_t name_at = gguf_name.find('.', kLayer.size()), suffix_at = gguf_name.rfind('.');
  if (!gguf_name.starts_with(kLayer) || name_at >= suffix_at) return std::string(gguf_name);
  const std::string_view layer = gguf_name.substr(kLayer.size(), name_at - kLayer.size());
  const std::string_view name = gguf_name.substr(name_at + 1, suffix_at - name_at - 1);
  for (const auto& [gguf, hugging_face] : kLayerNames) {
    if (name != gguf) continue;
    return "model.layers." + std::string(layer) + "." + std::string(hugging_face) +
           std::string(gguf_name.substr(suffix_at));
  }
  return std::string(gguf_name);
}

Result<std::unique_ptr<TensorFiles>> gguf_tensor_files(GgufModel& model, int64_t head_dim, TensorFiles::Access access) {
  const auto architecture = model.header.metadata.find("general.architecture");
  const std::string* name = architecture == model.header.metadata.end() ? nullptr : architecture->second.string();
  const bool interleaved = name && std::find(std::begin(kInterleavedArchitectures), std::end(kInterleavedArchitectures),
                                             *name) != std::end(kInterleavedArchitectures);
  auto files = std::make_unique<TensorFiles>(access);
  for (GgufModel::Part& part : model.parts) {
    TensorMap tensors;
    for (const auto& [gguf_name, tensor] : part.tensors) {
      TensorInfo info{tensor.type->name, tensor.shape, tensor.begin, tensor.end};
      if (interleaved && is_interleaved(gguf_name)) info.interleaved_rows = head_dim;
      if (!tensors.emplace(hugging_face_name(gguf_name), std::move(info)).second) {
        return Status(Code::kBadFile, part.file->path() + ": tensor " + gguf_name + " is there under two names");
      }
    }
    QUIRE_TRY(files->add(std::move(part.file), std::move(tensors)));
  }
  return files;
}

}  // namespace quire
