// self_extend: true distances in a window, distances between groups of positions behind it.
//
// Idea        What is far away need not be located exactly: floor(i / G) - floor(j / G) stays in the trained range G
//             times as long. Training-free.
// Paper       Jin et al. 2024, "LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning", section 3, Eq. 3-4.
// Here        Distance i - j if that is less than w, else floor(i / G) + w - floor(w / G) - floor(j / G).
// Invariants  G >= 2, w < L; the text ends where the largest distance would reach L. Plain attention for texts of up to
//             w tokens.
// Complexity  O(n) keys per token, those of the window turned when they are read.
// Memory      Keys and values of all tokens, keys rotated at floor(offset in the chunk / G); where G does not divide
//             kv_chunk they are unrotated, and all are turned.
#include <algorithm>

#include "lib/strategy/far_map.h"
#include "lib/strategy/methods.h"

namespace quire {
namespace {

class SelfExtend final : public FarMap {
 public:
  SelfExtend(int64_t group, int64_t window, int64_t train_len) : FarMap(window, far_span(group, window)) {
    reach_ = (train_len - shift(group, window)) * group;
  }

 private:
  // Makes grouped distances go on where those of the window end.
  static int64_t shift(int64_t group, int64_t window) { return window - window / group; }

  static Span far_span(int64_t group, int64_t window) {
    Span far;
    far.q_div = static_cast<double>(group);
    far.q_offset = static_cast<double>(shift(group, window));
    far.key_div = group;
    return far;
  }
};

Result<std::unique_ptr<Strategy>> make_self_extend(const Arguments& arguments, const MethodModel& model,
                                                   CanonicalTerm& canonical) {
  constexpr int64_t kDefaultGroup = 8, kMostGroup = 65536;
  if (model.train_len < 2) return arguments.refuse("train_len", "train_len is 1; expected at least 2");
  QUIRE_ASSIGN(const int64_t group, arguments.integer("group", 2, kMostGroup, kDefaultGroup));
  QUIRE_ASSIGN(const int64_t window,
               arguments.integer("window", 1, model.train_len - 1, std::max<int64_t>(1, model.train_len / 4)));
  canonical.add_integer("group", group).add_integer("window", window);
  return std::unique_ptr<Strategy>(std::make_unique<SelfExtend>(group, window, model.train_len));
}

constexpr ArgumentDoc kArguments[] = {
    {"group", "positions that share a distance behind the window"},
    {"window", "distances are true up to here"},
};

}  // namespace

const Method kSelfExtend{.name = "self_extend",
                         .text = "every earlier token, distances between groups behind a window",
                         .arguments = kArguments,
                         .make = make_self_extend,
                         .needs_far_keys = true};

}  // namespace quire
