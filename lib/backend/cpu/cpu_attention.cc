// The attention executor of the CPU: runs any plan, of several sequences at once.
//
// Spans are cut at chunk edges into pieces (attention_pieces.h). Each query forms one partial result (max, sum,
// output) per piece and merges them in ascending order (cpu_sequence_attention.h), so that a query's result depends on
// its own index and nothing else. Many tiles: each merges its pieces as it goes. Few tiles (decode): pieces are spread
// over threads, and merged by a second job in the same order. Running results go from one window of chunks to the next
// through args.state.
#include <algorithm>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_sequence_attention.h"
#include "lib/backend/cpu/cpu_step.h"

namespace quire::cpu {
namespace {

using Work = SequenceRun::Work;

// Bytes of lists that are kept: those of a token behind a million others.
constexpr size_t kMostKept = size_t{16} << 20;

size_t bytes_of(std::span<const SelectedPieces> all) {
  size_t bytes = 0;
  for (const auto& [memory, pieces] : all) {
    bytes += pieces.pieces.capacity() * sizeof(Piece) + pieces.picks.capacity() * sizeof(Pick);
    bytes += memory.words.capacity() * sizeof(tiling::CutMemory::Word);
    bytes += memory.runs.capacity() * sizeof(tiling::CutMemory::Run);
  }
  return bytes;
}

// Most rows of a tile whose pieces are spread over threads.
constexpr int64_t kSplitRows = 16;

// A call of few rows spreads the pieces over threads: that costs memory for a partial result of each.
bool splits_pieces(int64_t most_rows, int64_t n_tiles, int n_threads) {
  return most_rows <= kSplitRows && n_tiles < 2 * n_threads;
}

class Executor {
 public:
  Executor(ThreadPool& pool, AttentionLists& lists, const CpuStep& step, std::span<const AttentionArgs> sequences)
      : pool_(pool) {
    if (lists.selected.size() < sequences.size()) lists.selected.resize(sequences.size());
    runs_.reserve(sequences.size());
    for (size_t s = 0; s < sequences.size(); ++s) runs_.emplace_back(step, sequences[s], pool, lists.selected[s]);
    for (const SequenceRun& run : runs_) run.add_work(work_);
  }

  Status run(Workspace& workspace, const CancelToken* cancel);

 private:
  // A piece that is worked on for itself.
  struct Part {
    const Work* work;
    int64_t piece;
    PickSpan rows;
    size_t memory;  // where its partial result lies, in floats, and behind that the sums of its cells
  };
  void split();
  Status run_parts(const CancelToken* cancel, float* memory);
  float* scratch_of(int thread, float* memory) const { return memory + static_cast<size_t>(thread) * scratch_; }

