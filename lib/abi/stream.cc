#include "lib/session/stream.h"

#include <algorithm>
#include <limits>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"
#include "lib/support/utf8.h"

using namespace quire;
using namespace quire::abi;

namespace {

constexpr uint32_t kStreamFlags = QUIRE_STREAM_SCORE | QUIRE_STREAM_KEEP_LOGITS | QUIRE_STREAM_IGNORE_EOS |
                                  QUIRE_STREAM_CONSTRAIN | QUIRE_STREAM_KEEP_HIDDEN | QUIRE_STREAM_CITE;

// Enough for the engine to stay at work while a reader in any language takes a token, and little to compute in vain.
constexpr int32_t kDefaultUndelivered = 8;

Status read_texts(const char* name, const quire_text* texts, size_t n, std::vector<std::string>* out) {
  const std::string list = name;
  if (!texts && n > 0) return invalid(list + " is NULL but n_" + list + " is not 0");
  if (n > 64) return invalid("n_" + list + " is " + std::to_string(n) + "; at most 64");
  for (size_t i = 0; i < n; ++i) {
    const std::string item = list + "[" + std::to_string(i) + "]";
    std::string_view text;
    QUIRE_TRY(read_text(texts[i].data, texts[i].len, item.c_str(), &text));
    if (text.empty() || text.size() > 1024) return invalid(item + " must have 1 to 1024 bytes");
    if (const size_t bad = utf8_first_invalid(text); bad != text.size()) {
      return Status(Code::kInvalidText, item + " is not valid UTF-8", static_cast<int64_t>(bad));
    }
    out->emplace_back(text);
  }
  return {};
}

Status read_stop_ids(const int32_t* ids, size_t n, std::vector<int32_t>* out) {
  if (!ids && n > 0) return invalid("stop_ids is NULL but n_stop_ids is not 0");
  if (n > 4096) return invalid("n_stop_ids is " + std::to_string(n) + "; at most 4096");
  out->assign(ids, ids + n);
  return {};
}

Status stream_options(const quire_stream_options* in, StreamOptions* out) {
  quire_stream_options o;
  QUIRE_TRY(read_options(in, kStreamFlags, "quire_stream_options", &o));
  QUIRE_TRY(check_range("max_tokens", o.max_tokens, 0, std::numeric_limits<int64_t>::max()));
  QUIRE_TRY(read_sampling(o, &out->sampling));
  QUIRE_TRY(read_texts("dry_breakers", o.dry_breakers, o.n_dry_breakers, &out->dry_breakers));
  const auto& steps = out->sampling.steps;
  if (!o.dry_breakers &&
      std::any_of(steps.begin(), steps.end(), [](const auto& step) { return step.kind == SamplerStep::Kind::kDry; })) {
    out->dry_breakers = {"\n", ":", "\"", "*"};
  }
  QUIRE_TRY(check_range("min_tokens", o.min_tokens, 0, std::numeric_limits<int64_t>::max()));
  QUIRE_TRY(check_range("deadline_ms", o.deadline_ms, 0, int64_t{1} << 40));
  QUIRE_TRY(check_range("max_undelivered", o.max_undelivered, 0, 4096));
  out->min_tokens = o.min_tokens;
  out->deadline_ms = o.deadline_ms;
  QUIRE_TRY(read_stop_ids(o.stop_ids, o.n_stop_ids, &out->stop.ids));
  QUIRE_TRY(read_texts("stop_strings", o.stop_strings, o.n_stop_strings, &out->stop.strings));
  out->max_tokens = o.max_tokens;
  out->score = (o.flags & QUIRE_STREAM_SCORE) != 0;
  out->keep_logits = (o.flags & QUIRE_STREAM_KEEP_LOGITS) != 0;
  out->keep_hidden = (o.flags & QUIRE_STREAM_KEEP_HIDDEN) != 0;
  out->cite = (o.flags & QUIRE_STREAM_CITE) != 0;
  QUIRE_TRY(check_range("cite_end", o.cite_end, 0, out->cite ? std::numeric_limits<int64_t>::max() : 0));
  out->cite_end = o.cite_end;
  out->ignore_eos = (o.flags & QUIRE_STREAM_IGNORE_EOS) != 0;
  out->constrain = (o.flags & QUIRE_STREAM_CONSTRAIN) != 0;
  if (out->constrain && o.max_undelivered > 1)
    return invalid("a stream with QUIRE_STREAM_CONSTRAIN has max_undelivered 1");
  const int32_t by_default = out->constrain ? 1 : kDefaultUndelivered;
  out->max_undelivered = o.max_undelivered == 0 ? by_default : o.max_undelivered;
  QUIRE_TRY(check_range("draft_tokens", o.draft_tokens, 0, kMostDrafted));
  QUIRE_TRY(check_range("draft_match", o.draft_match, 0, 64));
  if (out->constrain && o.draft_tokens > 0) return invalid("a stream with QUIRE_STREAM_CONSTRAIN has draft_tokens 0");
  out->draft_tokens = o.draft_tokens;
  if (o.draft_match > 0) out->draft_match = o.draft_match;
  return {};
}

static_assert(static_cast<int32_t>(MessageCode::kAdapterBase) == QUIRE_WARNING_ADAPTER_BASE);
static_assert(static_cast<int32_t>(MessageCode::kUntrainedPositions) == QUIRE_WARNING_UNTRAINED_POSITIONS);
static_assert(static_cast<int32_t>(MessageCode::kAutoChoice) == QUIRE_NOTICE_AUTO_CHOICE);
static_assert(sizeof(TokenLogprob) == sizeof(quire_token_logprob) &&
              offsetof(TokenLogprob, logprob) == offsetof(quire_token_logprob, logprob));

quire_event to_event(const StreamEvent& e) {
  quire_event full{};
  full.kind = static_cast<int32_t>(e.type);
  full.token = e.token;
  full.n_tokens = e.n_tokens;
  full.text = e.text.empty() ? nullptr : e.text.data();
  full.text_len = e.text.size();
  full.code = static_cast<int32_t>(e.message.code);
  full.message = e.message.text.empty() ? nullptr : e.message.text.data();
  full.message_len = e.message.text.size();
  full.total = e.total;
  full.reused = e.reused;
  full.done = e.done;
  full.moved = e.moved;
  full.n_per_second = e.n_per_second;
  full.reuse_miss = static_cast<int32_t>(e.reuse_miss);
  full.logprob = e.logprob;
  full.finish_reason = static_cast<int32_t>(e.finish);
  full.stop_index = e.stop_index;
  full.top_logprobs = e.top.empty() ? nullptr : reinterpret_cast<const quire_token_logprob*>(e.top.data());
  full.n_top_logprobs = e.top.size();
  return full;
}

}  // namespace

