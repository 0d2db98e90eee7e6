// A process that reads texts with a store of documents: what it finds, puts, and leaves there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/abi/harness.h"

namespace quire::test {

constexpr int32_t kStoreVocab = 64;
constexpr size_t kShortText = 100, kLongText = 180;  // the short one begins the long one

// All of a kind: QUIRE_FAULT_RUNS (default 6) of n_calls, evenly spread; 0: each.
int64_t fault_stride(int64_t n_calls);

class StoreReader {
 public:
  explicit StoreReader(const std::string& path, int64_t budget_bytes = 0);

  // A session that has read so many tokens of the text, with what the store has of them.
  Owned<quire_session> read(size_t n_tokens, uint32_t seed = 1);
  // Has it read all of the long text, from wherever it stands; its last logits.
  std::vector<float> read_on(quire_session* session, uint32_t seed = 1);
  Outcome put(quire_session* session);
  // How many tokens of the long text the store has.
  int64_t n_found(uint32_t seed = 1);
  // Opened anew, the directory has that many entries, all of them whole, and nothing else. may_be_torn: what a put
  // that was killed appended to one may be there as well.
  void expect_whole(size_t n_entries, bool may_be_torn = false);
  // Removes all entries.
  void clear();

 private:
  quire_store_match match(const std::vector<int32_t>& tokens);

  const std::string path_;
  const int64_t budget_bytes_;
  const std::string strategy_ = "full(kv_chunk=16)";
  Owned<quire_runtime> runtime_ = make_runtime(1);
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
  Owned<quire_store> store_;
};

}  // namespace quire::test
