// Which byte of a text each byte of its normalized form stems from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quire {

// Runs of bytes, in order: of a run that was copied each byte stems from the next one, of one that was replaced all
// stem from its beginning.
class Origins {
 public:
  void add_copied(size_t normalized, size_t original) { add({normalized, original, true}); }
  void add_replaced(size_t normalized, size_t original) { add({normalized, original, false}); }

  // No runs: the text is as it was.
  size_t of(size_t normalized) const {
    const auto after = std::upper_bound(runs_.begin(), runs_.end(), normalized,
                                        [](size_t at, const Run& run) { return at < run.normalized; });
    if (after == runs_.begin()) return normalized;
    const Run& run = *(after - 1);
    return run.copied ? run.original + (normalized - run.normalized) : run.original;
  }

 private:
  struct Run {
    size_t normalized, original;
    bool copied;
  };

  void add(const Run& run) {
    if (!runs_.empty() && runs_.back().copied && run.copied &&
        run.normalized - runs_.back().normalized == run.original - runs_.back().original) {
      return;
    }
    runs_.push_back(run);
  }

  std::vector<Run> runs_;
};

}  // namespace quire
