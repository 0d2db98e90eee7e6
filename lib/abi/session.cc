#include <algorithm>

#include "lib/session/session.h"

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"

using namespace quire;
using namespace quire::abi;

namespace {

constexpr int64_t kMostElements = int64_t{1} << 60;  // of an array that a caller may ask for

// Runs body(session) behind the boundary.
template <typename Body>
int32_t with_session(const quire_session* session, quire_error* err, const Body& body) {
  return with_handle(session, err, [&](const std::shared_ptr<Session>& s) { return body(*s); });
}

// What is counted of all forks together.
void write_lower_tier(const TierStats& now, quire_tier_stats* stats) {
  stats->bytes = now.bytes;
  stats->bytes_peak = now.bytes_peak;
  stats->n_chunks = now.n_records;
  stats->n_hits = now.n_hits;
  stats->n_misses = now.n_misses;
  stats->n_evicted = now.n_evicted;
  stats->bytes_read = now.bytes_read;
  stats->bytes_written = now.bytes_written;
}

constexpr int32_t kMostPassages = 1024;

// Of the last answer: all of it, or some tokens.
Status check_answer_range(int64_t first_token, int64_t n_tokens) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  QUIRE_TRY(check_range("first_token", first_token, -1, kMost));
  return first_token == -1 ? check_range("n_tokens", n_tokens, 0, 0) : check_range("n_tokens", n_tokens, 1, kMost);
}

Status write_labels(const std::vector<LabelAttention>& all, quire_label_attention* labels, size_t cap, size_t* needed) {
  return write_array(all.size(), "labels", labels, cap, needed, [&](quire_label_attention* to) {
    for (const LabelAttention& l : all) *to++ = {l.id, l.first_token, l.n_tokens, l.share};
    return Status();
  });
}

// n floats of what the last stream left. copy(to) -> Status copies all of them, and only asks whether they are kept
// where `to` is NULL: what is not kept has no size, for which a caller would allocate memory.
template <typename Copy>
Status write_kept(int64_t n, const char* name, float* buf, size_t cap, size_t* needed, const Copy& copy) {
  QUIRE_TRY(copy(nullptr));
  return write_array(static_cast<size_t>(n), name, buf, cap, needed, copy);
}

}  // namespace

namespace quire::abi {

Status read_labels(const quire_label* labels, size_t n_labels, std::vector<TextLabel>* read) {
  if (!labels && n_labels > 0) return invalid("labels is NULL but n_labels is not 0");
  if (n_labels > size_t{1} << 20) return invalid("n_labels is " + std::to_string(n_labels) + "; at most 2^20");
  for (size_t i = 0; i < n_labels; ++i) read->push_back({labels[i].begin, labels[i].end, labels[i].id});
  return {};
}

}  // namespace quire::abi

extern "C" {

quire_status quire_session_create(quire_model* model, const quire_session_options* options, quire_session** out,
                                  quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    if (!out) return invalid("out is NULL");
    SessionOptions o;
    QUIRE_TRY(read_session_options(options, m->llama->backend(), &o));
    QUIRE_ASSIGN(auto session, Session::create(m, std::move(o)));
    *out = new quire_session(std::move(session));
    return {};
  });
}

quire_status quire_model_check_session(const quire_model* model, const quire_session_options* options,
                                       quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    SessionOptions o;
    QUIRE_TRY(read_session_options(options, m->llama->backend(), &o));
    return Session::check(*m, o);
  });
}

quire_status quire_model_describe_strategy(const quire_model* model, const quire_session_options* options, char* buf,
                                           size_t cap, size_t* needed, quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    QUIRE_TRY(check_open(*m->runtime));
    SessionOptions o;
    QUIRE_TRY(read_session_options(options, m->llama->backend(), &o));
    QUIRE_ASSIGN(const auto strategy, choose_strategy(*m, o));
    return write_text(strategy->canonical(), buf, cap, needed);
  });
}

void quire_session_retain(quire_session* session) { retain(session); }

void quire_session_release(quire_session* session) { release(session); }

quire_status quire_session_close(quire_session* session, quire_error* err) {
  return with_session(session, err, [](Session& s) -> Status {
    s.close();
    return {};
  });
}

quire_status quire_session_feed_text(quire_session* session, const char* text, size_t text_len, uint32_t flags,
                                     quire_error* err) {
  return quire_session_feed_labelled(session, text, text_len, flags, nullptr, 0, err);
}

quire_status quire_session_feed_labelled(quire_session* session, const char* text, size_t text_len, uint32_t flags,
                                         const quire_label* labels, size_t n_labels, quire_error* err) {
  return with_session(session, err, [&](Session& s) -> Status {
    std::string_view view;
    QUIRE_TRY(read_text(text, text_len, "text", &view));
    if ((flags & ~(QUIRE_TEXT_PARSE_SPECIAL | QUIRE_TEXT_NO_BOS)) != 0) {
      return invalid("flags has unknown bits: " + std::to_string(flags));
    }
    std::vector<TextLabel> copies;
    QUIRE_TRY(read_labels(labels, n_labels, &copies));
    return s.feed_text(view, (flags & QUIRE_TEXT_PARSE_SPECIAL) != 0, (flags & QUIRE_TEXT_NO_BOS) == 0, copies);
  });
}