extern "C" {

quire_status quire_stream_open(quire_session* session, const quire_stream_options* options, quire_stream** out,
                               quire_error* err) {
  return with_handle(session, err, [&](const std::shared_ptr<Session>& s) -> Status {
    if (!out) return invalid("out is NULL");
    StreamOptions o;
    QUIRE_TRY(stream_options(options, &o));
    auto handle = std::make_unique<quire_stream>(nullptr);  // first, so that nothing fails after the stream runs
    QUIRE_ASSIGN(auto stream, GenerationStream::open(s, std::move(o)));
    handle->set_object(std::move(stream));
    *out = handle.release();
    return {};
  });
}

void quire_stream_retain(quire_stream* stream) { retain(stream); }

void quire_stream_release(quire_stream* stream) { release(stream); }

quire_status quire_stream_close(quire_stream* stream, quire_error* err) {
  return with_handle(stream, err, [](const std::shared_ptr<GenerationStream>& s) -> Status {
    s->close();
    return {};
  });
}

quire_status quire_stream_cancel(quire_stream* stream, quire_error* err) {
  return with_handle(stream, err, [](const std::shared_ptr<GenerationStream>& s) { return s->cancel(); });
}

quire_status quire_stream_add_stop_ids(quire_stream* stream, const int32_t* stop_ids, size_t n_stop_ids,
                                       quire_error* err) {
  return with_handle(stream, err, [&](const std::shared_ptr<GenerationStream>& s) -> Status {
    StopSet more;
    QUIRE_TRY(read_stop_ids(stop_ids, n_stop_ids, &more.ids));
    return s->add_stops(std::move(more));
  });
}

quire_status quire_stream_add_stop_strings(quire_stream* stream, const quire_text* stop_strings, size_t n_stop_strings,
                                           quire_error* err) {
  return with_handle(stream, err, [&](const std::shared_ptr<GenerationStream>& s) -> Status {
    StopSet more;
    QUIRE_TRY(read_texts("stop_strings", stop_strings, n_stop_strings, &more.strings));
    return s->add_stops(std::move(more));
  });
}

quire_status quire_stream_allow(quire_stream* stream, const uint32_t* allowed, size_t n_words, quire_error* err) {
  return with_handle(stream, err, [&](const std::shared_ptr<GenerationStream>& s) -> Status {
    if (!allowed && n_words > 0) return invalid("allowed is NULL but n_words is not 0");
    if (n_words > size_t{1} << 26) return invalid("n_words is " + std::to_string(n_words) + "; at most 2^26");
    return s->allow(AllowedTokens(allowed, allowed + n_words));
  });
}

quire_status quire_stream_next(quire_stream* stream, int32_t timeout_ms, quire_event* event, quire_error* err) {
  int32_t news = QUIRE_OK;
  const int32_t status = with_handle(stream, err, [&](const std::shared_ptr<GenerationStream>& s) -> Status {
    QUIRE_TRY(check_output(event, "event"));
    const StreamEvent* next = nullptr;
    QUIRE_ASSIGN(const NextResult result, s->next(timeout_ms, &next));
    if (result == NextResult::kEvent) return write_output(to_event(*next), "event", event);
    news = result == NextResult::kTimeout ? QUIRE_TIMEOUT : QUIRE_END;
    return {};
  });
  return status == QUIRE_OK ? news : status;
}

quire_status quire_stream_get_wait_handle(quire_stream* stream, int64_t* handle, int32_t* kind, quire_error* err) {
  return with_handle(stream, err, [&](const std::shared_ptr<GenerationStream>& s) -> Status {
    if (!handle || !kind) return invalid("handle or kind is NULL");
    QUIRE_ASSIGN(const int descriptor, s->wait_descriptor());
    *handle = descriptor;
    *kind = QUIRE_WAIT_FD;
    return {};
  });
}
}
