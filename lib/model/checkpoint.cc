#include "lib/model/checkpoint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/format/gguf_config.h"
#include "lib/format/gguf_export.h"
#include "lib/format/safetensors.h"
#include "lib/support/os_file.h"
#include "lib/tokenizer/chat_template_text.h"
#include "lib/tokenizer/gguf_tokenizer_writer.h"

namespace quire {
namespace {

// Reads as far as they are the same. What cannot be read is not; that is said when it is loaded.
bool are_same(const TensorFiles& files, const char* first, const char* second, const CancelToken* cancel) {
  constexpr int64_t kPieceBytes = 1 << 20;
  const TensorInfo *a = files.find(first), *b = files.find(second);
  if (!a || !b || a->dtype != b->dtype || a->shape != b->shape) return false;
  const int64_t bytes = a->end - a->begin;
  std::vector<std::byte> x, y;
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    x.resize(static_cast<size_t>(std::min(kPieceBytes, bytes - at)));
    y.resize(x.size());
    if (!check_cancelled(cancel).ok() || !files.read(first, at, x).ok() || !files.read(second, at, y).ok())
      return false;
    if (x != y) return false;
  }
  return true;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& path, const CancelToken* cancel) {
  QUIRE_ASSIGN(Checkpoint checkpoint, open_configuration(path, cancel));
  if (!checkpoint.is_gguf()) checkpoint.untie_head(cancel);
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_configuration(const std::string& path, const CancelToken* cancel) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  QUIRE_ASSIGN(const bool is_directory, path_is_directory(path));
  if (is_directory) {
    QUIRE_ASSIGN(checkpoint.config_, load_model_config(path));
    return checkpoint;
  }
  QUIRE_ASSIGN(const bool exists, path_exists(path));
  if (!exists) return Status(Code::kNotFound, "no such model: " + path);
  QUIRE_ASSIGN(checkpoint.gguf_, open_gguf(path, cancel));
  QUIRE_ASSIGN(const GgufRopeTensors rope_tensors, checkpoint.rope_tensors());
  auto config = gguf_model_config(checkpoint.gguf_->header, rope_tensors);
  if (!config.ok()) return config.status().with_context(path);
  checkpoint.config_ = std::move(*config);
  return checkpoint;
}

// As transformers since version 5: where the files have a head of other values than the embedding, it is the model's,
// whatever the configuration says. Files that repeat the embedding as the head stay tied, which saves its memory. What
// is wrong with the files is said when they are opened.
void Checkpoint::untie_head(const CancelToken* cancel) {
  constexpr const char* kHead = "lm_head.weight";
  if (!config_.tie_word_embeddings) return;
  auto files = open_safetensors(path_, TensorFiles::Access::kRead, cancel, config_.tensor_prefix);
  if (!files.ok() || !(*files)->find(kHead)) return;
  config_.tie_word_embeddings = are_same(**files, kHead, "model.embed_tokens.weight", cancel);
}

Result<std::shared_ptr<const ModelTokenizer>> Checkpoint::load_tokenizer() const {
  auto tokenizer =
      gguf_ ? make_gguf_tokenizer(gguf_->header, config_.vocab_size) : quire::load_tokenizer(path_, config_.vocab_size);
  if (!tokenizer.ok()) return gguf_ ? tokenizer.status().with_context(path_) : tokenizer.status();
  auto chat_template = gguf_ ? read_chat_template(gguf_->header) : read_chat_template(path_);
  if (chat_template.status().code() == Code::kIo) return chat_template.status();
  return std::make_shared<const ModelTokenizer>(std::move(*tokenizer), config_.vocab_size, config_.eos_token_ids,
                                                std::move(chat_template));
}

Status Checkpoint::add_gguf_metadata(GgufWriter& writer) const {
  if (!gguf_) {
    QUIRE_TRY(add_gguf_config(config_, writer));
    return add_gguf_tokenizer(path_, config_.vocab_size, config_.eos_token_ids, writer);
  }
  for (const auto& [key, place] : gguf_->header.metadata_places) {
    // What speaks of the tensors of this file.
    const bool is_own = key == "general.file_type" || key == "general.quantization_version" ||
                        key == "general.alignment" || key.starts_with("split.");
    if (is_own) continue;
    std::vector<std::byte> value(static_cast<size_t>(place.second - place.first));
    QUIRE_TRY(gguf_->files[0]->read_at(place.first, value));
    writer.add_stored(key, value);
  }
  return {};
}

Result<GgufRopeTensors> Checkpoint::rope_tensors() const {
  if (!gguf_) return gguf_rope_tensors(config_);
  GgufRopeTensors tensors;
  for (const char* name : {kGgufRopeFreqs, kGgufRopeFactorsLong, kGgufRopeFactorsShort}) {
    if (!gguf_->header.tensors.contains(name)) continue;
    QUIRE_ASSIGN(tensors[name], read_gguf_values(*gguf_, name));
  }
  return tensors;
}

Result<std::unique_ptr<TensorFiles>> Checkpoint::open_tensors(TensorFiles::Access access, const CancelToken* cancel) {
  QUIRE_ASSIGN(auto files, gguf_ ? gguf_tensor_files(std::move(*gguf_), config_, access)
                                 : open_safetensors(path_, access, cancel, config_.tensor_prefix));
  // Its first layers alone would be another model.
  const std::string next_layer = "model.layers." + std::to_string(config_.n_layers) + ".";
  const auto more = files->tensors().lower_bound(next_layer);
  if (more != files->tensors().end() && more->first.starts_with(next_layer)) {
    return Status(Code::kBadFile,
                  files->files()[more->second.file]->path() + ": tensor " + more->first +
                      " is of a layer that the configuration does not have; its number of layers is " +
                      std::to_string(config_.n_layers),
                  more->second.begin);
  }
  return files;
}

}  // namespace quire
