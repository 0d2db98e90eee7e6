#include "lib/backend/cpu/cpu_selection.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_step.h"
#include "lib/backend/cpu/rope_cache.h"

namespace quire::cpu {
namespace {

constexpr int64_t kPageChunks = Representations::kPageChunks;
constexpr int64_t kRepresentRows = 64;    // queries of a chunk scored at a time
constexpr int64_t kMostScores = 1 << 18;  // floats of scores a thread holds while selecting

Status no_memory(size_t floats, const char* what) {
  return Status(Code::kOutOfMemory,
                "no memory for " + std::string(what) + " (" + std::to_string(floats * sizeof(float)) + " bytes)");
}

Status cancelled() { return Status(Code::kCancelled, "cancelled"); }

// The vector-th vectors of a page's chunks.
std::byte* page_vectors(const Buffer& page, ElementType type, int64_t vector, int64_t d) {
  return static_cast<std::byte*>(page.host()) + static_cast<size_t>(vector * kPageChunks) * row_bytes(type, d);
}

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

// A number in [0, 1) that looks random and is the same on every machine.
float random_score(uint64_t layer, uint64_t head, uint64_t query, uint64_t chunk) {
  uint64_t x = 0;
  for (const uint64_t part : {layer, head, query, chunk}) {  // SplitMix64 (Steele et al. 2014) of each in turn
    x += part + 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
  }
  return static_cast<float>(x >> 40) * 0x1p-24f;
}

// The `n` best of `scores` in ascending order of index: the highest, the lower index where they are equal.
void take_best(const float* scores, int64_t count, int64_t n, int32_t first_index, int32_t* best) {
  if (n == 0) return;
  const auto better = [scores](int32_t a, int32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  };
  // A heap of the best so far, the worst of them on top.
  int32_t* end = best;
  for (int64_t c = 0; c < count; ++c) {
    if (end == best + n) {
      if (!better(static_cast<int32_t>(c), *best)) continue;
      std::pop_heap(best, end--, better);
    }
    *end++ = static_cast<int32_t>(c);
    std::push_heap(best, end, better);
  }
  std::sort(best, end);
  for (int32_t* b = best; b < end; ++b) *b += first_index;
}

int64_t selection_rows(int64_t ld) { return std::clamp<int64_t>(kMostScores / ld, 1, 64); }

// Scores, the sums of a group's scores, queries of one head; for score_keys: the angles of a rotation, two vectors, and
// their products with a page's chunks.
size_t selector_floats(int64_t ld, int64_t d) {
  return static_cast<size_t>(selection_rows(ld) * (2 * ld + d) + 4 * d + 2 * kPageChunks);
}

class Selector {
 public:
  Selector(const CpuStep& step, const SelectArgs& args)
      : args_(args),
        plan_(*step.at(args.sequence).plan),
        s_(plan_.selection),
        n_heads_(step.n_query_heads),
        first_query_(plan_.blocks.front().first_query),
        d_(step.at(args.sequence).geometry.head_dim),
        group_(n_heads_ / step.at(args.sequence).geometry.n_kv_heads),
        rope_(static_cast<const RopeCache*>(step.at(args.sequence).rope)),
        type_(s_.vector_type(step.at(args.sequence).geometry.type)),
        scale_(step.at(args.sequence).scale),
        width_(plan_.most_selected()),
        heads_(s_.sharing == ChunkSelection::Sharing::kLayer ? n_heads_ : group_),
        shared_(s_.sharing == ChunkSelection::Sharing::kLayer || s_.sharing == ChunkSelection::Sharing::kGroup) {
    for (const QueryBlock& block : plan_.blocks) {
      if (!block.selected) continue;
      const int64_t last = block.first_query + block.n_queries - 1;
      ld_ = std::max(ld_, round_up(last / s_.chunk + 1, kPageChunks));
      add_tasks(block);
    }
  }

  Status run(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel) {
    const size_t floats = selector_floats(ld_, d_);
    auto* memory =
        static_cast<float*>(workspace.require(static_cast<size_t>(pool.n_threads()) * floats * sizeof(float)));
    if (!memory) return no_memory(static_cast<size_t>(pool.n_threads()) * floats, "selecting chunks");
    const bool done = pool.run(static_cast<int64_t>(tasks_.size()), cancel, [&](int64_t t, int thread) {
      select(tasks_[static_cast<size_t>(t)], memory + static_cast<size_t>(thread) * floats);
    });
    return done ? Status() : cancelled();
  }

 private:
  struct Task {
    int64_t first;  // queries [first, first + n)
    int64_t n;
    int first_head;  // query heads [first_head, first_head + heads_)
    const QueryBlock* block;
  };

  int64_t rows() const { return selection_rows(ld_); }

  void add_tasks(const QueryBlock& block) {
    for (int64_t q = 0; q < block.n_queries; q += rows()) {
      const int64_t n = std::min(rows(), block.n_queries - q);
      for (int head = 0; head < n_heads_; head += heads_) tasks_.push_back({block.first_query + q, n, head, &block});
    }
  }