quire_status quire_session_get_label_attention(const quire_session* session, quire_label_attention* labels, size_t cap,
                                               size_t* needed, quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    std::vector<LabelAttention> all;
    QUIRE_TRY(s.label_attention(&all));
    return write_labels(all, labels, cap, needed);
  });
}

quire_status quire_session_get_passages(const quire_session* session, int64_t first_token, int64_t n_tokens,
                                        int32_t max_passages, quire_passage* passages, size_t cap, size_t* needed,
                                        quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(check_answer_range(first_token, n_tokens));
    QUIRE_TRY(check_range("max_passages", max_passages, 1, kMostPassages));
    std::vector<Passage> all;
    std::vector<int64_t> ids;
    QUIRE_TRY(s.passages(first_token, n_tokens, max_passages, &all, &ids));
    return write_array(all.size(), "passages", passages, cap, needed, [&](quire_passage* to) {
      for (size_t i = 0; i < all.size(); ++i) {
        const Passage& p = all[i];
        *to++ = {p.first_token, p.n_tokens, p.feed, p.begin, p.end, p.label, ids[i], p.share};
      }
      return Status();
    });
  });
}

quire_status quire_session_get_label_shares(const quire_session* session, int64_t first_token, int64_t n_tokens,
                                            quire_label_attention* labels, size_t cap, size_t* needed,
                                            quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(check_answer_range(first_token, n_tokens));
    std::vector<LabelAttention> all;
    QUIRE_TRY(s.label_shares(first_token, n_tokens, &all));
    return write_labels(all, labels, cap, needed);
  });
}

quire_status quire_session_feed_tokens(quire_session* session, const int32_t* ids, size_t n_ids, quire_error* err) {
  return with_session(session, err, [&](Session& s) -> Status {
    if (!ids && n_ids > 0) return invalid("ids is NULL but n_ids is not 0");
    if (n_ids > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / sizeof *ids) {
      return invalid("n_ids is too large");
    }
    return s.feed_tokens({ids, n_ids});
  });
}

quire_status quire_session_feed_positions(quire_session* session, const int32_t* ids, const int64_t* positions,
                                          size_t n_ids, quire_error* err) {
  return with_session(session, err, [&](Session& s) -> Status {
    if ((!ids || !positions) && n_ids > 0) return invalid("ids or positions is NULL but n_ids is not 0");
    if (n_ids > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / sizeof *positions) {
      return invalid("n_ids is too large");
    }
    return s.feed_positions({ids, n_ids}, {positions, n_ids});
  });
}

quire_status quire_session_discard_pending(quire_session* session, quire_error* err) {
  return with_session(session, err, [](Session& s) { return s.discard_pending(); });
}

quire_status quire_session_reset(quire_session* session, quire_error* err) {
  return with_session(session, err, [](Session& s) { return s.reset(); });
}

quire_status quire_session_truncate(quire_session* session, int64_t n_tokens, quire_error* err) {
  return with_session(session, err, [&](Session& s) { return s.truncate(n_tokens); });
}

quire_status quire_session_fill_random(quire_session* session, int64_t n_tokens, uint64_t seed, quire_error* err) {
  return with_session(session, err, [&](Session& s) -> Status {
    QUIRE_TRY(check_range("n_tokens", n_tokens, 0, std::numeric_limits<int32_t>::max()));
    return s.fill_random(n_tokens, seed);
  });
}

quire_status quire_session_get_token_counts(const quire_session* session, int64_t* n_tokens, int64_t* n_pending,
                                            quire_error* err) {
  return with_session(session, err, [&](const Session& s) { return s.count_tokens(n_tokens, n_pending); });
}

quire_status quire_session_get_logits(const quire_session* session, int64_t first_token, int64_t n_rows, float* logits,
                                      size_t cap, size_t* needed, quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(s.check_open());
    const int64_t vocab = s.model().llama->config().vocab_size;
    QUIRE_TRY(check_range("n_rows", n_rows, 1, kMostElements / vocab));
    return write_kept(n_rows * vocab, "logits", logits, cap, needed,
                      [&](float* to) { return s.logits(first_token, n_rows, to); });
  });
}

quire_status quire_session_get_hidden_states(const quire_session* session, int64_t first_token, int64_t n_rows,
                                             float* states, size_t cap, size_t* needed, quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(s.check_open());
    const int64_t width = s.model().llama->config().hidden_size;
    QUIRE_TRY(check_range("n_rows", n_rows, 1, kMostElements / width));
    return write_kept(n_rows * width, "states", states, cap, needed,
                      [&](float* to) { return s.hidden_states(first_token, n_rows, to); });
  });
}

