// The attention executor of the CPU: runs any plan, of several sequences at once.
//
// Spans are cut at chunk edges into pieces (attention_pieces.h). Each query forms one partial result (max, sum,
// output) per piece and merges them in ascending order (cpu_sequence_attention.h), so that a query's result depends on
// its own index and nothing else. A tile merges its pieces as it goes; but one that alone would keep a thread busy
// while others wait (of a token, or of a question behind a long text) is shared: threads work on its pieces, slab by
// slab, and after each slab on its rows, whose partial results they merge in the same order. Running results go from
// one window of chunks to the next through args.state.
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

// Most floats of partial results that are kept before they are merged, and for each thread, where these are many:
// after each slab all threads wait for the last one.
constexpr size_t kSlabFloats = size_t{512} << 10;
constexpr size_t kThreadSlabFloats = size_t{64} << 10;

// A tile is shared that is more work than an equal part of all, of so many parts: so there are fewer of them.
int64_t equal_parts(int n_threads) { return 2 * n_threads; }

// Of the partial results of shared tiles, which have `all` floats; one alone has `most`.
size_t slab_floats(int n_threads, size_t all, size_t most) {
  return std::max(most, std::min(all, std::max(kSlabFloats, static_cast<size_t>(n_threads) * kThreadSlabFloats)));
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
  // A tile whose pieces threads share.
  struct Shared {
    const Work* work;
    Partial state;  // of all its rows
  };
  // A piece that is worked on for itself.
  struct Part {
    const Work* work;
    int64_t piece;
    PickSpan rows;
    float* memory;  // its partial result, and behind that the sums of its cells
  };
  // Parts [first, end) of a slab, of rows of a shared tile.
  struct Merge {
    const Shared* of;
    SequenceRun::RowRange rows;
    size_t first;
    size_t end;
  };
  void share_out();
  void lay_out(float* memory);
  void next_slab();
  void add_merges(const Shared& shared, size_t first_part);
  void run_part(const Part& part, const Scratch& scratch) const;
  void run_merge(const Merge& merge) const;
  bool run_all(const CancelToken* cancel);
  Scratch scratch_of(const Work& work, int thread) const {
    return work.run->scratch(memory_ + static_cast<size_t>(thread) * scratch_);
  }

  ThreadPool& pool_;
  std::vector<SequenceRun> runs_;
  std::vector<Work> work_;
  std::vector<const Work*> whole_;  // tiles that are not shared
  std::vector<Shared> shared_;
  int64_t shared_rows_ = 0;
  size_t scratch_ = 0;  // floats of a thread
  size_t slab_ = 0;     // and of all parts of a slab
  float* memory_ = nullptr;
  float* slab_memory_ = nullptr;
  // The slab, and where the next one begins.
  std::vector<Part> parts_;
  std::vector<Merge> merges_;
  size_t next_shared_ = 0;
  int64_t next_piece_ = 0;
};

void Executor::share_out() {
  const auto cost = [](const Work& work) { return work.tile->rows() * (work.end - work.first); };
  int64_t all = 0;
  for (const Work& work : work_) all += cost(work);
  size_t floats = 0, most = 0;
  for (const Work& work : work_) {
    const int64_t n_pieces = work.end - work.first;
    if (pool_.n_threads() == 1 || n_pieces < 2 || equal_parts(pool_.n_threads()) * cost(work) <= all) {
      whole_.push_back(&work);
      continue;
    }
    shared_.push_back({&work, {}});
    shared_rows_ += work.tile->rows();
    const size_t of_part = work.run->most_part_floats(work);
    floats += static_cast<size_t>(n_pieces) * of_part;
    most = std::max(most, of_part);
  }
  slab_ = slab_floats(pool_.n_threads(), floats, most);
}

// memory: scratch of each thread, then running results of shared tiles, then a slab.
void Executor::lay_out(float* memory) {
  memory_ = memory;
  float* next = memory + static_cast<size_t>(pool_.n_threads()) * scratch_;
  for (Shared& shared : shared_) {
    const int64_t rows = shared.work->tile->rows();
    shared.state = shared.work->run->part(next, rows);
    next += shared.work->run->part_floats(rows);
  }
  slab_memory_ = next;
}

void Executor::next_slab() {
  parts_.clear();
  merges_.clear();
  size_t used = 0;
  for (; next_shared_ < shared_.size(); ++next_shared_, next_piece_ = 0) {
    const Shared& shared = shared_[next_shared_];
    const Work& work = *shared.work;
    const size_t first_part = parts_.size();
    const int64_t n_pieces = work.end - work.first;
    for (; next_piece_ < n_pieces && used + work.run->most_part_floats(work) <= slab_; ++next_piece_) {
      const int64_t piece = work.first + next_piece_;
      const PickSpan rows = work.run->rows_of(work, work.piece(piece));
      parts_.push_back({&work, piece, rows, slab_memory_ + used});
      used += work.run->part_floats(std::ssize(rows)) + work.run->n_sums(work, work.piece(piece), rows);
    }
    if (parts_.size() > first_part) add_merges(shared, first_part);
    if (next_piece_ < n_pieces) return;
  }
}