  int32_t* chosen(int64_t i, int64_t head) const {
    return static_cast<int32_t*>(args_.out->host()) + ((i - first_query_) * n_heads_ + head) * width_;
  }

  // scores[r][c] = the score of chunk c for query r, for the chunks before the last query's own.
  void score(const Task& task, int64_t head, float* queries, float* scores) const {
    if (s_.pick == ChunkSelection::Pick::kRandom) return score_at_random(task, head, scores);
    const int64_t n_chunks = (task.first + task.n - 1) / s_.chunk;
    if (s_.representation == ChunkSelection::Representation::kAttention) {
      score_vectors(task, head, n_chunks, queries, scores);
    } else {
      for (int64_t r = 0; r < task.n; ++r) score_keys(task, task.first + r, head, queries, scores + r * ld_);
    }
    if (s_.pick == ChunkSelection::Pick::kBest) return;
    for (int64_t r = 0; r < task.n; ++r) {
      for (int64_t c = 0; c < n_chunks; ++c) scores[r * ld_ + c] = -scores[r * ld_ + c];
    }
  }

  void score_vectors(const Task& task, int64_t head, int64_t n_chunks, float* queries, float* scores) const {
    for (int64_t r = 0; r < task.n; ++r) {
      std::copy_n(query(task.first + r, head), d_, queries + r * d_);
    }
    for (int64_t c = 0; c < n_chunks; c += kPageChunks) {
      const Buffer& page = *args_.representations.pages[static_cast<size_t>(c / kPageChunks)];
      attention_scores(queries, task.n, d_, type_, page_vectors(page, type_, head, d_), 0,
                       std::min(kPageChunks, n_chunks - c), scores + c, ld_);
    }
  }

  const float* query(int64_t i, int64_t head) const { return rows_ptr(args_.queries.at(i - first_query_)) + head * d_; }

  // Calls use(begin, end) for runs of the chunks before query i's own that the plan shows to it: those of one page, to
  // which the query is rotated alike. `scratch` holds the angles of that.
  template <typename Use>
  void for_runs(const Task& task, int64_t i, float* scratch, const Use& use) const {
    const int64_t own = i / s_.chunk;
    const Plan::List& list = plan_.list(*task.block, 0);
    for (int32_t s = list.begin; s < list.end; ++s) {
      const Span& span = plan_.spans[static_cast<size_t>(s)];
      const int64_t end = std::min(own, ceil_div(span.first_key + span.count, s_.chunk));
      for (int64_t c = span.first_key / s_.chunk; c < end;) {
        const double position = vectors_position(span, i, c);
        int64_t next = c + 1;
        while (next < end && next % kPageChunks != 0 && vectors_position(span, i, next) == position) ++next;
        rope_->angles(position, scratch, scratch + d_ / 2);
        use(c, next);
        c = next;
      }
    }
  }

  // Where a query is rotated to for the vectors of a chunk, whose keys are rotated at their place in their period.
  double vectors_position(const Span& span, int64_t i, int64_t chunk) const {
    const int64_t j = std::max(span.first_key, chunk * s_.chunk);
    return span.distance(i, j) + static_cast<double>(j % s_.key_period);
  }

  // scores[c - begin + begin % kKeyBlock] = the product of a query with the index-th vectors of chunks [begin, end) of
  // one page.
  void multiply(const float* q, int64_t index, int64_t begin, int64_t end, float* scores) const {
    const Buffer& page = *args_.representations.pages[static_cast<size_t>(begin / kPageChunks)];
    const int64_t first = begin % kPageChunks;
    attention_scores(q, 1, d_, type_, page_vectors(page, type_, index, d_), first, first + end - begin, scores,
                     kPageChunks);
  }

  // One query's scores of the chunks before its own, by the mean or the bounds of their keys. Chunks that no span shows
  // have the least score. scratch: angles [d], two vectors [d], their products with a page's chunks.
  void score_keys(const Task& task, int64_t i, int64_t head, float* scratch, float* scores) const {
    std::fill_n(scores, ld_, -std::numeric_limits<float>::infinity());
    float *positive = scratch + d_, *negative = positive + d_;
    float *products = negative + d_, *others = products + kPageChunks;
    for_runs(task, i, scratch, [&](int64_t begin, int64_t end) {
      rotate(query(i, head), scratch, scratch + d_ / 2, scale_, d_, positive);
      const int64_t lane = begin % kKeyBlock;
      if (s_.representation == ChunkSelection::Representation::kMean) {
        multiply(positive, head / group_, begin, end, products);
        std::copy_n(products + lane, end - begin, scores + begin);
        return;
      }
      for (int64_t c = 0; c < d_; ++c) {
        negative[c] = std::min(positive[c], 0.0f);
        positive[c] = std::max(positive[c], 0.0f);
      }
      multiply(negative, head / group_ * 2, begin, end, products);
      multiply(positive, head / group_ * 2 + 1, begin, end, others);
      for (int64_t c = begin; c < end; ++c) scores[c] = products[lane + c - begin] + others[lane + c - begin];
    });
  }

