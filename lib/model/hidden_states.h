// What a forward pass leaves, and what becomes known when its device is done.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/ranked_logits.h"
#include "lib/model/adapter.h"
#include "lib/plan/plan.h"

namespace quire {

// Where a row of logits goes.
struct LogitsWanted {
  float* on_host = nullptr;        // f32 [vocab_size]; null: not there
  Buffer* copy = nullptr;          // likewise, in the device's memory
  RankedLogits* ranked = nullptr;  // what the device says of it; null: nothing
};

// Choices of chunks that are counted: Sequence::selected and what is known of it.
struct ChoiceCounts {
  std::shared_ptr<const Plan> plan;
  int64_t first_query = 0;
  int n_heads = 0;
  int64_t count_from = 0;
  std::span<std::vector<int64_t>> counts{};

  // Of one layer. picks: as select_chunks leaves them.
  void add(const int32_t* picks) const;
};

// The last layer's output, a row per token, in the order of the sequences. It lives in the pass's memory, until the
// next forward(). Its destructor waits until the pass is done.
class HiddenStates {
 public:
  // The end of the run of rows that begins at `row` and has the same adapters, and those.
  using AdapterRun = std::pair<int64_t, const AdapterList*>;

  HiddenStates(Rows rows, std::vector<AdapterRun> adapters) : rows_(rows), adapters_(std::move(adapters)) {}
  HiddenStates(HiddenStates&&) = default;
  HiddenStates& operator=(HiddenStates&&) = delete;
  ~HiddenStates() {
    if (fence_) (void)fence_->wait();
  }

  // Whether what was queued has run, so that wait() returns at once.
  bool done() const { return !fence_ || fence_->done(); }
  // The first failure of what was queued: the layers, and logits that were queued behind them. Then these logits are
  // where they are wanted, and choices are counted. kCancelled, kOutOfMemory, kIo: the stores' earlier tokens are as
  // they were.
  Status wait();

  Rows rows() const { return rows_; }
  AdapterRun adapters_from(int64_t row) const;

  // ---- the pass's
  // Everything was queued that was not queued before the last one.
  void end_with(std::shared_ptr<const Fence> fence) { fence_ = std::move(fence); }
  // Choices of n layers, which lie `stride` picks apart when the pass is done (0: it is one layer's for all of them).
  void count_later(ChoiceCounts counts, const int32_t* picks, int64_t stride, int n_layers) {
    choices_.push_back({std::move(counts), picks, stride, n_layers});
  }
  // Rows of logits, of `width`, which have been copied when the pass is done: f32 of those that are wanted on the host,
  // one behind the other, and what is said of all, which has the layout. What is not wanted may be null.
  void deliver_later(std::span<const LogitsWanted> rows, int64_t width, const float* on_host, const RankedRows& layout,
                     const std::byte* said) {
    logits_ = {{rows.begin(), rows.end()}, width, on_host, layout, said};
  }

 private:
  struct LaterChoices {
    ChoiceCounts counts;
    const int32_t* picks;
    int64_t stride;
    int n_layers;
  };
  struct LaterLogits {
    std::vector<LogitsWanted> rows;
    int64_t width = 0;
    const float* on_host = nullptr;
    RankedRows layout;
    const std::byte* said = nullptr;
  };

  std::shared_ptr<const Fence> fence_;
  Rows rows_;
  std::vector<AdapterRun> adapters_;  // ascending ends
  std::vector<LaterChoices> choices_;
  LaterLogits logits_;
};

}  // namespace quire