  ThreadPool& pool_;
  std::vector<SequenceRun> runs_;
  std::vector<Work> work_;
  size_t scratch_ = 0;  // floats of a thread
  std::vector<Part> parts_;
  std::vector<size_t> first_part_;  // of each tile
  size_t part_floats_ = 0;          // of all
};

void Executor::split() {
  size_t n_parts = 0;
  for (const Work& work : work_) n_parts += static_cast<size_t>(work.end - work.first);
  parts_.reserve(n_parts);
  for (const Work& work : work_) {
    first_part_.push_back(parts_.size());
    for (int64_t p = work.first; p < work.end; ++p) {
      const PickSpan rows = work.run->rows_of(work, work.piece(p));
      parts_.push_back({&work, p, rows, part_floats_});
      part_floats_ += work.run->part_floats() + work.run->n_sums(work, work.piece(p), rows);
    }
  }
}

// Every (tile, piece) for itself, then the merges. memory: scratch of each thread, then a partial result of each part.
Status Executor::run_parts(const CancelToken* cancel, float* memory) {
  float* part_memory = scratch_of(pool_.n_threads(), memory);
  const auto n_parts = static_cast<int64_t>(parts_.size());
  // Several at a time; but in a short text each thread has some.
  const int64_t per_task = std::clamp<int64_t>(n_parts / (2 * pool_.n_threads()), 1, 4);
  bool done = pool_.run(ceil_div(n_parts, per_task), cancel, [&](int64_t task, int thread) {
    const int64_t end = std::min(n_parts, (task + 1) * per_task);
    for (int64_t index = task * per_task; index < end; ++index) {
      const Part& part = parts_[static_cast<size_t>(index)];
      const SequenceRun& run = *part.work->run;
      float* own = part_memory + part.memory;
      const Piece& piece = part.work->piece(part.piece);
      run.run_piece(*part.work, piece, part.rows, run.cells_of(*part.work, piece),
                    run.scratch(scratch_of(thread, memory)), run.part(own), own + run.part_floats());
    }
  });
  if (!done) return Status(Code::kCancelled, "cancelled");
  done = pool_.run(static_cast<int64_t>(work_.size()), cancel, [&](int64_t t, int thread) {
    const Work& work = work_[static_cast<size_t>(t)];
    Partial state = work.run->part(scratch_of(thread, memory));
    work.run->start(work, state);
    const Part* parts = parts_.data() + first_part_[static_cast<size_t>(t)];
    for (int64_t p = work.first; p < work.end; ++p) {
      const Part& part = parts[p - work.first];
      float* own = part_memory + part.memory;
      work.run->merge(work, part.rows, work.run->cells_of(work, work.piece(p)), work.run->part(own),
                      own + work.run->part_floats(), state);
    }
    work.run->finish(work, state);
  });
  return done ? Status() : Status(Code::kCancelled, "cancelled");
}

Status Executor::run(Workspace& workspace, const CancelToken* cancel) {
  int64_t most_rows = 0;
  for (const SequenceRun& run : runs_) {
    scratch_ = std::max(scratch_, run.scratch_floats());
    most_rows = std::max(most_rows, run.most_rows());
  }
  if (splits_pieces(most_rows, static_cast<int64_t>(work_.size()), pool_.n_threads())) {
    split();
  }
  const size_t floats = static_cast<size_t>(pool_.n_threads()) * scratch_ + part_floats_;
  auto* memory = static_cast<float*>(workspace.require(floats * sizeof(float)));
  if (!memory) {
    return Status(Code::kOutOfMemory,
                  "no memory for attention (" + std::to_string(floats * sizeof(float)) + " bytes of workspace)");
  }
  if (!parts_.empty()) return run_parts(cancel, memory);
  const bool done = pool_.run(static_cast<int64_t>(work_.size()), cancel, [&](int64_t t, int thread) {
    const Work& work = work_[static_cast<size_t>(t)];
    work.run->run_tile(work, work.run->scratch(scratch_of(thread, memory)));
  });
  return done ? Status() : Status(Code::kCancelled, "cancelled");
}

}  // namespace

size_t attention_floats(int n_threads, const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                        const ChunkSelection& selection) {
  const bool selects = selection.count > 0;
  const int64_t group = n_query_heads / geometry.n_kv_heads;
  const int64_t tile_queries = std::max<int64_t>(1, (selects ? kSelectedTileRows : kTileRows) / group);
  const int64_t most_rows = std::min(tile_queries, n_queries) * group;
  const int64_t n_tiles = ceil_div(n_queries, tile_queries) * geometry.n_kv_heads;
  // As if keys were turned when they are read (rerope, self_extend): little beside the rest.
  size_t floats = static_cast<size_t>(n_threads) *
                  Scratch(nullptr, most_rows, geometry.head_dim, geometry.chunk, true, true).n_floats;
  if (splits_pieces(most_rows, n_tiles, n_threads)) {
    const int64_t all = ceil_div(n_keys, selects ? selection.chunk : geometry.chunk);
    const int64_t pieces = n_tiles * (selects ? std::min(all, selection.most(n_keys - 1) * group * n_queries) : all);
    floats += static_cast<size_t>(pieces) * partial_floats(most_rows, geometry.head_dim);
  }
  return floats;
}

Status run_attention(ThreadPool& pool, Workspace& workspace, AttentionLists& lists, const CancelToken* cancel,
                     const CpuStep& step, std::span<const AttentionArgs> sequences) {
  const Status status = Executor(pool, lists, step, sequences).run(workspace, cancel);
  if (bytes_of(lists.selected) > kMostKept) lists = {};
  return status;
}

}  // namespace quire::cpu