  // A head's scores as its estimate of how its attention is shared out among the chunks before query i's own.
  void share_out(int64_t i, float* scores) const {
    const int64_t own = i / s_.chunk;
    if (own == 0) return;
    float max = 0, sum = 0;
    softmax_partial(scores, 0, own, &max, &sum);
    for (int64_t c = 0; c < own; ++c) scores[c] /= sum;
  }

  void score_at_random(const Task& task, int64_t head, float* scores) const {
    for (int64_t r = 0; r < task.n; ++r) {
      for (int64_t c = 0; c < (task.first + r) / s_.chunk; ++c) {
        scores[r * ld_ + c] = random_score(static_cast<uint64_t>(args_.layer), static_cast<uint64_t>(head),
                                           static_cast<uint64_t>(task.first + r), static_cast<uint64_t>(c));
      }
    }
  }

  void choose(int64_t i, const float* scores, int32_t* out) const {
    const int64_t own = i / s_.chunk;
    const int64_t n = s_.n_selected(i);
    std::fill_n(out, width_, -1);
    if (n == own + 1) {
      for (int64_t c = 0; c < n; ++c) out[c] = static_cast<int32_t>(c);
      return;
    }
    const int64_t first = s_.first_free();
    int32_t* free = out;
    if (s_.first == ChunkSelection::First::kForced) *free++ = 0;
    take_best(scores + first, own + 1 - s_.n_last - first, s_.n_free(i), static_cast<int32_t>(first), free);
    for (int64_t b = 0; b < s_.n_last; ++b) out[n - 1 - b] = static_cast<int32_t>(own - b);
  }

  void select(const Task& task, float* scratch) const {
    float* scores = scratch;
    float* sums = scores + rows() * ld_;
    float* queries = sums + rows() * ld_;  // and what score_keys needs
    const int first_head = task.first_head;
    for (int head = first_head; head < first_head + heads_; ++head) {
      score(task, head, queries, scores);
      if (shared_ && s_.representation != ChunkSelection::Representation::kAttention) {
        for (int64_t r = 0; r < task.n; ++r) share_out(task.first + r, scores + r * ld_);
      }
      if (!shared_) {
        for (int64_t r = 0; r < task.n; ++r) choose(task.first + r, scores + r * ld_, chosen(task.first + r, head));
      } else if (head == first_head) {
        std::copy_n(scores, task.n * ld_, sums);
      } else {
        for (int64_t e = 0; e < task.n * ld_; ++e) sums[e] += scores[e];
      }
    }
    if (!shared_) return;
    for (int64_t r = 0; r < task.n; ++r) {
      const int64_t i = task.first + r;
      choose(i, sums + r * ld_, chosen(i, first_head));
      for (int head = first_head + 1; head < first_head + heads_; ++head) {
        std::copy_n(chosen(i, first_head), width_, chosen(i, head));
      }
    }
  }

  const SelectArgs& args_;
  const Plan& plan_;
  const ChunkSelection& s_;
  int n_heads_;
  int64_t first_query_;
  int64_t d_;
  int group_;  // query heads of a KV head
  const RopeCache* rope_;
  ElementType type_;  // of the representations
  float scale_;       // of the logits
  int64_t width_;     // chunks that a query takes at most
  int heads_;         // that a task chooses for
  bool shared_;       // they make one choice
  int64_t ld_ = kPageChunks;
  std::vector<Task> tasks_;
};

}  // namespace

size_t selection_floats(int n_threads, const KvGeometry& geometry, int64_t n_chunks) {
  const size_t selector = selector_floats(round_up(std::max<int64_t>(n_chunks, 1), kPageChunks), geometry.head_dim);
  return static_cast<size_t>(n_threads) * std::max(Representer::floats(geometry), selector);
}

Status run_represent(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                     const RepresentArgs& args) {
  const KvGeometry& geometry = step.at(args.sequence).geometry;
  const bool of_heads = args.selection.representation == ChunkSelection::Representation::kAttention;
  const size_t floats = of_heads ? Representer::floats(geometry) : KeySummary::floats(geometry);
  const size_t all = static_cast<size_t>(pool.n_threads()) * floats;
  auto* memory = static_cast<float*>(workspace.require(all * sizeof(float)));
  if (!memory) return no_memory(all, "chunk representations");
  const int n_heads = of_heads ? step.n_query_heads : geometry.n_kv_heads;
  const bool done = pool.run(args.n_chunks * n_heads, cancel, [&](int64_t task, int thread) {
    float* scratch = memory + static_cast<size_t>(thread) * floats;
    const int64_t chunk = args.first_chunk + task / n_heads, head = task % n_heads;
    if (!of_heads) return KeySummary(step, args, scratch).run(chunk, head);
    Representer(step, args, scratch).run(chunk, head);
  });
  return done ? Status() : cancelled();
}

Status run_select(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                  const SelectArgs& args) {
  return Selector(step, args).run(pool, workspace, cancel);
}

}  // namespace quire::cpu