// As many as threads, or a few more, of all tiles together.
void Executor::add_merges(const Shared& shared, size_t first_part) {
  const int64_t rows = shared.work->tile->rows(), step = ceil_div(shared_rows_, 2 * pool_.n_threads());
  for (int64_t row = 0; row < rows; row += step) {
    merges_.push_back({&shared, {row, std::min(rows, row + step)}, first_part, parts_.size()});
  }
}

void Executor::run_part(const Part& part, const Scratch& scratch) const {
  const Work& work = *part.work;
  const Piece& piece = work.piece(part.piece);
  const int64_t rows = std::ssize(part.rows);
  work.run->run_piece(work, piece, part.rows, work.run->cells_of(work, piece), scratch,
                      work.run->part(part.memory, rows), part.memory + work.run->part_floats(rows));
}

void Executor::run_merge(const Merge& merge) const {
  const Work& work = *merge.of->work;
  const SequenceRun& run = *work.run;
  Partial state = merge.of->state;
  const Part* const end = parts_.data() + merge.end;
  for (const Part* part = parts_.data() + merge.first; part < end; ++part) {
    if (part->piece == work.first) run.start(work, merge.rows, state);
    const int64_t rows = std::ssize(part->rows);
    run.merge(work, merge.rows, part->rows, run.cells_of(work, work.piece(part->piece)), run.part(part->memory, rows),
              part->memory + run.part_floats(rows), state);
    if (part->piece + 1 == work.end) run.finish(work, merge.rows, state);
  }
}

bool Executor::run_all(const CancelToken* cancel) {
  auto n_whole = std::ssize(whole_);  // still to be done
  do {
    next_slab();
    const auto n_parts = std::ssize(parts_);
    // Several at a time; but in a short text each thread has some.
    const int64_t per_task = std::clamp<int64_t>(n_parts / (4 * pool_.n_threads()), 1, 4);
    bool done = pool_.run(n_whole + ceil_div(n_parts, per_task), cancel, [&](int64_t task, int thread) {
      if (task < n_whole) {
        const Work& work = *whole_[static_cast<size_t>(task)];
        return work.run->run_tile(work, scratch_of(work, thread));
      }
      const int64_t first = (task - n_whole) * per_task;
      for (int64_t p = first; p < std::min(n_parts, first + per_task); ++p) {
        const Part& part = parts_[static_cast<size_t>(p)];
        run_part(part, scratch_of(*part.work, thread));
      }
    });
    done = done &&
           pool_.run(std::ssize(merges_), cancel, [&](int64_t m, int) { run_merge(merges_[static_cast<size_t>(m)]); });
    if (!done) return false;
    n_whole = 0;
  } while (next_shared_ < shared_.size());
  return true;
}

Status Executor::run(Workspace& workspace, const CancelToken* cancel) {
  for (const SequenceRun& run : runs_) scratch_ = std::max(scratch_, run.scratch_floats());
  share_out();
  size_t floats = static_cast<size_t>(pool_.n_threads()) * scratch_ + slab_;
  for (const Shared& shared : shared_) floats += shared.work->run->part_floats(shared.work->tile->rows());
  auto* memory = static_cast<float*>(workspace.require(floats * sizeof(float)));
  if (!memory) {
    return Status(Code::kOutOfMemory,
                  "no memory for attention (" + std::to_string(floats * sizeof(float)) + " bytes of workspace)");
  }
  lay_out(memory);
  return run_all(cancel) ? Status() : Status(Code::kCancelled, "cancelled");
}

}  // namespace

size_t attention_floats(int n_threads, const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                        const ChunkSelection& selection) {
  const bool selects = selection.count > 0;
  const int64_t group = n_query_heads / geometry.n_kv_heads;
  const int64_t tile_queries = std::max<int64_t>(1, (selects ? kSelectedTileRows : kTileRows) / group);
  const int64_t most_rows = std::min(tile_queries, n_queries) * group;
  // As if keys were turned when they are read (rerope, self_extend): little beside the rest.
  const size_t of_thread = Scratch(nullptr, most_rows, geometry.head_dim, geometry.chunk, true, true).n_floats;
  if (n_threads == 1) return of_thread;
  const int64_t n_tiles = ceil_div(n_queries, tile_queries) * geometry.n_kv_heads;
  const auto n_shared = static_cast<size_t>(std::min(equal_parts(n_threads) - 1, n_tiles));
  const auto n_pieces = static_cast<size_t>(ceil_div(n_keys, selects ? selection.chunk : geometry.chunk));
  const size_t part = partial_floats(most_rows, geometry.head_dim);
  return static_cast<size_t>(n_threads) * of_thread + n_shared * part +
         slab_floats(n_threads, n_shared * n_pieces * part, part);
}

Status run_attention(ThreadPool& pool, Workspace& workspace, AttentionLists& lists, const CancelToken* cancel,
                     const CpuStep& step, std::span<const AttentionArgs> sequences) {
  const Status status = Executor(pool, lists, step, sequences).run(workspace, cancel);
  if (bytes_of(lists.selected) > kMostKept) lists = {};
  return status;
}

}  // namespace quire::cpu
