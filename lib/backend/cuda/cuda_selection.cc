// Representations of chunks, and the choice of chunks by them.
#include <algorithm>

#include "lib/backend/cuda/cuda_operations.h"
#include "lib/backend/cuda/cuda_weights.h"

namespace quire::cuda {
namespace {

using Representation = ChunkSelection::Representation;
using Sharing = ChunkSelection::Sharing;

static_assert(kPageChunks == Representations::kPageChunks);

class Selector {
 public:
  Selector(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const SelectArgs& args)
      : queue_(queue),
        cancel_(cancel),
        step_(step),
        args_(args),
        sequence_(step.at(args.sequence)),
        s_(sequence_.plan->selection),
        n_heads_(step.n_query_heads),
        width_(sequence_.plan->most_selected()) {}

  Status run() {
    const KvGeometry& g = sequence_.geometry;
    score_.kind = s_.pick == ChunkSelection::Pick::kRandom          ? ChunkScores::kRandom
                  : s_.representation == Representation::kAttention ? ChunkScores::kVectors
                  : s_.representation == Representation::kMean      ? ChunkScores::kMeans
                                                                    : ChunkScores::kBounds;
    score_.negate = s_.pick == ChunkSelection::Pick::kWorst;
    score_.head_dim = g.head_dim;
    score_.n_query_heads = n_heads_;
    score_.n_kv_heads = g.n_kv_heads;
    score_.scale = sequence_.scale;
    score_.chunk = s_.chunk;
    score_.key_period = s_.key_period;
    score_.turns = turns_of(sequence_.rope);
    score_.layer = args_.layer;
    score_.vectors.type = s_.vector_type(g.type);
    QUIRE_ASSIGN(score_.vectors.pages, queue_.pages(args_.representations));

    const bool shared = s_.sharing == Sharing::kLayer || s_.sharing == Sharing::kGroup;
    choose_.chunk = s_.chunk;
    choose_.count = s_.count;
    choose_.one_in = s_.one_in;
    choose_.n_last = s_.n_last;
    choose_.first_free = s_.first_free();
    choose_.first_forced = s_.first == ChunkSelection::First::kForced;
    choose_.n_query_heads = n_heads_;
    choose_.heads = s_.sharing == Sharing::kLayer ? n_heads_ : shared ? n_heads_ / g.n_kv_heads : 1;
    choose_.softmax = shared && s_.representation != Representation::kAttention;
    choose_.width = width_;
    choose_.sticky = step_.sticky(args_.sequence);
    choose_.n_sticky = static_cast<int64_t>(sequence_.plan->sticky.size());
    for (const ScoredBlock& block : sequence_.scored) QUIRE_TRY(run(block));
    return {};
  }

 private:
  // As many queries at a time as memory for scores allows.
  Status run(const ScoredBlock& scored) {
    const QueryBlock& block = *scored.block;
    const int64_t last = block.first_query + block.n_queries - 1;
    const int64_t row_bytes = std::max<int64_t>(1, last / s_.chunk) * n_heads_ * int64_t{sizeof(float)};
    const int64_t most = std::max<int64_t>(1, kMostScoreBytes / row_bytes);
    score_.spans = step_.score_spans(scored);
    score_.first_query = choose_.first_query = step_.first_query(scored);
    score_.n_spans = scored.n_spans;
    for (int64_t q = 0; q < block.n_queries; q += most) {
      score_.first_row = choose_.first_row = q;
      QUIRE_TRY(run(scored.first_row + q, std::min(most, block.n_queries - q), block.first_query + q));
    }
    return {};
  }

  // n queries from a row of the sequence's on.
  Status run(int64_t row, int64_t n, int64_t first_query) {
    const int64_t n_chunks = std::max<int64_t>(1, (first_query + n - 1) / s_.chunk);
    const auto floats = static_cast<size_t>(n * n_heads_ * n_chunks);
    QUIRE_ASSIGN(std::byte* const memory, queue_.workspace(Work::kScores, floats * sizeof(float)));
    score_.scores = choose_.scores = reinterpret_cast<float*>(memory);
    score_.n_chunks = choose_.n_chunks = n_chunks;
    score_.n = choose_.n = n;
    score_.queries = device_rows(args_.queries.at(row));
    choose_.chosen = reinterpret_cast<int32_t*>(address(*args_.out)) + args_.out_offset + row * n_heads_ * width_;
    QUIRE_TRY(queue_.launch<&DeviceApi::score_chunks>("scores of chunks", cancel_, score_));
    return queue_.launch<&DeviceApi::choose_chunks>("choosing chunks", cancel_, choose_);
  }

  CudaQueue& queue_;
  const CancelToken* const cancel_;
  const CudaStep& step_;
  const SelectArgs& args_;
  const CudaStep::Sequence& sequence_;
  const ChunkSelection& s_;
  const int n_heads_;
  const int64_t width_;
  ScoreChunks score_;
  ChooseChunks choose_;
};

}  // namespace

Status run_represent(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const RepresentArgs& args) {
  const CudaStep::Sequence& sequence = step.at(args.sequence);
  QUIRE_ASSIGN(void* const* const records, queue.records(args.records));
  ChunkVectors out;
  QUIRE_ASSIGN(out.pages, queue.pages(args.out));
  out.type = args.selection.vector_type(sequence.geometry.type);
  if (args.selection.representation == Representation::kAttention) {
    AttendInChunks of;
    of.shape = shape_of(sequence.geometry);
    of.records = records;
    of.turns = turns_of(sequence.rope);
    of.n_query_heads = step.n_query_heads;
    of.scale = sequence.scale;
    of.rotary_dim = args.order.moves() ? static_cast<int>(args.order.rotary_dim) : sequence.geometry.head_dim;
    of.queries = device_rows(args.queries);
    of.first_chunk = args.first_chunk;
    of.n_chunks = args.n_chunks;
    of.out = out;
    return queue.launch<&DeviceApi::attend_in_chunks>("representations", cancel, of);
  }
  SummariseKeys of;
  of.shape = shape_of(sequence.geometry);
  of.records = records;
  of.turns = turns_of(sequence.rope);
  of.chunk = args.selection.chunk;
  of.key_period = args.selection.key_period;
  of.first_chunk = args.first_chunk;
  of.n_chunks = args.n_chunks;
  of.bounds = args.selection.representation == Representation::kBounds;
  of.out = out;
  return queue.launch<&DeviceApi::summarise_keys>("representations", cancel, of);
}

Status run_select(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const SelectArgs& args) {
  return Selector(queue, cancel, step, args).run();
}

}  // namespace quire::cuda
