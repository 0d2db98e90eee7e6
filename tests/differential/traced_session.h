// A session, and beside it what its text must be: each call is made on the session, and its status, counts and events
// are compared with that text. At the end a fresh session that reads the text at once must say the same.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/abi/harness.h"
#include "tests/differential/random_plans.h"

namespace quire::test {

class TracedSession {
 public:
  // The model and the tokenizer must outlive it.
  TracedSession(quire_model* model, const quire_tokenizer* tokenizer, SessionPlan plan);

  bool busy() const { return stream_ != nullptr; }
  int64_t length() const { return static_cast<int64_t>(ids_.size()); }  // read and pending tokens
  bool takes_positions() const { return plan_.strategy.substr(0, 4) == "full"; }
  const SessionPlan& plan() const { return plan_; }

  // While no stream is open.
  void feed_tokens(const std::vector<int32_t>& ids);
  void feed_text(const std::string& text, uint32_t flags);
  void feed_positions(const std::vector<int32_t>& ids, int64_t gap);  // the first so far behind the last one
  void open(const StreamPlan& plan);                                  // what is not possible is refused
  void truncate(int64_t n_tokens);
  void discard_pending();
  void reset();
  // While one is.
  void read(int64_t n_tokens);  // until so many came, or the end
  void cancel();                // and reads to the end
  void close_stream();
  void release_stream();
  void expect_busy();
  // Ends an open stream, and generates once more here and in a fresh session of another runtime.
  void compare(quire_model* other, const StreamPlan& last);

 private:
  struct Run {
    std::vector<int32_t> tokens;
    std::string text;
    int32_t finish = QUIRE_FINISH_NONE;
    int32_t ending = -1;  // the id that ended it
    Outcome outcome;
  };

  void check_counts();
  void stream_ended();
  void record_rows();
  void append(const std::vector<int32_t>& ids);
  bool deliver(const quire_event& event);
  void cut(int64_t n_tokens);
  Run run(quire_session* session, const StreamPlan& plan);
  void compare_rows(quire_session* fresh, int64_t n);

  SessionPlan plan_;
  const quire_tokenizer* tokenizer_;
  int32_t vocab_;
  Owned<quire_session> session_;
  Owned<quire_stream> stream_;
  StreamPlan stream_plan_;
  int64_t n_generated_ = 0;  // by the open stream

  std::vector<int32_t> ids_;
  std::vector<int64_t> positions_;
  int64_t n_read_ = 0;                            // of them, as the session says
  std::map<int64_t, std::vector<float>> logits_;  // after a token, as the session said
  std::map<int64_t, float> scores_;
  std::map<int64_t, int32_t> greedy_;  // tokens that were chosen as the most probable
};

}  // namespace quire::test
