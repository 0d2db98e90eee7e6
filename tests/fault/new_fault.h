// What the tests of a failing operator new share: the calls that an application makes, and a place for each failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/abi/harness.h"
#include "tests/fault/bpe_models.h"
#include "tests/fault/failing_new.h"

namespace quire::test {

constexpr int64_t kMostRuns = 100;  // of places where allocation fails, unless QUIRE_FAULT_RUNS says another number
constexpr int64_t kNew = 6;         // tokens that an application generates
constexpr char kSelecting[] = "longheads(chunk=16, chunks=4)";

struct Result {
  quire_status status = QUIRE_OK;
  const char* call = "";  // the last one
  int32_t tokens[kNew] = {};
  int64_t n_tokens = 0;
  int64_t kv_bytes = 0;
};

testing::AssertionResult is_good_or_out_of_memory(const Result& result);

// The everyday calls, from C structs on the stack alone. Each function stops at the first failure.
struct Application {
  quire_runtime* runtime = nullptr;
  quire_model* model = nullptr;
  quire_session* session = nullptr;
  quire_stream* stream = nullptr;
  const char* strategy = "dca(chunk=48) + yarn(factor=2)";
  const char* kv_directory = nullptr;                              // of the session's spill file
  const char* packed_directory = nullptr;                          // of the model's packed weights
  LoadWay way;                                                     // of the model's weights
  uint32_t flags = QUIRE_STREAM_SCORE | QUIRE_STREAM_KEEP_LOGITS;  // of its streams
  Result result;

  ~Application();

  // Keeps the status of a call; whether it is good.
  bool good(quire_status status, const char* call);
  // Makes the runtime and loads the model.
  bool open(const char* path, int64_t prefix_cache_bytes = 0);
  // Makes the session, feeds it a text, and generates.
  void read();
  void run(const char* path);  // both
  // Generates what is missing of kNew tokens.
  void generate();
  // After a failure of the stream: the session goes on.
  void resume();

 private:
  quire_status load(const char* path);
};

// Bytes that the allocator of the applications' runtimes gave and that have not come back.
int64_t n_allocator_bytes();

int64_t n_open_files();
// A released session's files may be closed on the engine thread, a moment later. False after ten seconds.
bool wait_for_open_files(int64_t n);

// One allocation fails, or (parameter true) all from one on.
class NewFault : public testing::TestWithParam<bool> {
 protected:
  // The last allocation that fails where the first one is n.
  static int64_t last(int64_t n) { return GetParam() ? INT64_MAX : n; }
};

}  // namespace quire::test
