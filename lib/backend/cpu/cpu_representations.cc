// What stands for a chunk when heads choose chunks: vectors made of its keys, and for LongHeads of its queries.
#include <algorithm>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_selection.h"
#include "lib/backend/cpu/cpu_step.h"
#include "lib/backend/cpu/rope_cache.h"

namespace quire::cpu {
namespace {

constexpr int64_t kPageChunks = Representations::kPageChunks;
constexpr int64_t kRepresentRows = 64;  // queries of a chunk scored at a time

// The representation of a stored chunk for one query head, in the scratch memory of a thread.
class Representer {
 public:
  Representer(const CpuStep& step, const RepresentArgs& args, float* scratch)
      : args_(args),
        sequence_(step.at(args.sequence)),
        group_(step.n_query_heads / sequence_.geometry.n_kv_heads),
        rope_(static_cast<const RopeCache&>(*sequence_.rope)),
        layout_(sequence_.geometry),
        d_(sequence_.geometry.head_dim),
        l_(sequence_.geometry.chunk),
        ld_(round_up(l_, kKeyBlock)),
        queries_(scratch),
        scores_(queries_ + kRepresentRows * d_),
        rows_(scores_ + kRepresentRows * ld_),
        mean_(rows_ + l_ * d_),
        out_(mean_ + d_) {}

  static size_t floats(const KvGeometry& g) {
    const int64_t ld = round_up(g.chunk, kKeyBlock);
    return static_cast<size_t>(kRepresentRows * (g.head_dim + ld) + (g.chunk + 2) * g.head_dim);
  }

  void run(int64_t chunk, int64_t head) {
    const int64_t kv_head = head / group_;
    const std::byte* record = record_ptr(args_.records.chunks[static_cast<size_t>(chunk)]);
    const void* keys = record + layout_.keys(kv_head);
    mean_output(head, (chunk - args_.first_chunk) * l_, keys, record + layout_.values(kv_head));
    if (args_.order.moves()) {  // as keys are
      std::copy_n(mean_, d_, out_);
      for (int64_t c = 0; c < d_; ++c) mean_[c] = out_[args_.order.source(c)];
    }

    attention_scores(mean_, 1, d_, sequence_.geometry.type, keys, 0, l_, scores_, ld_);
    for (int64_t j = 0; j < l_; ++j) scores_[j] *= sequence_.scale;
    float max = 0, sum = 0;
    softmax_partial(scores_, 0, l_, &max, &sum);
    for (int64_t j = 0; j < l_; ++j) load_key(sequence_.geometry.type, keys, j, d_, rows_ + j * d_);
    std::fill_n(out_, d_, 0.0f);
    accumulate_values(scores_, ld_, 1, d_, ElementType::kF32, rows_, 0, l_, out_);
    for (int64_t c = 0; c < d_; ++c) out_[c] /= sum;
    const Buffer& page = *args_.out.pages[static_cast<size_t>(chunk / kPageChunks)];
    const ElementType type = args_.selection.attention_type;
    store_key(out_, d_, type, page_vectors(page, type, head, d_), chunk % kPageChunks);
  }

 private:
  // mean_ = the mean over the chunk's queries, those from `first_row` on, of their attention, without a mask, over the
  // chunk (Eq. 1).
  void mean_output(int64_t head, int64_t first_row, const void* keys, const void* values) {
    std::fill_n(mean_, d_, 0.0f);
    for (int64_t first = 0; first < l_; first += kRepresentRows) {
      const int64_t n = std::min(kRepresentRows, l_ - first);
      for (int64_t r = 0; r < n; ++r) {
        const float* q = rows_ptr(args_.queries.at(first_row + first + r)) + head * d_;
        rotate(q, rope_.chunk_cos(first + r), rope_.chunk_sin(first + r), sequence_.scale, d_, queries_ + r * d_);
      }
      attention_scores(queries_, n, d_, sequence_.geometry.type, keys, 0, l_, scores_, ld_);
      for (int64_t r = 0; r < n; ++r) {
        float max = 0, sum = 0;
        softmax_partial(scores_ + r * ld_, 0, l_, &max, &sum);
        std::fill_n(out_, d_, 0.0f);
        accumulate_values(scores_ + r * ld_, ld_, 1, d_, sequence_.geometry.type, values, 0, l_, out_);
        for (int64_t c = 0; c < d_; ++c) mean_[c] += out_[c] / sum;
      }
    }
    for (int64_t c = 0; c < d_; ++c) mean_[c] /= static_cast<float>(l_);
  }

