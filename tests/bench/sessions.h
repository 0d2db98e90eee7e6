// What the end-to-end benchmarks share: failures end the program, tokens are made up.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "lib/session/session.h"
#include "lib/session/stream.h"

namespace quire::bench {

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

inline void check(const Status& status) { take(status.ok() ? Result<int>(0) : Result<int>(status)); }

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of this process, on all threads.
inline double process_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// How long body() takes.
template <typename Body>
double seconds(const Body& body) {
  const double begin = wall_seconds();
  body();
  return wall_seconds() - begin;
}

inline double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

inline void feed(Session& session, int64_t n) {
  const int32_t vocab = session.model().llama->config().vocab_size;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(3 + i * 7919 % (vocab - 3)));
  check(session.feed_tokens(tokens));
}

inline SessionStats stats_of(const Session& session) {
  SessionStats stats;
  check(session.stats(&stats));
  return stats;
}

// Reads a stream to its end.
inline std::vector<int32_t> tokens_of(GenerationStream& stream) {
  std::vector<int32_t> tokens;
  for (;;) {
    const StreamEvent* event = nullptr;
    if (take(stream.next(-1, &event)) == NextResult::kEnd) return tokens;
    if (event->type == StreamEvent::Type::kToken) tokens.push_back(event->token);
  }
}

// Generates n tokens, greedily, past any end of text.
inline std::vector<int32_t> generate(const std::shared_ptr<Session>& session, int64_t n) {
  StreamOptions options;
  options.max_tokens = n;
  options.ignore_eos = true;
  return tokens_of(*take(GenerationStream::open(session, options)));
}

// Seconds of the median of n generated tokens, from event to event.
inline double token_seconds(const std::shared_ptr<Session>& session, int64_t n) {
  StreamOptions options;
  options.max_tokens = n;
  options.ignore_eos = true;
  const auto stream = take(GenerationStream::open(session, options));
  std::vector<double> times;
  double last = 0;
  for (;;) {
    const StreamEvent* event = nullptr;
    if (take(stream->next(-1, &event)) == NextResult::kEnd) return median(times);
    if (event->type != StreamEvent::Type::kToken) continue;
    const double now = wall_seconds();
    if (last > 0) times.push_back(now - last);
    last = now;
  }
}

}  // namespace quire::bench
