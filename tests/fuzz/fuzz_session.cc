// A session as a state machine, through the C interface. Input: three bytes of options, then calls: a byte that chooses
// one, and the bytes of its arguments. What the calls return must agree with a simple account of the session's state.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "quire/quire.h"
#include "tests/fuzz/require.h"
#include "tests/source_path.h"

namespace {

constexpr int32_t kVocab = 64;
constexpr int64_t kLongest = 160;  // tokens of a session
constexpr int kMostCalls = 48;

// Bytes of the input; zeros behind its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t byte() { return empty() ? 0 : data_[at_++]; }
  size_t below(size_t n) { return byte() % n; }
  int64_t small() { return static_cast<int8_t>(byte()); }
  std::string_view bytes(size_t n) {
    n = std::min(n, size_ - at_);
    at_ += n;
    return {reinterpret_cast<const char*>(data_) + at_ - n, n};
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

quire_model* model() {
  static quire_model* const kModel = [] {
    quire_runtime_options options;
    quire_runtime_options_init(&options, sizeof options);
    options.n_threads = 1;
    quire_runtime* runtime = nullptr;
    quire_model* loaded = nullptr;
    const std::string path = quire::test::source_path("tests/golden/models/short_128");
    FUZZ_REQUIRE(quire_runtime_create(&options, &runtime, nullptr) == QUIRE_OK);
    FUZZ_REQUIRE(quire_model_load(runtime, path.data(), path.size(), nullptr, &loaded, nullptr) == QUIRE_OK);
    quire_runtime_release(runtime);  // the model keeps it
    return loaded;
  }();
  return kModel;
}

const quire_tokenizer* tokenizer() {
  static quire_tokenizer* const kTokenizer = [] {
    quire_tokenizer* made = nullptr;
    FUZZ_REQUIRE(quire_model_get_tokenizer(model(), &made, nullptr) == QUIRE_OK);
    return made;
  }();
  return kTokenizer;
}

// One of the failures that the state allows, or else one that the arguments deserve.
void require_one_of(quire_status status, std::initializer_list<quire_status> expected) {
  if (std::find(expected.begin(), expected.end(), status) != expected.end()) return;
  std::fprintf(stderr, "returned %s\n", quire_get_status_name(status));
  FUZZ_REQUIRE(!"a status that the state does not explain");
}

class Machine {
 public:
  explicit Machine(Input& in) : in_(in) {
    constexpr std::string_view kStrategies[] = {"full(kv_chunk=16)",
                                                "dca(kv_chunk=16)",
                                                "longheads(chunk=16, chunks=4)",
                                                "streaming_llm(sinks=4, recent=40, kv_chunk=16)",
                                                "rerope(window=32, kv_chunk=16)",
                                                "self_extend(window=24, group=4)",
                                                "longheads(chunk=16, chunks=4, init=full)",
                                                "full"};
    quire_session_options options;
    quire_session_options_init(&options, sizeof options);
    const std::string_view strategy = kStrategies[in_.below(8)];
    options.strategy = strategy.data();
    options.strategy_len = strategy.size();
    takes_positions_ = strategy.starts_with("full");
    chooses_ = strategy.starts_with("longheads");
    const uint8_t how = in_.byte();
    options.overflow = policy_ = how % 4;
    options.prefill_block = 1 + in_.byte() % 60;
    if (how & 16) options.kv_host_budget_bytes = 20000;
    if (how & 32) options.kv_host_budget_bytes = 140000;
    has_budget_ = options.kv_host_budget_bytes > 0;
    if (how & 64) {
      options.kv_file_directory = "/tmp";
      options.kv_file_directory_len = 4;
    }
    FUZZ_REQUIRE(quire_session_create(model(), &options, &session_, nullptr) == QUIRE_OK);
    check_counts();
  }
  ~Machine() {
    quire_stream_release(stream_);
    FUZZ_REQUIRE(quire_session_close(session_, nullptr) == QUIRE_OK);
    quire_session_release(session_);
  }

  void call() {
    switch (in_.below(16)) {
      case 0:
      case 1:
        return feed_tokens();
      case 2:
        return feed_text();
      case 3:
        return feed_positions();
      case 4:
      case 5:
        return open();
      case 6:
      case 7:
        return next(static_cast<int>(in_.below(12)));
      case 8:
        return cancel();
      case 9:
        return close_or_release();
      case 10:
        return truncate();
      case 11:
        return forget();
      case 12:
        return read_rows();
      case 13:
        return fill();
      case 14:
        return read_labels();
      default:
        if (in_.byte() == 0) {
          FUZZ_REQUIRE(quire_session_close(session_, nullptr) == QUIRE_OK);
          closed_ = true;
        }
    }
  }

  void check_counts() {
    int64_t n_tokens = -1, n_pending = -1;
    const quire_status status = quire_session_get_token_counts(session_, &n_tokens, &n_pending, nullptr);
    FUZZ_REQUIRE(status == (closed_ ? QUIRE_ERROR_CLOSED : QUIRE_OK));
    if (closed_) return;
    FUZZ_REQUIRE(n_tokens >= 0 && n_pending >= 0 && n_tokens + n_pending == length_);
    // While a stream computes, it moves tokens from the pending ones to the others; nobody else does.
    FUZZ_REQUIRE(open_ || was_open_ || n_tokens == n_read_);
    n_read_ = n_tokens;
    was_open_ = open_;
    quire_session_stats stats;
    std::memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    FUZZ_REQUIRE(quire_session_get_stats(session_, &stats, nullptr) == QUIRE_OK);
    quire_tier_stats host;
    std::memset(&host, 0, sizeof host);
    host.struct_size = sizeof host;
    FUZZ_REQUIRE(quire_session_get_tier_stats(session_, QUIRE_TIER_HOST, &host, nullptr) == QUIRE_OK);
    FUZZ_REQUIRE(host.bytes >= 0 && host.bytes <= host.bytes_peak);
    FUZZ_REQUIRE(open_ || host.n_chunks <= stats.kv_chunks);
    reach_ = stats.reach;
  }

 private:
  // What a call on the session says before it does anything: 0 where it may work.
  quire_status refused() const { return closed_ ? QUIRE_ERROR_CLOSED : open_ ? QUIRE_ERROR_BUSY : QUIRE_OK; }
  bool too_long(size_t more) const { return length_ + static_cast<int64_t>(more) > kLongest; }

  void feed_tokens() {
    std::vector<int32_t> ids(in_.below(40));
    bool known = true;
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(in_.small());
      if (id < -100) id = kVocab + id;  // few are wrong
      known = known && id >= 0 && id < kVocab;
    }
    if (too_long(ids.size())) return;
    const quire_status status = quire_session_feed_tokens(session_, ids.data(), ids.size(), nullptr);
    FUZZ_REQUIRE(status == (known ? refused() : QUIRE_ERROR_INVALID_TOKEN));
    if (status == QUIRE_OK) length_ += static_cast<int64_t>(ids.size());
  }

  void feed_text() {
    const uint32_t flags = in_.byte() % 4;
    const quire_label label{in_.small(), in_.small(), 7};
    const size_t n_labels = in_.below(2);
    const std::string_view text = in_.bytes(in_.below(30));
    if (too_long(text.size() + 2)) return;
    const bool good_label = n_labels == 0 || (label.begin >= 0 && label.begin <= label.end &&
                                              label.end <= static_cast<int64_t>(text.size()));
    std::vector<int32_t> ids(text.size() + 8);
    size_t n = 0;
    const quire_status encoded =
        quire_tokenizer_encode(tokenizer(), text.data(), text.size(), flags | (length_ > 0 ? QUIRE_TEXT_CONTINUE : 0),
                               ids.data(), ids.size(), &n, nullptr);
    require_one_of(encoded, {QUIRE_OK, QUIRE_ERROR_INVALID_TEXT});
    const quire_status status =
        n_labels == 0 ? quire_session_feed_text(session_, text.data(), text.size(), flags, nullptr)
                      : quire_session_feed_labelled(session_, text.data(), text.size(), flags, &label, 1, nullptr);
    if (refused() != QUIRE_OK) {
      FUZZ_REQUIRE(status == refused());
    } else if (!good_label) {
      FUZZ_REQUIRE(status == QUIRE_ERROR_INVALID_ARGUMENT);
    } else {
      FUZZ_REQUIRE(status == encoded);
    }
    if (status == QUIRE_OK) length_ += static_cast<int64_t>(n);
  }

  void feed_positions() {
    std::vector<int32_t> ids(in_.below(12), 5);
    std::vector<int64_t> positions;
    int64_t position = in_.below(2) == 0 ? length_ : in_.byte() * 3;
    for (size_t i = 0; i < ids.size(); ++i) {
      positions.push_back(position);
      position += in_.byte() % 8 == 0 ? in_.small() : 1;
    }
    if (too_long(ids.size())) return;
    const quire_status status =
        quire_session_feed_positions(session_, ids.data(), positions.data(), ids.size(), nullptr);
    if (refused() != QUIRE_OK) {
      FUZZ_REQUIRE(status == refused());
    } else if (!takes_positions_) {
      FUZZ_REQUIRE(status == QUIRE_ERROR_UNSUPPORTED);
    } else {
      require_one_of(status, {QUIRE_OK, QUIRE_ERROR_INVALID_ARGUMENT});
      for (size_t i = 1; i < positions.size(); ++i) {
        FUZZ_REQUIRE(status != QUIRE_OK || positions[i] > positions[i - 1]);
      }
    }
    if (status != QUIRE_OK) return;
    placed_ = placed_ || !ids.empty();
    length_ += static_cast<int64_t>(ids.size());
  }

  void open() {
    quire_stream_options options;
    quire_stream_options_init(&options, sizeof options);
    options.flags = in_.byte() % 8;
    options.max_tokens = in_.byte() % 24;
    const uint8_t how = in_.byte();
    if (how & 1) options.temperature = 0.8f;
    if (how & 2) options.top_k = 5;
    options.min_tokens = how & 4 ? 4 : 0;
    const int32_t stop_id = how >> 2;
    if (how & 8) options.stop_ids = &stop_id, options.n_stop_ids = 1;
    const quire_text stop{"a", 1};
    if (how & 16) options.stop_strings = &stop, options.n_stop_strings = 1;
    quire_stream* made = nullptr;
    const quire_status status = quire_stream_open(session_, &options, &made, nullptr);
    FUZZ_REQUIRE((made != nullptr) == (status == QUIRE_OK));
    const bool beyond = policy_ <= QUIRE_OVERFLOW_ERROR && length_ + options.max_tokens > reach_;
    if (refused() != QUIRE_OK) {
      FUZZ_REQUIRE(status == refused());
    } else if (options.max_tokens > 0 && length_ == 0) {
      FUZZ_REQUIRE(status == QUIRE_ERROR_EMPTY);
    } else if (!placed_) {
      FUZZ_REQUIRE(status == (beyond ? QUIRE_ERROR_OVERFLOW : QUIRE_OK));
    } else {
      require_one_of(status, {QUIRE_OK, QUIRE_ERROR_OVERFLOW});
    }
    if (status != QUIRE_OK) return;
    quire_stream_release(stream_);  // one that has ended
    stream_ = made;
    max_tokens_ = options.max_tokens;
    n_generated_ = 0;
    open_ = was_open_ = true;
    cancelled_ = late_ = ended_ = stream_closed_ = false;
  }

  void next(int n) {
    for (; stream_ && n >= 0; --n) {
      quire_event event;
      quire_event_init(&event, sizeof event);
      const quire_status status = quire_stream_next(stream_, n == 5 ? 0 : -1, &event, nullptr);
      if (closed_ || stream_closed_) {
        FUZZ_REQUIRE(status == QUIRE_ERROR_CLOSED);
      } else if (ended_) {
        FUZZ_REQUIRE(status == QUIRE_END);
      } else if (status == QUIRE_ERROR_BUDGET) {
        FUZZ_REQUIRE(has_budget_);
        ended_ = true;
        open_ = false;
      } else {
        require_one_of(status, {QUIRE_OK, n == 5 ? QUIRE_TIMEOUT : QUIRE_OK});
        if (status == QUIRE_OK) take(event);
      }
    }
  }

  void take(const quire_event& event) {
    FUZZ_REQUIRE(event.kind >= QUIRE_EVENT_PREFILL && event.kind <= QUIRE_EVENT_NOTICE);
    FUZZ_REQUIRE((event.text_len == 0) == (event.text == nullptr));
    FUZZ_REQUIRE((event.message_len == 0) == (event.code == 0));
    // Where the stream had come to its end before it was cancelled, events that were waiting are still delivered.
    FUZZ_REQUIRE(!cancelled_ || event.kind != QUIRE_EVENT_TOKEN);
    late_ = late_ || (cancelled_ && event.kind != QUIRE_EVENT_END);
    if (event.kind == QUIRE_EVENT_TOKEN) {
      FUZZ_REQUIRE(event.token >= 0 && event.token < kVocab && event.n_tokens == length_ + 1);
      ++length_;
      FUZZ_REQUIRE(++n_generated_ <= max_tokens_);
    } else if (event.kind == QUIRE_EVENT_PREFILL) {
      FUZZ_REQUIRE(event.done > 0 && event.done <= event.total && event.n_tokens <= length_);
    } else if (event.kind == QUIRE_EVENT_END) {
      const int32_t reason = event.finish_reason;
      FUZZ_REQUIRE(reason >= QUIRE_FINISH_MAX_TOKENS && reason <= QUIRE_FINISH_CANCELLED);
      FUZZ_REQUIRE(reason != QUIRE_FINISH_CANCELLED || (cancelled_ && !late_));
      FUZZ_REQUIRE(reason != QUIRE_FINISH_MAX_TOKENS || n_generated_ == max_tokens_);
      FUZZ_REQUIRE(reason != QUIRE_FINISH_REACH || policy_ == QUIRE_OVERFLOW_STOP);
      ended_ = true;
      open_ = false;
    }
  }

  void cancel() {
    if (!stream_) return;
    const quire_status status = quire_stream_cancel(stream_, nullptr);
    // A closed stream has ended, and cancelling one that has does nothing.
    require_one_of(status, {closed_ ? QUIRE_ERROR_CLOSED : QUIRE_OK});
    cancelled_ = cancelled_ || !ended_;
  }

  void close_or_release() {
    if (in_.below(2) == 0) {
      if (stream_) FUZZ_REQUIRE(quire_stream_close(stream_, nullptr) == QUIRE_OK);
      stream_closed_ = true;
    } else {
      quire_stream_release(stream_);
      stream_ = nullptr;
      // A call that needs the session waits until the engine has let go.
      if (!closed_) FUZZ_REQUIRE(quire_session_feed_tokens(session_, nullptr, 0, nullptr) == QUIRE_OK);
    }
    open_ = false;
  }

  void truncate() {
    const int64_t n = in_.byte() - 4;
    const quire_status status = quire_session_truncate(session_, n, nullptr);
    const bool possible = n >= 0 && n <= length_;
    if (refused() != QUIRE_OK) {
      FUZZ_REQUIRE(status == refused() || (n < 0 && status == QUIRE_ERROR_INVALID_ARGUMENT));
    } else {
      FUZZ_REQUIRE(status == (possible ? QUIRE_OK : QUIRE_ERROR_INVALID_ARGUMENT));
    }
    if (status != QUIRE_OK) return;
    length_ = n;
    n_read_ = std::min(n_read_, n);
  }

  void forget() {
    const bool all = in_.below(4) == 0;
    const quire_status status =
        all ? quire_session_reset(session_, nullptr) : quire_session_discard_pending(session_, nullptr);
    FUZZ_REQUIRE(status == refused());
    if (status != QUIRE_OK) return;
    length_ = n_read_ = all ? 0 : n_read_;
    placed_ = placed_ && !all;
  }

  void read_rows() {
    const int64_t first = in_.small(), n = in_.small();
    std::vector<float> rows(static_cast<size_t>(in_.byte() % 4) * kVocab);
    for (const bool scores : {false, true}) {
      const quire_status status =
          scores ? quire_session_get_scores(session_, first, n, rows.data(), rows.size(), nullptr, nullptr)
                 : quire_session_get_logits(session_, first, n, rows.data(), rows.size(), nullptr, nullptr);
      // Without a buffer this asks for the number of floats, whether they are kept or not, and a stream is no obstacle.
      // How many fit is looked at first, too.
      if (refused() != QUIRE_OK) {
        require_one_of(status, {refused(), rows.empty() ? QUIRE_OK : refused(), QUIRE_ERROR_BUFFER_TOO_SMALL,
                                QUIRE_ERROR_INVALID_ARGUMENT});
      } else {
        require_one_of(status,
                       {QUIRE_OK, QUIRE_ERROR_NOT_FOUND, QUIRE_ERROR_BUFFER_TOO_SMALL, QUIRE_ERROR_INVALID_ARGUMENT});
        FUZZ_REQUIRE(status != QUIRE_OK || (n >= 1 && (rows.empty() || (first >= -1 && first + n <= n_read_))));
      }
    }
  }

  void fill() {
    const int64_t n = in_.small();
    const quire_status status = quire_session_fill_random(session_, n, 3, nullptr);
    if (refused() != QUIRE_OK || n < 0 || length_ > 0) {
      require_one_of(status,
                     {refused() == QUIRE_OK ? QUIRE_ERROR_INVALID_ARGUMENT : refused(), QUIRE_ERROR_INVALID_ARGUMENT});
    } else {
      require_one_of(status, {QUIRE_OK, has_budget_ ? QUIRE_ERROR_BUDGET : QUIRE_OK});
    }
    if (status == QUIRE_OK) length_ = n_read_ = n;
  }

  void read_labels() {
    std::vector<quire_label_attention> labels(64);
    size_t needed = 0;
    const quire_status status =
        quire_session_get_label_attention(session_, labels.data(), labels.size(), &needed, nullptr);
    FUZZ_REQUIRE(status == (refused() != QUIRE_OK ? refused() : chooses_ ? QUIRE_OK : QUIRE_ERROR_UNSUPPORTED));
    for (size_t i = 0; status == QUIRE_OK && i < needed; ++i) {
      FUZZ_REQUIRE(labels[i].id == 7 && labels[i].first_token + labels[i].n_tokens <= length_);
      FUZZ_REQUIRE(labels[i].share >= 0 && labels[i].share <= 1);
    }
  }

  Input& in_;
  quire_session* session_ = nullptr;
  quire_stream* stream_ = nullptr;  // the last one, until it is released
  int32_t policy_ = 0;
  bool takes_positions_ = false, chooses_ = false, has_budget_ = false;
  int64_t reach_ = 0;
  int64_t length_ = 0;   // read and pending tokens
  int64_t n_read_ = 0;   // of those read, when counted last
  bool placed_ = false;  // positions were given
  bool closed_ = false;
  bool open_ = false;                               // a stream keeps the session busy
  bool was_open_ = false;                           // so it was when tokens were counted last
  bool cancelled_ = false, stream_closed_ = false;  // the stream was
  bool late_ = false;                               // it delivered something after that
  bool ended_ = false;                              // its end was delivered
  int64_t max_tokens_ = 0, n_generated_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  Machine machine(in);
  for (int n = 0; n < kMostCalls && !in.empty(); ++n) {
    machine.call();
    machine.check_counts();
  }
  return 0;
}
