// The chunks that heads choose for each query, by the vectors that stand for chunks (cpu_representations.cc).
#include "lib/backend/cpu/cpu_selection.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_step.h"
#include "lib/backend/cpu/rope_cache.h"

namespace quire::cpu {
namespace {

constexpr int64_t kPageChunks = Representations::kPageChunks;
constexpr int64_t kMostScores = 1 << 16;  // floats of scores a thread holds: few enough for the caches
constexpr int64_t kMostQueries = 64;      // of a task

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

// Ascends with the score; a NaN has a place, too.
int32_t order_of(float score) {
  const auto bits = std::bit_cast<int32_t>(score + 0.0f);  // -0 is 0
  return bits < 0 ? bits ^ std::numeric_limits<int32_t>::max() : bits;
}

// take_best() of few.
void take_few(const float* scores, int64_t count, int64_t n, int32_t* best) {
  const auto better = [scores](int32_t a, int32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  };
  // A heap of the best so far, the worst of them on top. Backwards: near chunks tend to have the higher scores, and
  // most of the others are then left out at a glance.
  int32_t* end = best;
  for (int64_t c = count; c-- > 0;) {
    if (end == best + n) {
      if (!better(static_cast<int32_t>(c), *best)) continue;
      std::pop_heap(best, end--, better);
    }
    *end++ = static_cast<int32_t>(c);
    std::push_heap(best, end, better);
  }
  std::sort(best, end);
}

// The `n` best of `scores`, n <= count, in ascending order of index: the highest, the lower index where they are equal.
// orders: [count], is overwritten.
void take_best(const float* scores, int64_t count, int64_t n, int32_t* orders, int32_t* best) {
  constexpr int64_t kFew = 32;  // one in so many: the others are left out at a glance
  if (n == 0) return;
  if (n * kFew < count) return take_few(scores, count, n, best);
  std::transform(scores, scores + count, orders, order_of);
  std::nth_element(orders, orders + n - 1, orders + count, std::greater<>());
  const int32_t least = orders[n - 1];
  int64_t ties = n - std::count_if(orders, orders + n, [least](int32_t order) { return order > least; });
  const int32_t* const end = best + n;
  for (int32_t c = 0; best < end; ++c) {
    const int32_t order = order_of(scores[c]);
    if (order > least || (order == least && ties-- > 0)) *best++ = c;
  }
}

// What a task works in. A row is a (query, query head of one KV head) pair, queries outermost.
struct Scratch {
  // ld: of a row of scores; group: query heads of a KV head; n_queries: of a task.
  Scratch(float* memory, int64_t ld, int64_t group, int64_t n_queries, int64_t d)
      : scores(memory),
        sums(scores + n_queries * group * ld),
        queries(sums + n_queries * ld),
        negative(queries + n_queries * group * d),
        products(negative + n_queries * group * d),
        others(products + n_queries * group * kPageChunks),
        angles(others + n_queries * group * kPageChunks),
        orders(reinterpret_cast<int32_t*>(angles + d)) {}

  static int64_t n_queries(int64_t ld, int64_t group) {
    return std::clamp<int64_t>(kMostScores / (ld * group), 1, kMostQueries);
  }
  static size_t floats(int64_t ld, int64_t group, int64_t d) {
    const int64_t rows = n_queries(ld, group) * group;
    return static_cast<size_t>(rows * (ld + 2 * d + 2 * kPageChunks) + (n_queries(ld, group) + 1) * ld + d);
  }

