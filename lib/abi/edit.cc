// Sessions whose text becomes another one.
#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"
#include "lib/session/session.h"

using namespace quire;
using namespace quire::abi;

namespace {

// What the options of an edit say; `labels` is what they point to.
Status read_edit_options(const quire_edit_options* in, uint32_t known_flags, std::vector<TextLabel>* labels,
                         EditOptions* out) {
  quire_edit_options o;
  QUIRE_TRY(read_options(in, known_flags, "quire_edit_options", &o));
  QUIRE_TRY(check_range("reuse", o.reuse, QUIRE_EDIT_EXACT, QUIRE_EDIT_APPROXIMATE));
  QUIRE_TRY(check_range("reserved", o.reserved, 0, 0));
  QUIRE_TRY(check_range("reread_tokens", o.reread_tokens, 0, std::numeric_limits<int32_t>::max()));
  QUIRE_TRY(read_labels(o.labels, o.n_labels, labels));
  out->parse_special = (o.flags & QUIRE_TEXT_PARSE_SPECIAL) != 0;
  out->add_bos = (o.flags & QUIRE_TEXT_NO_BOS) == 0;
  out->reuse = o.reuse == QUIRE_EDIT_APPROXIMATE ? EditReuse::kApproximate : EditReuse::kExact;
  out->reread = o.reread_tokens;
  out->labels = *labels;
  return {};
}

// Runs edit(session, options, &edited) and says what came of it.
template <typename Edit>
int32_t edit_session(quire_session* session, const quire_edit_options* options, uint32_t known_flags,
                     quire_edit_result* result, quire_error* err, const Edit& edit) {
  return with_handle(session, err, [&](const std::shared_ptr<Session>& s) -> Status {
    if (result) QUIRE_TRY(check_output(result, "result"));
    std::vector<TextLabel> labels;
    EditOptions read;
    QUIRE_TRY(read_edit_options(options, known_flags, &labels, &read));
    EditResult edited;
    QUIRE_TRY(edit(*s, read, &edited));
    if (!result) return {};
    quire_edit_result full{};
    full.n_tokens = edited.n_tokens;
    full.n_kept = edited.n_kept;
    full.n_moved = edited.n_moved;
    return write_output(full, "result", result);
  });
}

}  // namespace

extern "C" {

void quire_edit_options_init(quire_edit_options* options, size_t size) { init_struct(options, size); }

void quire_edit_result_init(quire_edit_result* result, size_t size) { init_struct(result, size); }

quire_status quire_session_edit_text(quire_session* session, const char* text, size_t text_len,
                                     const quire_edit_options* options, quire_edit_result* result, quire_error* err) {
  return edit_session(session, options, QUIRE_TEXT_PARSE_SPECIAL | QUIRE_TEXT_NO_BOS, result, err,
                      [&](Session& s, const EditOptions& read, EditResult* edited) -> Status {
                        std::string_view view;
                        QUIRE_TRY(read_text(text, text_len, "text", &view));
                        return s.edit_text(view, read, edited);
                      });
}

quire_status quire_session_edit_tokens(quire_session* session, const int32_t* ids, size_t n_ids,
                                       const quire_edit_options* options, quire_edit_result* result, quire_error* err) {
  return edit_session(session, options, 0, result, err,
                      [&](Session& s, const EditOptions& read, EditResult* edited) -> Status {
                        if (!ids && n_ids > 0) return invalid("ids is NULL but n_ids is not 0");
                        if (n_ids > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / sizeof *ids) {
                          return invalid("n_ids is too large");
                        }
                        if (!read.labels.empty()) return invalid("labels name bytes of a text; token ids have none");
                        return s.edit_tokens({ids, n_ids}, read, edited);
                      });
}
}
