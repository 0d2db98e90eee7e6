#include "lib/backend/cpu/cpu_ranking.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "lib/backend/ranked_logits.h"

namespace quire::cpu {
namespace {

// Logits that a task looks at: whole blocks.
constexpr int64_t kSlice = 64 * kLogitsBlock;

bool is_before(const RankedToken& a, const RankedToken& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The k first of the tokens that are offered, in ascending order of their ids.
class MostProbable {
 public:
  // at_least: k of the tokens to come have this logit or a greater one.
  MostProbable(size_t k, float at_least) : k_(k), least_(at_least) {}

  bool may_belong(float logit) const { return full_ ? logit > least_ : logit >= least_; }

  void offer(int32_t token, float logit) {
    if (!may_belong(logit)) return;
    tokens_[n_++] = {token, logit};
    if (n_ == tokens_.size()) keep_first();
  }

  std::span<const RankedToken> in_order() {
    if (n_ > k_) keep_first();
    std::sort(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(n_), is_before);
    return std::span(tokens_).first(n_);
  }

 private:
  // Of tokens that come later, one of the same logit as the k-th would be behind it.
  void keep_first() {
    const auto last = tokens_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
    std::nth_element(tokens_.begin(), last, tokens_.begin() + static_cast<std::ptrdiff_t>(n_), is_before);
    n_ = k_;
    least_ = last->logit;
    full_ = true;
  }

  const size_t k_;
  float least_;
  bool full_ = false;
  size_t n_ = 0;
  std::array<RankedToken, 4 * kMostRanked> tokens_;
};

// The k-th greatest of the blocks' maxima, so that as many logits are not less; -infinity if there are fewer blocks.
float kth_greatest(std::span<const float> maxima, int64_t k, float* scratch) {
  const auto n = std::ssize(maxima);
  if (n < k) return -std::numeric_limits<float>::infinity();
  std::copy(maxima.begin(), maxima.end(), scratch);
  std::nth_element(scratch, scratch + k - 1, scratch + n, std::greater<>());
  return scratch[k - 1];
}

// Numbers of n rows in the working memory.
struct Workplace {
  Workplace(int64_t n, int64_t width)
      : n_slices(ceil_div(width, kSlice)), n_blocks(ceil_div(width, kLogitsBlock)), n_rows(n) {}

  size_t bytes() const {
    return static_cast<size_t>(n_rows) *
           (static_cast<size_t>(n_slices) * sizeof(LogitsPart) + static_cast<size_t>(2 * n_blocks) * sizeof(float));
  }
  void lie_at(void* memory) {
    parts = static_cast<LogitsPart*>(memory);
    maxima = reinterpret_cast<float*>(parts + n_rows * n_slices);
    scratch = maxima + n_rows * n_blocks;
  }

  int64_t n_slices, n_blocks, n_rows;
  LogitsPart* parts = nullptr;  // [row][slice]
  float* maxima = nullptr;      // [row][block]
  float* scratch = nullptr;     // likewise
};

float greatest(std::span<const LogitsPart> parts) { return std::ranges::max(parts, {}, &LogitsPart::max).max; }

// Of exp(logit - max), max: the greatest logit.
double sum_of(std::span<const LogitsPart> parts, float max) {
  double sum = 0;
  for (const LogitsPart& part : parts) sum += part.sum * std::exp(static_cast<double>(part.max) - max);
  return sum;
}

// Where the results of a row belong.
struct RankedOut {
  double* sum;
  int32_t* finite;
  int32_t* tokens;
  float* values;
};

void rank_row(const float* logits, int64_t width, int64_t k, const Workplace& at, int64_t row, const RankedOut& out) {
  const std::span parts(at.parts + row * at.n_slices, static_cast<size_t>(at.n_slices));
  std::fill_n(out.tokens, k, -1);
  std::fill_n(out.values, k, -std::numeric_limits<float>::infinity());
  *out.sum = 0;
  *out.finite = std::ranges::all_of(parts, &LogitsPart::finite);
  if (*out.finite == 0) return;
  *out.sum = sum_of(parts, greatest(parts));

  const std::span maxima(at.maxima + row * at.n_blocks, static_cast<size_t>(at.n_blocks));
  const int64_t n = std::min(k, width);
  MostProbable most(static_cast<size_t>(n), kth_greatest(maxima, n, at.scratch + row * at.n_blocks));
  for (size_t block = 0; block < maxima.size(); ++block) {
    if (!most.may_belong(maxima[block])) continue;
    const int64_t begin = static_cast<int64_t>(block) * kLogitsBlock, end = std::min(width, begin + kLogitsBlock);
    for (int64_t t = begin; t < end; ++t) most.offer(static_cast<int32_t>(t), logits[t]);
  }
  const std::span<const RankedToken> best = most.in_order();
  for (size_t i = 0; i < best.size(); ++i) {
    out.tokens[i] = best[i].token;
    out.values[i] = best[i].logit;
  }
}

}  // namespace

Status run_ranking(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, Rows logits, int64_t n,
                   int64_t width, int64_t k, Buffer& out) {
  Workplace at(n, width);
  void* const memory = workspace.require(at.bytes());
  if (!memory) {
    return Status(Code::kOutOfMemory, "no memory for ranking logits (" + std::to_string(at.bytes()) + " bytes)");
  }
  at.lie_at(memory);
  const auto row_at = [&](int64_t row) { return rows_ptr(logits.at(row)); };
  const bool looked = pool.run(n * at.n_slices, cancel, [&](int64_t task, int) {
    const int64_t row = task / at.n_slices, begin = task % at.n_slices * kSlice;
    at.parts[task] = look_at_logits(row_at(row) + begin, std::min(kSlice, width - begin),
                                    at.maxima + row * at.n_blocks + begin / kLogitsBlock);
  });
  const RankedRows layout{n, k};
  const auto place = [&](size_t begin) { return static_cast<std::byte*>(out.host()) + begin; };
  const RankedOut first{
      reinterpret_cast<double*>(place(layout.sums())), reinterpret_cast<int32_t*>(place(layout.finite())),
      reinterpret_cast<int32_t*>(place(layout.tokens())), reinterpret_cast<float*>(place(layout.values()))};
  const bool ranked = looked && pool.run(n, cancel, [&](int64_t row, int) {
    rank_row(row_at(row), width, k, at, row,
             {first.sum + row, first.finite + row, first.tokens + row * k, first.values + row * k});
  });
  return ranked ? Status() : Status(Code::kCancelled, "cancelled");
}

}  // namespace quire::cpu

namespace quire {

double log_sum(std::span<const float> logits) {
  using namespace cpu;
  std::array<float, kSlice / kLogitsBlock> maxima;
  std::vector<LogitsPart> parts;
  const int64_t width = std::ssize(logits);
  for (int64_t begin = 0; begin < width; begin += kSlice) {
    parts.push_back(
        look_at_logits(&logits[static_cast<size_t>(begin)], std::min(kSlice, width - begin), maxima.data()));
  }
  if (std::ranges::all_of(parts, &LogitsPart::finite)) {
    const float max = greatest(parts);
    return max + std::log(sum_of(parts, max));
  }
  const double max = std::ranges::max(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

}  // namespace quire
