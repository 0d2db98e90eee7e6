// A loaded model, sessions on it, and the loop that runs a stream to its end.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "quire_handles.h"

namespace cli {

Runtime create_runtime(int32_t n_threads);  // 0: as many as there are cores

// Loads the model and shows progress; Ctrl-C cancels.
class Engine {
 public:
  explicit Engine(const ModelArguments& arguments);

  quire_model* model() const { return model_.get(); }
  quire_model_info info() const;
  // A metadata value, or "" where the model has none.
  std::string metadata(std::string_view key) const;
  Tokenizer tokenizer() const;
  int64_t memory_bytes() const;  // of the machine; 0: not known
  // `n_tokens` is expected where the arguments do not say.
  Session create_session(const SessionArguments& arguments, int64_t n_tokens) const;
  // Goes on where the snapshot's session stood. What the arguments leave open is as it was there.
  Session load_session(const std::string& path, const SessionArguments& arguments) const;
  // Goes on behind what the store has of the text, as a session of the arguments would; *match says what that is. Null:
  // nothing. `n_tokens` as for create_session.
  Session load_stored_session(quire_store* store, const std::vector<int32_t>& ids, const SessionArguments& arguments,
                              int64_t n_tokens, quire_store_match& match) const;
  // The canonical form of a strategy for this model and a text of unknown length.
  std::string describe(const std::string& strategy) const;
  // What the model and a session of n_tokens take, and how fast they would be. The arguments have no adapters.
  quire_memory_plan plan_memory(const SessionArguments& arguments, int64_t n_tokens) const;
  quire_rate_estimate estimate_rates(const SessionArguments& arguments, int64_t n_tokens) const;

 private:
  const ModelArguments arguments_;
  Runtime runtime_;
  Model model_;
};

// Whether this is not what was said last, by the log or an event; from then on it is.
bool is_news(std::string_view message);

std::vector<int32_t> encode(const quire_tokenizer* tokenizer, std::string_view text, uint32_t flags);
void feed_text(quire_session* session, std::string_view text, uint32_t flags = 0);
// The session's text becomes this document, whose pages are labelled (find_pages).
void edit_text(quire_session* session, std::string_view document, quire_edit_options options,
               quire_edit_result* result);
// The same with what stays the same in front: of a session that has read nothing, or the beginning of the document.
void feed_document(quire_session* session, std::string_view document, uint32_t flags);
void feed_tokens(quire_session* session, const int32_t* ids, size_t n_ids);
std::vector<int32_t> tokens_of(const quire_session* session);  // pending ones too
void reset(quire_session* session);
void truncate(quire_session* session, int64_t n_tokens);
quire_session_stats get_stats(const quire_session* session);
quire_tier_stats get_tier_stats(const quire_session* session, int32_t tier);
// Of the memory that the model computes on: a device's own, or the machine's.
quire_tier_stats get_first_tier_stats(const quire_session* session);
std::string strategy_of(const quire_session* session);

// Sees every event; returns false to end the stream early.
using EventVisitor = std::function<bool(const quire_event&)>;

// Opens a stream and hands each event to `visit`. Returns QUIRE_FINISH_*, or QUIRE_FINISH_NONE if the visitor ended
// it. After Ctrl-C the stream is cancelled and runs to QUIRE_FINISH_CANCELLED.
int32_t run_stream(quire_session* session, const quire_stream_options& options, const EventVisitor& visit);

const char* finish_name(int32_t finish_reason);
const char* type_name(int32_t type);  // of QUIRE_TYPE_*

}  // namespace cli