  float* scores;    // [rows][ld]
  float* sums;      // [queries][ld], of the scores of heads that choose together
  float* queries;   // [rows][d], rotated; of kBounds their positive elements
  float* negative;  // [rows][d], of kBounds: the negative ones
  float* products;  // [rows][kPageChunks], with the vectors of a page; of kBounds with the least ones
  float* others;    // [rows][kPageChunks], with the greatest ones
  float* angles;    // [d]
  int32_t* orders;  // [ld], of the scores that a query chooses by
};

// One for each thread, and for each KV head of a query that threads share.
size_t scratches(int n_threads, int n_kv_heads) {
  return static_cast<size_t>(n_threads == 1 ? 1 : std::max(n_threads, n_kv_heads));
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
        shared_(s_.sharing == ChunkSelection::Sharing::kLayer || s_.sharing == ChunkSelection::Sharing::kGroup),
        of_keys_(s_.representation != ChunkSelection::Representation::kAttention) {
    for (const QueryBlock& block : plan_.blocks) {
      if (!block.selected) continue;
      const int64_t last = block.first_query + block.n_queries - 1;
      ld_ = std::max(ld_, round_up(last / s_.chunk + 1, kPageChunks));
    }
    for (const QueryBlock& block : plan_.blocks) {
      if (block.selected) add_tasks(block);
    }
  }

  Status run(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel) {
    const size_t n_scratches = scratches(pool.n_threads(), n_heads_ / group_);
    const size_t bytes = n_scratches * Scratch::floats(ld_, group_, d_) * sizeof(float);
    memory_ = static_cast<float*>(workspace.require(bytes));
    if (!memory_) {
      return Status(Code::kOutOfMemory, "no memory for selecting chunks (" + std::to_string(bytes) + " bytes)");
    }
    const auto n_tasks = static_cast<int64_t>(tasks_.size());
    const int64_t n_units = n_tasks * heads_ / group_;
    const int64_t n_ranges = ranges(pool.n_threads(), n_tasks, n_units);
    bool done = false;
    if (n_ranges > 1 && n_units <= static_cast<int64_t>(n_scratches)) {
      done = score_in_ranges(pool, cancel, n_units, n_ranges) && choose_by_scores(pool, cancel);
    } else {
      done = pool.run(n_tasks, cancel,
                      [this](int64_t t, int thread) { select(tasks_[static_cast<size_t>(t)], scratch(thread)); });
    }
    return done ? Status() : Status(Code::kCancelled, "cancelled");
  }

 private:
  // Chunks [begin, end) that a span shows and to whose vectors a query is rotated alike: to its position for the span,
  // and on by `shift`.
  struct Run {
    const Span* span;
    int64_t begin;
    int64_t end;
    double shift;
  };
  struct Task {
    int64_t first;  // queries [first, first + n)
    int64_t n;
    int first_head;    // query heads [first_head, first_head + heads_)
    size_t first_run;  // runs [first_run, end_run), of the queries' block
    size_t end_run;
  };

  int64_t n_queries() const { return Scratch::n_queries(ld_, group_); }
  Scratch scratch(int64_t index) const {
    return {memory_ + static_cast<size_t>(index) * Scratch::floats(ld_, group_, d_), ld_, group_, n_queries(), d_};
  }

  // A unit is a task's queries and one KV head. Where there are few tasks, threads share the chunks of a unit: into so
  // many ranges of pages these are cut. Its scores are in the unit's scratch memory.
  int64_t ranges(int n_threads, int64_t n_tasks, int64_t n_units) const {
    constexpr int64_t kLeastPages = 8;  // of a range: more work than to wake a thread
    if (n_threads == 1 || n_tasks >= 2 * n_threads) return 1;
    return std::min(ceil_div(4 * n_threads, n_units), ld_ / kPageChunks / kLeastPages);
  }
  const Task& task_of(int64_t unit) const { return tasks_[static_cast<size_t>(unit * group_ / heads_)]; }
  int head_of(int64_t unit) const { return task_of(unit).first_head + static_cast<int>(unit * group_ % heads_); }

  bool score_in_ranges(ThreadPool& pool, const CancelToken* cancel, int64_t n_units, int64_t n_ranges) const {
    const int64_t width = round_up(ceil_div(ld_, n_ranges), kPageChunks);
    return pool.run(n_units * n_ranges, cancel, [&](int64_t index, int thread) {
      const int64_t unit = index / n_ranges, begin = index % n_ranges * width;
      Scratch own = scratch(thread);
      own.scores = scratch(unit).scores;
      score(task_of(unit), head_of(unit), begin, std::min(ld_, begin + width), own);
    });
  }

  bool choose_by_scores(ThreadPool& pool, const CancelToken* cancel) const {
    const int64_t units = heads_ / group_;  // of a task
    return pool.run(static_cast<int64_t>(tasks_.size()) * n_queries(), cancel, [&](int64_t index, int thread) {
      const int64_t t = index / n_queries(), q = index % n_queries();
      const Task& task = tasks_[static_cast<size_t>(t)];
      if (q >= task.n) return;
      const Scratch own = scratch(thread);
      clear_sums(own, 1);
      for (int64_t u = 0; u < units; ++u) {
        const int64_t unit = t * units + u;
        use_scores(task, head_of(unit), q, scratch(unit).scores + q * group_ * ld_, own, own.sums);
      }
      if (shared_) choose_together(task, q, own.sums, own);
    });
  }

  void add_tasks(const QueryBlock& block) {
    const size_t first_run = runs_.size();
    if (of_keys_) add_runs(block);
    for (int64_t q = 0; q < block.n_queries; q += n_queries()) {
      const int64_t n = std::min(n_queries(), block.n_queries - q);
      for (int head = 0; head < n_heads_; head += heads_) {
        tasks_.push_back({block.first_query + q, n, head, first_run, runs_.size()});
      }
    }
  }

  // Keys of a chunk are rotated at their place in key_period, so a query is at its distance from the chunk's first key
  // behind that place. Spans are of stored keys, whose positions begin anew at multiples of key_period only.
  void add_runs(const QueryBlock& block) {
    const Plan::List& list = plan_.list(block, 0);
    for (int32_t s = list.begin; s < list.end; ++s) {
      const Span& span = plan_.spans[static_cast<size_t>(s)];
      const int64_t end = ceil_div(span.first_key + span.count, s_.chunk);
      for (int64_t c = span.first_key / s_.chunk; c < end;) {
        const int64_t key = std::max(span.first_key, c * s_.chunk), in_period = key % s_.key_period;
        const double shift = static_cast<double>(in_period) - span.key_position(key);
        const int64_t next = std::min(end, ceil_div(key - in_period + s_.key_period, s_.chunk));
        if (!runs_.empty() && runs_.back().span == &span && runs_.back().shift == shift) {
          runs_.back().end = next;
        } else {
          runs_.push_back({&span, c, next, shift});
        }
        c = next;
      }
    }
  }

  int32_t* chosen(int64_t i, int64_t head) const {
    return static_cast<int32_t*>(args_.out->host()) + args_.out_offset +
           ((i - first_query_) * n_heads_ + head) * width_;
  }

  const float* query(int64_t i, int64_t head) const { return rows_ptr(args_.queries.at(i - first_query_)) + head * d_; }

  // Scores of those of the chunks [begin, end), which are whole pages, that are before the last query's own, of the
  // query heads of one KV head.
  void score(const Task& task, int64_t first_head, int64_t begin, int64_t end, const Scratch& scratch) const {
    const int64_t end_chunk = std::min(end, (task.first + task.n - 1) / s_.chunk);
    if (s_.pick == ChunkSelection::Pick::kRandom) {
      return score_at_random(task, first_head, begin, end_chunk, scratch.scores);
    }
    if (of_keys_) {
      for (int64_t row = 0; row < task.n * group_; ++row) {
        std::fill(scratch.scores + row * ld_ + begin, scratch.scores + row * ld_ + end,
                  -std::numeric_limits<float>::infinity());
      }
      score_keys(task, first_head, begin, end_chunk, scratch);
    } else {
      score_vectors(task, first_head, begin, end_chunk, scratch);
    }
    if (s_.pick == ChunkSelection::Pick::kBest) return;
    for (int64_t row = 0; row < task.n * group_; ++row) {
      for (int64_t c = begin; c < end_chunk; ++c) scratch.scores[row * ld_ + c] = -scratch.scores[row * ld_ + c];
    }
  }

  void score_vectors(const Task& task, int64_t first_head, int64_t begin, int64_t n_chunks,
                     const Scratch& scratch) const {
    for (int h = 0; h < group_; ++h) {
      const int64_t head = first_head + h;
      for (int64_t q = 0; q < task.n; ++q) std::copy_n(query(task.first + q, head), d_, scratch.queries + q * d_);
      for (int64_t c = begin; c < n_chunks; c += kPageChunks) {
        attention_scores(scratch.queries, task.n, d_, type_, page_of(c, head), 0, std::min(kPageChunks, n_chunks - c),
                         scratch.scores + h * ld_ + c, group_ * ld_);
      }
    }
  }

  // The index-th vectors of the page that has the chunk.
  const std::byte* page_of(int64_t chunk, int64_t index) const {
    return page_vectors(*args_.representations.pages[static_cast<size_t>(chunk / kPageChunks)], type_, index, d_);
  }

  // By the mean or the bounds of the chunks' keys. Chunks that no span shows keep the least score.
  void score_keys(const Task& task, int64_t first_head, int64_t begin, int64_t n_chunks, const Scratch& scratch) const {
    for (size_t r = task.first_run; r < task.end_run && runs_[r].begin < n_chunks; ++r) {
      const Run& run = runs_[r];
      if (run.end <= begin) continue;
      rotate_queries(task, first_head, run, scratch);
      const int64_t end = std::min(run.end, n_chunks);
      for (int64_t c = std::max(run.begin, begin), next = 0; c < end; c = next) {
        next = std::min(end, round_up(c + 1, kPageChunks));
        score_page(c, next, first_head / group_, task.n * group_, scratch);
      }
    }
  }

  void rotate_queries(const Task& task, int64_t first_head, const Run& run, const Scratch& scratch) const {
    float *positive = scratch.queries, *negative = scratch.negative;
    for (int64_t i = task.first; i < task.first + task.n; ++i) {
      rope_->angles(run.span->query_position(i) + run.shift, scratch.angles, scratch.angles + d_ / 2);
      for (int h = 0; h < group_; ++h, positive += d_, negative += d_) {
        rotate(query(i, first_head + h), scratch.angles, scratch.angles + d_ / 2, scale_, d_, positive);
        if (s_.representation != ChunkSelection::Representation::kBounds) continue;
        for (int64_t c = 0; c < d_; ++c) {
          negative[c] = std::min(positive[c], 0.0f);
          positive[c] = std::max(positive[c], 0.0f);
        }
      }
    }
  }

  // Chunks [begin, end) of one page.
  void score_page(int64_t begin, int64_t end, int64_t kv_head, int64_t rows, const Scratch& scratch) const {
    const int64_t first = begin % kPageChunks, lane = begin % kKeyBlock;
    const auto multiply = [&](const float* q, int64_t index, float* products) {
      attention_scores(q, rows, d_, type_, page_of(begin, index), first, first + end - begin, products, kPageChunks);
    };
    const bool bounds = s_.representation == ChunkSelection::Representation::kBounds;
    if (bounds) {
      multiply(scratch.negative, 2 * kv_head, scratch.products);
      multiply(scratch.queries, 2 * kv_head + 1, scratch.others);
    } else {
      multiply(scratch.queries, kv_head, scratch.products);
    }
    for (int64_t row = 0; row < rows; ++row) {
      float* to = scratch.scores + row * ld_ + begin;
      const float* products = scratch.products + row * kPageChunks + lane;
      const float* others = scratch.others + row * kPageChunks + lane;
      for (int64_t c = 0; c < end - begin; ++c) to[c] = bounds ? products[c] + others[c] : products[c];
    }
  }

  void score_at_random(const Task& task, int64_t first_head, int64_t begin, int64_t end, float* scores) const {
    for (int64_t i = task.first; i < task.first + task.n; ++i) {
      for (int64_t head = first_head; head < first_head + group_; ++head, scores += ld_) {
        for (int64_t c = begin; c < std::min(end, i / s_.chunk); ++c) {
          scores[c] = random_score(static_cast<uint64_t>(args_.layer), static_cast<uint64_t>(head),
                                   static_cast<uint64_t>(i), static_cast<uint64_t>(c));
        }
      }
    }
  }

  // sums += a head's scores of the chunks before query i's own; of kMean and kBounds its estimate of how its attention
  // is shared out among them.
  void add_to_sums(int64_t i, float* scores, float* sums) const {
    const int64_t own = i / s_.chunk;
    if (own == 0) return;
    float max = 0, sum = 1;
    if (of_keys_) softmax_partial(scores, 0, own, &max, &sum);
    add_scaled(scores, 1 / sum, own, sums);
  }

  // Changes the scores of sticky chunks.
  void choose(int64_t i, float* scores, int32_t* orders, int32_t* out) const {
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
    const int64_t end = own + 1 - s_.n_last;
    for (const int32_t c : plan_.sticky) {
      if (c >= first && c < end) scores[c] = std::numeric_limits<float>::infinity();
    }
    const int64_t n_free = s_.n_free(i);
    take_best(scores + first, end - first, n_free, orders, free);
    for (int64_t b = 0; b < n_free; ++b) free[b] += static_cast<int32_t>(first);
    for (int64_t b = 0; b < s_.n_last; ++b) out[n - 1 - b] = static_cast<int32_t>(own - b);
  }

  void clear_sums(const Scratch& scratch, int64_t n) const {
    if (shared_) std::fill_n(scratch.sums, n * ld_, 0.0f);
  }

  // The scores that query heads of one KV head have for the task's q-th query: each head chooses by its own, or adds
  // them to `sums`.
  void use_scores(const Task& task, int first_head, int64_t q, float* scores, const Scratch& scratch,
                  float* sums) const {
    const int64_t i = task.first + q;
    for (int h = 0; h < group_; ++h, scores += ld_) {
      if (shared_) {
        add_to_sums(i, scores, sums);
      } else {
        choose(i, scores, scratch.orders, chosen(i, first_head + h));
      }
    }
  }

  void choose_together(const Task& task, int64_t q, float* sums, const Scratch& scratch) const {
    const int64_t i = task.first + q;
    choose(i, sums, scratch.orders, chosen(i, task.first_head));
    for (int head = task.first_head + 1; head < task.first_head + heads_; ++head) {
      std::copy_n(chosen(i, task.first_head), width_, chosen(i, head));
    }
  }

  void select(const Task& task, const Scratch& scratch) const {
    clear_sums(scratch, task.n);
    for (int head = task.first_head; head < task.first_head + heads_; head += group_) {
      score(task, head, 0, ld_, scratch);
      for (int64_t q = 0; q < task.n; ++q) {
        use_scores(task, head, q, scratch.scores + q * group_ * ld_, scratch, scratch.sums + q * ld_);
      }
    }
    for (int64_t q = 0; shared_ && q < task.n; ++q) choose_together(task, q, scratch.sums + q * ld_, scratch);
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
  bool of_keys_;      // chunks are chosen by their keys alone, kMean or kBounds
  int64_t ld_ = kPageChunks;
  float* memory_ = nullptr;  // of all Scratch
  std::vector<Run> runs_;
  std::vector<Task> tasks_;
};

}  // namespace

size_t select_floats(int n_threads, const KvGeometry& geometry, int n_query_heads, int64_t n_chunks) {
  const int64_t ld = round_up(std::max<int64_t>(n_chunks, 1), kPageChunks);
  return scratches(n_threads, geometry.n_kv_heads) *
         Scratch::floats(ld, n_query_heads / geometry.n_kv_heads, geometry.head_dim);
}

Status run_select(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                  const SelectArgs& args) {
  return Selector(step, args).run(pool, workspace, cancel);
}

}  // namespace quire::cpu