  const RepresentArgs& args_;
  const StepSequence& sequence_;
  int group_;  // query heads of a KV head
  const RopeCache& rope_;
  RecordLayout layout_;
  int64_t d_, l_, ld_;
  float *queries_, *scores_, *rows_, *mean_, *out_;
};

// The mean or the bounds of one chunk's keys in one KV head, in the scratch memory of a thread. The keys are stored
// rotated at their offset in the stored chunk; they are turned on to their place in the period.
class KeySummary {
 public:
  KeySummary(const CpuStep& step, const RepresentArgs& args, float* scratch)
      : args_(args),
        sequence_(step.at(args.sequence)),
        layout_(sequence_.geometry),
        type_(args.selection.vector_type(sequence_.geometry.type)),
        d_(sequence_.geometry.head_dim),
        angles_(scratch),
        key_(angles_ + d_),
        mean_(key_ + d_),
        least_(mean_ + d_),
        greatest_(least_ + d_) {}

  static size_t floats(const KvGeometry& g) { return static_cast<size_t>(5 * g.head_dim); }

  void run(int64_t chunk, int64_t kv_head) {
    add_keys(chunk, kv_head);
    if (args_.selection.representation == ChunkSelection::Representation::kBounds) {
      store(least_, chunk, 2 * kv_head);
      store(greatest_, chunk, 2 * kv_head + 1);
      return;
    }
    for (int64_t c = 0; c < d_; ++c) mean_[c] /= static_cast<float>(args_.selection.chunk);
    store(mean_, chunk, kv_head);
  }

 private:
  // The sum of the keys, and the least and the greatest of each channel.
  void add_keys(int64_t chunk, int64_t kv_head) {
    const KvGeometry& g = sequence_.geometry;
    const int64_t first = chunk * args_.selection.chunk;  // whose period goes on to the chunk's end
    const int64_t offset = first % g.chunk;
    const auto& rope = static_cast<const RopeCache&>(*sequence_.rope);
    rope.angles(static_cast<double>(first % args_.selection.key_period - offset), angles_, angles_ + d_ / 2);
    const std::byte* keys =
        record_ptr(args_.records.chunks[static_cast<size_t>(first / g.chunk)]) + layout_.keys(kv_head);
    std::fill_n(mean_, d_, 0.0f);
    std::fill_n(least_, d_, std::numeric_limits<float>::infinity());
    std::fill_n(greatest_, d_, -std::numeric_limits<float>::infinity());
    for (int64_t j = 0; j < args_.selection.chunk; ++j) {
      load_key(g.type, keys, offset + j, d_, key_);
      rotate(key_, angles_, angles_ + d_ / 2, 1, d_, key_);
      for (int64_t c = 0; c < d_; ++c) {
        mean_[c] += key_[c];
        least_[c] = std::min(least_[c], key_[c]);
        greatest_[c] = std::max(greatest_[c], key_[c]);
      }
    }
  }

  void store(const float* vector, int64_t chunk, int64_t index) const {
    const Buffer& page = *args_.out.pages[static_cast<size_t>(chunk / kPageChunks)];
    store_key(vector, d_, type_, page_vectors(page, type_, index, d_), chunk % kPageChunks);
  }

  const RepresentArgs& args_;
  const StepSequence& sequence_;
  RecordLayout layout_;
  ElementType type_;
  int64_t d_;
  float *angles_, *key_, *mean_, *least_, *greatest_;
};

}  // namespace

size_t represent_floats(const KvGeometry& geometry) {
  return std::max(Representer::floats(geometry), KeySummary::floats(geometry));
}

Status run_represent(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                     const RepresentArgs& args) {
  const KvGeometry& geometry = step.at(args.sequence).geometry;
  const bool of_heads = args.selection.representation == ChunkSelection::Representation::kAttention;
  const size_t floats = of_heads ? Representer::floats(geometry) : KeySummary::floats(geometry);
  const size_t all = static_cast<size_t>(pool.n_threads()) * floats;
  auto* memory = static_cast<float*>(workspace.require(all * sizeof(float)));
  if (!memory) {
    return Status(Code::kOutOfMemory,
                  "no memory for chunk representations (" + std::to_string(all * sizeof(float)) + " bytes)");
  }
  const int n_heads = of_heads ? step.n_query_heads : geometry.n_kv_heads;
  const bool done = pool.run(args.n_chunks * n_heads, cancel, [&](int64_t task, int thread) {
    float* scratch = memory + static_cast<size_t>(thread) * floats;
    const int64_t chunk = args.first_chunk + task / n_heads, head = task % n_heads;
    if (!of_heads) return KeySummary(step, args, scratch).run(chunk, head);
    Representer(step, args, scratch).run(chunk, head);
  });
  return done ? Status() : Status(Code::kCancelled, "cancelled");
}

}  // namespace quire::cpu
