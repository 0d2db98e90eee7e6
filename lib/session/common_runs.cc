#include "lib/session/common_runs.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// A hash of `width` consecutive tokens, which moves on by one token at a time.
class RollingHash {
 public:
  explicit RollingHash(int64_t width) {
    for (int64_t i = 1; i < width; ++i) leaving_ *= kFactor;
  }
  void add(int32_t token) { value_ = value_ * kFactor + code(token); }
  void remove(int32_t token) { value_ -= code(token) * leaving_; }
  uint64_t value() const { return value_ ^ (value_ >> 32); }

 private:
  static constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  // SplitMix64 (Steele et al. 2014), so that texts of few different tokens have different hashes.
  static uint64_t code(int32_t token) {
    uint64_t x = static_cast<uint32_t>(token) + kFactor;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  uint64_t leaving_ = 1, value_ = 0;
};

// The old text is known by its blocks of `width` tokens, each from a multiple of the width on; a run of 2 * width - 1
// tokens holds one whole, wherever it begins.
class Finder {
 public:
  Finder(std::span<const int32_t> old_text, std::span<const int32_t> new_text, int64_t least)
      : old_(old_text), new_(new_text), width_((least + 1) / 2), least_(least), used_(old_text.size()) {
    for (int64_t first = 0; first + width_ <= size(old_); first += width_) {
      RollingHash hash(width_);
      for (int64_t i = 0; i < width_; ++i) hash.add(at(old_, first + i));
      blocks_.emplace_back(hash.value(), first);
    }
    std::ranges::sort(blocks_);
  }

  std::vector<CommonRun> run() {
    RollingHash hash(width_);
    int64_t n_hashed = 0;  // the tokens before `to` + n_hashed are in the hash
    for (int64_t to = 0; to + width_ <= size(new_);) {
      if (n_hashed == 0) hash = RollingHash(width_);
      for (; n_hashed < width_; ++n_hashed) hash.add(at(new_, to + n_hashed));
      if (take_run(hash.value(), to)) {
        to = end_;
        n_hashed = 0;
      } else {
        hash.remove(at(new_, to++));
        --n_hashed;
      }
    }
    return std::move(runs_);
  }
  int64_t n_compared() const { return n_compared_; }

 private:
  static int64_t size(std::span<const int32_t> text) { return static_cast<int64_t>(text.size()); }
  static int32_t at(std::span<const int32_t> text, int64_t i) { return text[static_cast<size_t>(i)]; }

  // Whether old token `from` is new token `to`, and in no run yet.
  bool same(int64_t from, int64_t to) {
    if (used_[static_cast<size_t>(from)]) return false;
    ++n_compared_;
    return at(old_, from) == at(new_, to);
  }

  // Takes the run that has the block at new token `to`, if there is one. At most two places are tried, so that a text
  // that repeats itself costs no more than others.
  bool take_run(uint64_t hash, int64_t to) {
    const auto first = std::ranges::lower_bound(blocks_, std::pair(hash, int64_t{0}));
    if (first == blocks_.end() || first->first != hash) return false;
    const auto behind = std::lower_bound(first, blocks_.end(), std::pair(hash, cursor_));
    if (behind != blocks_.end() && behind->first == hash && take_run_at(behind->second, to)) return true;
    return behind != first && take_run_at(first->second, to);
  }

  bool take_run_at(int64_t from, int64_t to) {
    // Runs are no shorter than a block: one that has some of it has an end of it.
    if (used_[static_cast<size_t>(from)] || used_[static_cast<size_t>(from + width_ - 1)]) return false;
    int64_t n = 0;
    while (from + n < size(old_) && to + n < size(new_) && same(from + n, to + n)) ++n;
    if (n < width_) return false;
    int64_t before = 0;
    while (from > before && to - before > end_ && same(from - before - 1, to - before - 1)) ++before;
    const CommonRun run{from - before, to - before, n + before};
    end_ = to + n;
    // Tokens of a run that is too short stay, for a longer one.
    if (run.n < least_) return true;
    std::fill_n(used_.begin() + run.from, run.n, true);
    cursor_ = run.from + run.n;
    runs_.push_back(run);
    return true;
  }

  const std::span<const int32_t> old_, new_;
  const int64_t width_, least_;
  std::vector<std::pair<uint64_t, int64_t>> blocks_;  // hash and first token, ascending
  std::vector<bool> used_;                            // old tokens in runs
  std::vector<CommonRun> runs_;
  int64_t cursor_ = 0;  // where the last run ends in the old text
  int64_t end_ = 0;     // and the last one that was found, in the new text
  int64_t n_compared_ = 0;
};

}  // namespace

std::vector<CommonRun> find_common_runs(std::span<const int32_t> old_text, std::span<const int32_t> new_text,
                                        int64_t least, int64_t* n_compared) {
  Finder finder(old_text, new_text, least);
  auto runs = finder.run();
  if (n_compared) *n_compared = finder.n_compared();
  return runs;
}

}  // namespace quire
