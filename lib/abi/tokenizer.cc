#include "lib/tokenizer/tokenizer.h"

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/model/checkpoint.h"
#include "lib/support/os_file.h"
#include "lib/tokenizer/chat_template_text.h"

using namespace quire;
using namespace quire::abi;

namespace {

// Of a model as that loads it; else of the tokenizer's files alone, also those of a GGUF file whose model Quire cannot
// run.
Result<std::shared_ptr<const ModelTokenizer>> load_alone(const std::string& path) {
  QUIRE_ASSIGN(const bool is_directory, path_is_directory(path));
  bool has_config = false;
  if (is_directory) {
    QUIRE_ASSIGN(has_config, path_exists(path + "/config.json"));
  }
  if (has_config || path.ends_with(".gguf")) {
    auto checkpoint = Checkpoint::open_configuration(path);
    if (checkpoint.ok()) return checkpoint->load_tokenizer();
    if (has_config) return checkpoint.status();
  }
  QUIRE_ASSIGN(auto tokenizer,
               is_directory ? load_tokenizer(path, kAnyVocabSize) : load_tokenizer_file(path, kAnyVocabSize));
  auto chat_template = is_directory ? read_chat_template(path)
                                    : Result<std::string>(Status(Code::kNotFound, path + " has no chat template"));
  if (chat_template.status().code() == Code::kIo) return chat_template.status();
  const int32_t vocab_size = tokenizer->size();
  return std::make_shared<const ModelTokenizer>(std::move(tokenizer), vocab_size, std::vector<int32_t>(),
                                                std::move(chat_template));
}

}  // namespace

extern "C" {

quire_status quire_model_get_tokenizer(quire_model* model, quire_tokenizer** out, quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    if (!out) return invalid("out is NULL");
    QUIRE_TRY(check_open(*m->runtime));
    *out = new quire_tokenizer(std::make_shared<OpenTokenizer>(OpenTokenizer{m->runtime, m->tokenizer}));
    return {};
  });
}

quire_status quire_tokenizer_load(quire_runtime* runtime, const char* path, size_t path_len, quire_tokenizer** out,
                                  quire_error* err) {
  return with_handle(runtime, err, [&](const std::shared_ptr<Runtime>& r) -> Status {
    if (!out) return invalid("out is NULL");
    QUIRE_TRY(check_open(*r));
    std::string_view name;
    QUIRE_TRY(read_text(path, path_len, "path", &name));
    if (name.empty()) return invalid("path is empty");
    QUIRE_ASSIGN(auto alone, load_alone(std::string(name)));
    QUIRE_TRY(check_open(*r));  // which took a while
    *out = new quire_tokenizer(std::make_shared<OpenTokenizer>(OpenTokenizer{r, std::move(alone)}));
    return {};
  });
}

void quire_tokenizer_retain(quire_tokenizer* tokenizer) { retain(tokenizer); }

void quire_tokenizer_release(quire_tokenizer* tokenizer) { release(tokenizer); }

quire_status quire_tokenizer_encode(const quire_tokenizer* tokenizer, const char* text, size_t text_len, uint32_t flags,
                                    int32_t* ids, size_t cap, size_t* needed, quire_error* err) {
  return with_tokenizer(tokenizer, err, [&](const ModelTokenizer& t, const CancelToken& closing) -> Status {
    std::string_view view;
    QUIRE_TRY(read_text(text, text_len, "text", &view));
    if ((flags & ~(QUIRE_TEXT_PARSE_SPECIAL | QUIRE_TEXT_NO_BOS | QUIRE_TEXT_CONTINUE)) != 0) {
      return invalid("flags has unknown bits: " + std::to_string(flags));
    }
    EncodeOptions options;
    options.first_segment = (flags & QUIRE_TEXT_CONTINUE) == 0;
    options.add_bos = (flags & QUIRE_TEXT_NO_BOS) == 0;
    options.parse_special = (flags & QUIRE_TEXT_PARSE_SPECIAL) != 0;
    options.cancel = &closing;
    QUIRE_ASSIGN(const auto encoded, t.tokenizer().encode(view, options));
    return write_array(encoded, "ids", ids, cap, needed);
  });
}

quire_status quire_tokenizer_decode(const quire_tokenizer* tokenizer, const int32_t* ids, size_t n_ids, uint32_t flags,
                                    char* buf, size_t cap, size_t* needed, quire_error* err) {
  return with_tokenizer(tokenizer, err, [&](const ModelTokenizer& t, const CancelToken&) -> Status {
    if (!ids && n_ids > 0) return invalid("ids is NULL but n_ids is not 0");
    if ((flags & ~QUIRE_DECODE_SPECIAL) != 0) return invalid("flags has unknown bits: " + std::to_string(flags));
    if (n_ids > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / sizeof *ids) {
      return invalid("n_ids is too large");
    }
    const std::vector<int32_t> copy(ids, ids + n_ids);
    QUIRE_ASSIGN(
        const std::string text,
        decode(t.tokenizer(), copy, (flags & QUIRE_DECODE_SPECIAL) != 0 ? ControlText::kPiece : ControlText::kNone));
    return write_text(text, buf, cap, needed);
  });
}

quire_status quire_tokenizer_get_token_bytes(const quire_tokenizer* tokenizer, int32_t id, char* buf, size_t cap,
                                             size_t* needed, quire_error* err) {
  return with_tokenizer(tokenizer, err, [&](const ModelTokenizer& t, const CancelToken&) -> Status {
    std::string bytes;
    QUIRE_TRY(t.tokenizer().append_bytes(id, ControlText::kNone, bytes));
    return write_text(bytes, buf, cap, needed);
  });
}

int32_t quire_tokenizer_get_vocab_size(const quire_tokenizer* tokenizer) {
  return tokenizer ? Held(tokenizer)->of_model->vocab_size() : 0;
}

int32_t quire_tokenizer_get_bos(const quire_tokenizer* tokenizer) {
  return tokenizer ? Held(tokenizer)->of_model->tokenizer().bos() : -1;
}

int32_t quire_tokenizer_is_eos(const quire_tokenizer* tokenizer, int32_t id) {
  return tokenizer && Held(tokenizer)->of_model->is_eos(id) ? 1 : 0;
}
}