quire_status quire_session_get_tokens(const quire_session* session, int32_t* ids, size_t cap, size_t* needed,
                                      quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    std::vector<int32_t> all;
    QUIRE_TRY(s.tokens(&all));
    return write_array(all.size(), "ids", ids, cap, needed, [&](int32_t* to) {
      std::copy(all.begin(), all.end(), to);
      return Status();
    });
  });
}

quire_status quire_session_get_scores(const quire_session* session, int64_t first_token, int64_t n, float* scores,
                                      size_t cap, size_t* needed, quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(s.check_open());
    QUIRE_TRY(check_range("n", n, 1, kMostElements));
    return write_kept(n, "scores", scores, cap, needed, [&](float* to) { return s.scores(first_token, n, to); });
  });
}

quire_status quire_session_get_stats(const quire_session* session, quire_session_stats* stats, quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    SessionStats now;
    QUIRE_TRY(s.stats(&now));
    quire_session_stats full{};
    full.n_tokens = now.n_tokens;
    full.n_pending = now.n_pending;
    full.n_prefilled = now.n_prefilled;
    full.n_reused = now.n_reused;
    full.n_moved = now.n_moved;
    full.n_drafted = now.n_drafted;
    full.n_accepted = now.n_accepted;
    full.n_generated = now.n_generated;
    full.prefill_ns = now.prefill_ns;
    full.decode_ns = now.decode_ns;
    full.kv_chunks = now.kv_chunks;
    full.kv_chunks_dropped = now.kv_chunks_evicted;
    full.scratch_bytes = now.scratch_bytes;
    full.reach = now.reach;
    full.kv_full_bytes = now.kv_full_bytes;
    full.kv_old_bytes = now.kv_narrow_bytes;
    return write_output(full, "stats", stats);
  });
}

quire_status quire_session_get_tier_stats(const quire_session* session, int32_t tier, quire_tier_stats* stats,
                                          quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(check_range("tier", tier, QUIRE_TIER_DEVICE, QUIRE_TIER_SNAPSHOT));
    SessionStats now;
    QUIRE_TRY(s.stats(&now));
    quire_tier_stats full{};
    full.tier = tier;
    // What the model computes on is the first tier: of a device of its own, or of the machine.
    const Backend& backend = s.model().llama->backend();
    if (tier == (backend.has_own_memory() ? QUIRE_TIER_DEVICE : QUIRE_TIER_HOST)) {
      full.budget_bytes = first_budget(backend, s.options());
      full.bytes = now.kv_bytes;
      full.bytes_peak = now.kv_bytes_peak;
      full.n_chunks = now.kv_chunks_resident;
      full.n_hits = now.kv_hits;
      full.n_misses = now.kv_misses;
      full.n_evicted = now.kv_chunks_left;
      full.stall_ns = now.kv_stall_ns;
    } else if (tier == QUIRE_TIER_HOST) {
      full.budget_bytes = s.options().kv_budget_bytes;
      write_lower_tier(now.kv_host, &full);
    } else if (tier == QUIRE_TIER_COMPRESSED) {
      full.budget_bytes = s.options().compressed_budget_bytes;
      write_lower_tier(now.kv_compressed, &full);
    } else if (tier == QUIRE_TIER_FILE) {
      full.budget_bytes = s.options().spill_budget_bytes;
      full.bytes = full.bytes_peak = now.kv_file_bytes;  // room in the file is never given back
      full.n_chunks = now.kv_chunks_in_file;
      full.n_hits = now.kv_chunks_read;
      full.bytes_read = now.kv_file_bytes_read;
      full.bytes_written = now.kv_file_bytes_written;
    } else if (tier == QUIRE_TIER_SNAPSHOT) {
      full.n_chunks = now.kv_chunks_in_snapshot;
      full.n_hits = now.kv_chunks_restored;
      full.bytes_read = now.kv_bytes_restored;
    }
    return write_output(full, "stats", stats);
  });
}

quire_status quire_session_get_probes(const quire_session* session, quire_session_probes* probes, quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    SessionStats now;
    QUIRE_TRY(s.stats(&now));
    quire_session_probes full{};
    full.tasks_after_cancel = now.tasks_after_cancel;
    full.cancel_latency_ns = now.cancel_latency_ns;
    return write_output(full, "probes", probes);
  });
}

quire_status quire_session_get_strategy(const quire_session* session, char* buf, size_t cap, size_t* needed,
                                        quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(s.check_open());
    return write_text(s.strategy(), buf, cap, needed);
  });
}

quire_status quire_session_get_fingerprint(const quire_session* session, char* buf, size_t cap, size_t* needed,
                                           quire_error* err) {
  return with_session(session, err, [&](const Session& s) -> Status {
    QUIRE_TRY(s.check_open());
    return write_text(s.fingerprint(), buf, cap, needed);
  });
}
}
