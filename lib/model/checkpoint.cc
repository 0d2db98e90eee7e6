#include "lib/model/checkpoint.h"

#include <utility>
#include <vector>

#include "lib/format/gguf_config.h"
#include "lib/format/gguf_export.h"
#include "lib/format/safetensors.h"
#include "lib/support/os_file.h"
#include "lib/tokenizer/chat_template_text.h"
#include "lib/tokenizer/gguf_tokenizer_writer.h"

namespace quire {

Result<Checkpoint> Checkpoint::open(const std::string& path, const CancelToken* cancel) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  QUIRE_ASSIGN(const bool is_directory, path_is_directory(path));
  if (is_directory) {
    QUIRE_ASSIGN(checkpoint.config_, load_model_config(path));
    checkpoint.untie_head();
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

// A part of a larger model is tied by a setting of that one, which transformers writes as true, too, where the files
// have a head. What is wrong with the files is said when they are opened.
void Checkpoint::untie_head() {
  if (config_.tensor_prefix.empty() || !config_.tie_word_embeddings) return;
  auto files = open_safetensors(path_, TensorFiles::Access::kRead, nullptr, config_.tensor_prefix);
  if (files.ok() && (*files)->find("lm_head.weight")) config_.tie_word_embeddings = false;
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
    return add_gguf_tokenizer(path_, config_.vocab_size, writer);
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
