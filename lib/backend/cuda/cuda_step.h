// What the CUDA backend prepares of a step: the lists of all its sequences, in device memory, there by one copy.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "lib/backend/cuda/attention_lists.h"
#include "lib/backend/cuda/cuda_queue.h"
#include "lib/support/mutex.h"

namespace quire::cuda {

// Host memory and as much on the device, for the lists of a step.
struct ListMemory {
  DeviceMemory host, device;
};

// Keeps the memory of steps that are done for those to come. Any thread.
class ListPool {
 public:
  ListPool(const CudaDevice& device, std::atomic<int64_t>& total) : device_(device), total_(total) {}
  Result<ListMemory> take(size_t bytes) QUIRE_EXCLUDES(mutex_);
  void give_back(ListMemory memory) QUIRE_EXCLUDES(mutex_);

 private:
  static constexpr size_t kMostKept = 8;
  const CudaDevice& device_;
  std::atomic<int64_t>& total_;
  Mutex mutex_;
  std::vector<ListMemory> kept_ QUIRE_GUARDED_BY(mutex_);
};

// Arrays on the host, and where they will lie on the device, one behind the other.
class ListLayout {
 public:
  // The array's place; read when write() is called.
  template <typename T>
  size_t add(const std::vector<T>& list) {
    return add(list.data(), list.size() * sizeof(T));
  }
  size_t bytes() const { return bytes_; }
  void write(std::byte* to) const;

 private:
  size_t add(const void* data, size_t bytes);

  struct Array {
    const void* data;
    size_t bytes, at;
  };
  std::vector<Array> arrays_;
  size_t bytes_ = 0;
};

// Where the lists of an attention call lie on the device. Works and merges: of one sequence.
struct ListsOnDevice {
  // Where they will lie in memory that begins at null.
  ListsOnDevice(const AttentionLists& lists, ListLayout& layout);
  // The lists of memory that begins at `base`.
  void set(const std::byte* base, Attention& args) const;

  size_t tiles, pieces, spans, picks, works, merges;
  int64_t first_work = 0, n_works = 0;
  int64_t first_merge = 0, n_merges = 0;
  int32_t n_parts = 0;
};

// Of a sequence's selected blocks: the runs of keys that scores need.
struct ScoredBlock {
  const QueryBlock* block = nullptr;
  int64_t first_row = 0;  // among all queries of the plan
  int64_t first_index = 0;
  int64_t first_span = 0;
  int n_spans = 0;
};

// Of a sequence whose queries all choose chunks: what the device needs to make its lists itself. Otherwise, and where
// these would take more memory than this, the choice is read back, and they are made on the host.
constexpr int64_t kMostListBytes = int64_t{256} << 20;
struct ChosenTiles {
  int64_t n_tiles = 0;  // 0: made on the host
  int64_t first_tile = 0;
  int64_t first_span = 0;
  int64_t n_chunks = 0;                     // up to the last query's own, which counts
  int64_t most_pieces = 0, most_picks = 0;  // of a tile
  int n_parts = 1;
  int64_t first_merge = 0;
};

class CudaStep : public PreparedStep {
 public:
  struct Sequence : StepSequence {
    tiling::Pieces pieces;  // of the blocks without a selection
    int64_t part_keys = 0;  // ListOptions of its calls
    int64_t tile_rows = kTileRows;
    bool wide() const { return tile_rows > kTileRows; }  // Attention::wide
    bool few = false;                                    // Attention::few, of calls without a window
    bool plain = false;                                  // Attention::plain, of calls with the lists of the step
    std::vector<ScoredBlock> scored;
    ChosenTiles chosen;
    size_t query_scale = 0;  // place of f32 [n], if the plan has it
    size_t sticky = 0;       // place of the plan's sticky chunks
    int64_t first_index = 0;
  };

  CudaStep(ListPool& pool, int n_heads) : n_query_heads(n_heads), pool_(pool) {}
  ~CudaStep() override { pool_.give_back(std::move(memory_)); }

  // Cuts the plans.
  void cut(std::span<const StepSequence> all, const DeviceFacts& device);
  // Queues the copy.
  Status upload(CudaQueue& queue);

  const Sequence& at(int sequence) const { return sequences_[static_cast<size_t>(sequence)]; }
  // Sets the lists of a sequence's blocks without a selection.
  int32_t set_lists(int sequence, Attention& args) const;
  const float* query_scale(int sequence) const {
    return at(sequence).plan->query_scale.empty()
               ? nullptr
               : reinterpret_cast<const float*>(memory_.device.data() + at(sequence).query_scale);
  }
  const int32_t* sticky(int sequence) const {
    return reinterpret_cast<const int32_t*>(memory_.device.data() + at(sequence).sticky);
  }
  // The first key of a sequence and the first query of a block, on the device.
  const int64_t* first_key(int sequence) const { return indexes() + at(sequence).first_index; }
  const int64_t* first_query(const ScoredBlock& block) const { return indexes() + block.first_index; }
  const ScoreSpan* score_spans(const ScoredBlock& block) const {
    return reinterpret_cast<const ScoreSpan*>(memory_.device.data() + score_spans_at_) + block.first_span;
  }
  // Sets the tiles, spans and merges of lists that the device makes, and what it makes them of.
  void set_chosen(int sequence, Attention& args, ListChosen& of) const;
  static ListOptions list_options(const Sequence& sequence);
  // Keys of the parts of a text of n_keys (ListOptions); 0: so many tiles need none. It depends on one sequence alone.
  static int64_t part_keys(int64_t n_keys, int64_t n_tiles, int n_processors, int64_t chunk);

  const int n_query_heads;

 private:
  const int64_t* indexes() const { return reinterpret_cast<const int64_t*>(memory_.device.data() + indexes_at_); }
  // Returns where the index will stand among all of them.
  int64_t add_index(int64_t index) {
    indexes_.push_back(index);
    return static_cast<int64_t>(indexes_.size()) - 1;
  }
  void add_scored(Sequence& sequence);
  void add_chosen(Sequence& sequence, int32_t first_span, int n_processors);
  int64_t add_chosen_spans(const Plan& plan, const QueryBlock& block, int32_t first_span);
  void add_chosen_tiles(const Sequence& sequence, const ScoredBlock& scored, const ChosenKeys& keys);

  ListPool& pool_;
  std::vector<Sequence> sequences_;
  AttentionLists lists_;
  std::vector<ListsOnDevice> places_;
  std::vector<int64_t> indexes_;  // of tokens
  std::vector<ScoreSpan> score_spans_;
  std::vector<AttentionTile> chosen_tiles_;
  std::vector<ChosenKeys> chosen_keys_;  // by tile
  std::vector<ChosenSpan> chosen_spans_;
  std::vector<AttentionMerge> chosen_merges_;
  size_t indexes_at_ = 0, score_spans_at_ = 0, chosen_tiles_at_ = 0, chosen_keys_at_ = 0, chosen_spans_at_ = 0,
         chosen_merges_at_ = 0;
  ListLayout layout_;
  ListMemory memory_;
};

inline const CudaStep& cuda_step(const PreparedStep& step) { return static_cast<const CudaStep&>(step); }

}  // namespace quire::cuda
