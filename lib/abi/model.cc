#include <algorithm>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"

using namespace quire;
using namespace quire::abi;

namespace {

// Runs body(model) behind the boundary, unless its runtime was closed.
template <typename Body>
int32_t with_model(const quire_model* model, quire_error* err, const Body& body) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    QUIRE_TRY(check_open(*m->runtime));
    return body(*m);
  });
}

std::string join(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace

extern "C" {

quire_status quire_model_load(quire_runtime* runtime, const char* path, size_t path_len,
                              const quire_model_options* options, quire_model** out, quire_error* err) {
  return with_handle(runtime, err, [&](const std::shared_ptr<Runtime>& r) -> Status {
    if (!out) return invalid("out is NULL");
    std::string_view directory;
    QUIRE_TRY(read_text(path, path_len, "path", &directory));
    if (directory.empty()) return invalid("path is empty");
    ModelLoadOptions o;
    QUIRE_TRY(read_model_options(options, &o));
    QUIRE_ASSIGN(auto model, load_model(r, std::string(directory), o));
    *out = new quire_model(std::move(model));
    return {};
  });
}

void quire_model_retain(quire_model* model) { retain(model); }

void quire_model_release(quire_model* model) { release(model); }

quire_status quire_model_get_info(const quire_model* model, quire_model_info* info, quire_error* err) {
  return with_model(model, err, [&](const Model& m) -> Status {
    const ModelConfig& config = m.llama->config();
    const LlamaWeights& weights = m.llama->weights();
    quire_model_info full{};
    full.n_layers = config.n_layers;
    full.n_query_heads = config.n_query_heads;
    full.n_kv_heads = config.n_kv_heads;
    full.head_dim = config.head_dim;
    full.hidden_size = config.hidden_size;
    full.intermediate_size = config.intermediate_size;
    full.vocab_size = config.vocab_size;
    full.weight_type = static_cast<int32_t>(weights.type);
    full.train_len = config.max_position_embeddings;
    full.n_parameters = weights.n_parameters;
    full.weight_bytes = weights.bytes;
    full.rope_theta = config.rope_theta;
    full.sliding_window = config.window_layers.empty() ? config.sliding_window : 0;
    return write_output(full, "info", info);
  });
}

quire_status quire_model_get_metadata(const quire_model* model, const char* key, size_t key_len, char* buf, size_t cap,
                                      size_t* needed, quire_error* err) {
  return with_model(model, err, [&](const Model& m) -> Status {
    std::string_view name;
    QUIRE_TRY(read_text(key, key_len, "key", &name));
    const LlamaModel& llama = *m.llama;
    const ModelConfig& config = llama.config();
    const ModelTokenizer& tokenizer = *m.tokenizer;
    if (name == "architecture") return write_text(config.architecture, buf, cap, needed);
    if (name == "rope_type") return write_text(config.rope_type, buf, cap, needed);
    if (name == "rope_scaling") return write_text(config.rope_scaling, buf, cap, needed);
    if (name == "tokenizer") return write_text(tokenizer.tokenizer().kind(), buf, cap, needed);
    if (name == "bos_token_id") return write_text(std::to_string(tokenizer.tokenizer().bos()), buf, cap, needed);
    if (name == "eos_token_ids") {
      return write_text(join(tokenizer.eos()), buf, cap, needed);
    }
    if (name == "sliding_window_layers") {
      const auto some = std::ranges::count(config.window_layers, true);
      const bool all = config.window_layers.empty() && config.sliding_window > 0;
      return write_text(std::to_string(all ? config.n_layers : some), buf, cap, needed);
    }
    if (name == "sliding_window_tokens") {
      return write_text(std::to_string(config.sliding_window), buf, cap, needed);
    }
    if (name == "device") return write_text(m.device, buf, cap, needed);
    if (name == "device_reason") return write_text(m.device_reason, buf, cap, needed);
    if (name == "identity") return write_text(llama.identity(), buf, cap, needed);
    if (name == "config.json") return write_text(config.json, buf, cap, needed);
    return Status(Code::kNotFound, "no metadata \"" + std::string(name) +
                                       "\"; known: architecture, rope_type, rope_scaling, tokenizer, bos_token_id, "
                                       "eos_token_ids, sliding_window_layers, sliding_window_tokens, device, "
                                       "device_reason, identity, config.json");
  });
}
}
