// beacon: Activation Beacon: trained beacon tokens condense what was read.
//
// Idea        A text is read in windows of W tokens. When one is complete, S / ratio beacon tokens, with projections of
//             their own, condense its first S tokens: their keys and values stand for the tokens' from then on. Memory
//             and positions stay within the trained window.
// Paper       Zhang et al. 2024, "Soaring from 4K to 400K: Extending LLM's Context with Activation Beacon", sections
//             2.2 (Eq. 1, attention schemes) and 2.3 (Eq. 2, stream processing).
// Here        Version 1, as published with the paper. With m condensed entries, token x of the window stands at m + x
//             and sees the entries and the window up to itself; beacon b = 1, 2, ... sees the entries, itself, and of
//             the window: tokens before b * ratio, at position m + b * ratio (step_expansion); the last `ratio` of
//             those, at m + ratio (segmentation); all, at m + W (full_coverage). An entry stands at its index among the
//             condensed ones. Ratio 0 keeps the tokens' own keys and values instead. An incomplete window stays raw.
// Ratio       ratio=: one for all windows. sequence=: of each window, the last one for all further. Else as the
//             checkpoint says, mostly by the session's length: the ratio with the least capacity (L - W) ratio + W (0:
//             L) that holds expected_tokens + reserve. It never depends on what was fed.
// Invariants  m + W <= L. Where the next window would break that, growth=raise condenses it more (twice, four times,
//             ... as often as divides S), and growth=stop ends the text; it ends too where nothing more helps.
// Complexity  O(L) keys per token, S / ratio more rows per window.
// Memory      Keys and values of m + W tokens.
#include <algorithm>
#include <charconv>

#include "lib/strategy/methods.h"

namespace quire {
namespace {

constexpr std::string_view kAttention[] = {"step_expansion", "segmentation", "full_coverage"};
constexpr std::string_view kGrowth[] = {"raise", "stop"};

// Windows in succession that are condensed alike.
struct Run {
  int64_t first = 0;  // windows [first, end)
  int64_t end = 0;
  int64_t ratio = 0;
  int64_t position = 0;  // condensed entries before it, raw ones included: where its first one stands
  int64_t entry = 0;     // of those whose keys are stored as kCondensed
};

struct BeaconShape {
  int64_t window = 0;
  int64_t stride = 0;
  BeaconAttention attention = BeaconAttention::kStepExpansion;
};

class Beacon final : public Strategy {
 public:
  // ratios: of each window, the last one for all further.
  Beacon(const BeaconShape& shape, const std::vector<int64_t>& ratios, bool raises, int64_t train_len)
      : w_(shape.window), s_(shape.stride), attention_(shape.attention) {
    condenses_ = true;
    make_runs(ratios, raises, train_len);
  }

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    const int64_t end = first_query + n_queries;
    for (int64_t begin = first_query; begin < end;) {
      const int64_t k = n_complete(begin);
      const int64_t block_end = std::min(end, window_end(begin));
      std::vector<Span> spans = text_spans(k, block_end);
      add_condensed(k, spans);
      plan.add_block(begin, block_end - begin, spans);
      begin = block_end;
    }
  }

  int64_t window_end(int64_t n_tokens) const override { return n_complete(n_tokens) * s_ + w_; }

  int64_t condensed_entries(int64_t n_tokens) const override {
    const int64_t k = n_complete(n_tokens);
    const Run& run = run_of(k);
    return run.entry + (run.ratio > 0 ? (k - run.first) * (s_ / run.ratio) : 0);
  }

  KeyRange tokens_of_entry(int64_t entry) const override {
    // The last run whose first entry is not behind it; raw runs make none.
    const auto run =
        std::find_if(runs_.rbegin(), runs_.rend(), [&](const Run& r) { return r.ratio > 0 && r.entry <= entry; });
    if (run == runs_.rend()) return {};
    const int64_t begin = run->first * s_ + (entry - run->entry) * run->ratio;
    return {begin, begin + run->ratio};
  }

  void plan_condensed(int64_t n_tokens, Plan& plan) const override {
    const int64_t k = n_complete(n_tokens) - 1;
    const int64_t ratio = run_of(k).ratio;
    std::vector<Span> spans = text_spans(k, k * s_ + w_);
    spans.back().min_lag = 1;
    if (attention_ == BeaconAttention::kSegmentation) spans.back().max_lag = ratio;
    add_condensed(k, spans);
    if (attention_ == BeaconAttention::kSegmentation) {
      for (Span& span : spans) span.q_cap = static_cast<double>(entries_before(k) + ratio);
    }
    Span self;
    self.kind = KvKind::kCondensed;
    self.first_key = condensed_entries(n_tokens - 1);
    self.count = condensed_entries(n_tokens) - self.first_key;
    self.diagonal = true;
    spans.push_back(self);
    const bool full = attention_ == BeaconAttention::kFullCoverage;
    plan.add_block(k * s_ + (full ? w_ : ratio), self.count, spans);
    plan.blocks.back().step = full ? 0 : ratio;
  }

  std::vector<KeyRange> retained(int64_t next_query) const override {
    const int64_t k = n_complete(next_query);
    std::vector<KeyRange> ranges;
    for (const Run& run : runs_) {
      if (run.ratio == 0 && run.first < k) add_range(run.first * s_, std::min(run.end, k) * s_, ranges);
    }
    add_range(k * s_, kNoLimit, ranges);
    return ranges;
  }

 private:
  // Windows that are complete when n tokens were read; the next token belongs to the window after them.
  int64_t n_complete(int64_t n) const { return n < w_ ? 0 : (n - w_) / s_ + 1; }

  int64_t per_window(int64_t ratio) const { return ratio == 0 ? s_ : s_ / ratio; }

  const Run& run_of(int64_t window) const {
    return *std::find_if(runs_.begin(), runs_.end() - 1, [&](const Run& run) { return window < run.end; });
  }

  // Condensed entries before window k, raw ones included.
  int64_t entries_before(int64_t k) const {
    const Run& run = run_of(k);
    return run.position + (k - run.first) * per_window(run.ratio);
  }

  // The least divisor of S above `ratio` that condenses; 0: none. A stride may be long and a sequence may ask often:
  // divisors are found once, by trying those up to the root of S.
  int64_t next_ratio(int64_t ratio) {
    if (divisors_.empty()) {
      for (int64_t d = 1; d <= s_ / d; ++d) {
        if (s_ % d == 0) divisors_.insert(divisors_.end(), {d, s_ / d});
      }
      std::sort(divisors_.begin(), divisors_.end());
    }
    const auto next = std::upper_bound(divisors_.begin(), divisors_.end(), std::max<int64_t>(1, ratio));
    return next == divisors_.end() ? 0 : *next;
  }

  // Appends `count` windows, condensed by `ratio` or, if that leaves no room, by more. False: not all of them fit.
  bool add_windows(int64_t ratio, int64_t count, bool raises, int64_t& room) {
    for (;;) {
      const int64_t per = per_window(ratio), n = std::min(count, room / per);
      if (n > 0) {
        Run run;
        if (!runs_.empty()) {
          const Run& last = runs_.back();
          run = {last.end, 0, 0, entries_before(last.end), last.entry};
          if (last.ratio > 0) run.entry += (last.end - last.first) * per_window(last.ratio);
        }
        run.end = run.first + n;
        run.ratio = ratio;
        runs_.push_back(run);
        room -= n * per;
        count -= n;
      }
      if (count == 0) return true;
      ratio = raises ? next_ratio(ratio) : 0;
      if (ratio == 0) return false;
    }
  }

  void make_runs(const std::vector<int64_t>& ratios, bool raises, int64_t train_len) {
    int64_t room = train_len - w_;
    bool fits = true;
    for (size_t r = 0; r < ratios.size() && fits; ++r) {
      fits = add_windows(ratios[r], r + 1 < ratios.size() ? 1 : kNoLimit, raises, room);
    }
    const int64_t last = runs_.empty() ? 0 : runs_.back().end;  // the last window that there is room for
    // It is condensed too, and what is extrapolated behind it, as those before.
    if (runs_.empty()) runs_.push_back({0, 0, ratios.back(), 0, 0});
    runs_.back().end = kNoLimit;
    for (const Run& run : runs_) {
      if (run.ratio > 0) most_new_entries_ = std::max(most_new_entries_, per_window(run.ratio));
    }
    divisors_ = {};
    if (last >= (int64_t{1} << 60) / s_) return;
    // The window after it may begin while positions last.
    reach_ = std::max(last * s_ + w_, (last + 1) * s_ + train_len - entries_before(last + 1));
  }

  // The keys of raw windows before window k, and its own up to `end`, for queries of window k.
  std::vector<Span> text_spans(int64_t k, int64_t end) const {
    std::vector<Span> spans;
    for (const Run& run : runs_) {
      if (run.ratio != 0 || run.first >= k) continue;
      Span raw;
      raw.first_key = run.first * s_;
      raw.count = (std::min(run.end, k) - run.first) * s_;
      raw.key_base = raw.first_key - run.position;
      spans.push_back(raw);
    }
    Span own;
    own.first_key = k * s_;
    own.count = end - own.first_key;
    own.key_base = own.first_key - entries_before(k);
    spans.push_back(own);
    for (Span& span : spans) span.q_offset = static_cast<double>(-own.key_base);
    return spans;
  }

  // The entries of condensed windows before window k.
  void add_condensed(int64_t k, std::vector<Span>& spans) const {
    for (const Run& run : runs_) {
      if (run.ratio == 0 || run.first >= k) continue;
      Span entries;
      entries.kind = KvKind::kCondensed;
      entries.first_key = run.entry;
      entries.count = (std::min(run.end, k) - run.first) * per_window(run.ratio);
      entries.key_base = run.entry - run.position;
      entries.q_offset = static_cast<double>(entries_before(k) - k * s_);
      spans.push_back(entries);
    }
  }

  static void add_range(int64_t begin, int64_t end, std::vector<KeyRange>& ranges) {
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end});
    }
  }

  std::vector<Run> runs_;
  std::vector<int64_t> divisors_;  // of S, ascending; empty until one is asked for
  int64_t w_;
  int64_t s_;
  BeaconAttention attention_;
};

// "x2.x4.x8": ratios of windows in succession.
bool read_sequence(std::string_view text, std::vector<int64_t>* ratios) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    int64_t ratio = 0;
    if (item.size() < 2 || item[0] != 'x') return false;
    const auto [stop, error] = std::from_chars(item.data() + 1, item.data() + item.size(), ratio);
    if (error != std::errc() || stop != item.data() + item.size()) return false;
    ratios->push_back(ratio);
    begin = end + 1;
  }
  return true;
}

std::string sequence_text(const std::vector<int64_t>& ratios) {
  std::string text;
  for (const int64_t ratio : ratios) text += (text.empty() ? "x" : ".x") + std::to_string(ratio);
  return text;
}

// The ratio with the least capacity that holds `needed` tokens; the largest one if none does.
int64_t adapted_ratio(const std::vector<int64_t>& ratios, int64_t needed, int64_t window, int64_t train_len) {
  int64_t best = -1, best_capacity = 0, largest = 0;
  for (const int64_t ratio : ratios) {
    const int64_t capacity = ratio == 0 ? train_len : (train_len - window) * ratio + window;
    if (capacity >= needed && (best < 0 || capacity < best_capacity)) {
      best = ratio;
      best_capacity = capacity;
    }
    largest = std::max(largest, ratio);
  }
  return best < 0 ? largest : best;
}

bool is_ratio_of(int64_t ratio, int64_t stride) {
  return ratio == 0 || (ratio > 0 && ratio <= stride && stride % ratio == 0);
}

Status check_ratio(const Arguments& arguments, std::string_view name, int64_t ratio, int64_t stride) {
  if (is_ratio_of(ratio, stride)) return {};
  return arguments.refuse(name, std::string(name) + " has a ratio of " + std::to_string(ratio) +
                                    "; expected 0 or a divisor of the stride of " + std::to_string(stride) + " tokens");
}

// Of each window, the last one for all further.
Result<std::vector<int64_t>> read_ratios(const Arguments& arguments, const MethodModel& model,
                                         const BeaconConfig& config, const BeaconShape& shape) {
  std::vector<int64_t> ratios;
  std::string_view name = "ratio";
  if (arguments.has("ratio") + arguments.has("sequence") + arguments.has("reserve") > 1) {
    return arguments.refuse(arguments.has("reserve") ? "reserve" : "sequence",
                            "ratio, sequence and reserve exclude each other");
  }
  const bool named = arguments.has("ratio") || arguments.has("sequence") || arguments.has("reserve");
  if (arguments.has("ratio")) {
    QUIRE_ASSIGN(const int64_t ratio, arguments.integer("ratio", 0, shape.stride));
    ratios = {ratio};
  } else if (arguments.has("sequence")) {
    name = "sequence";
    QUIRE_ASSIGN(const std::string text, arguments.word("sequence", ""));
    if (!read_sequence(text, &ratios)) {
      return arguments.refuse("sequence", "sequence is " + in_quotes(text) +
                                              "; expected ratios of windows in succession, such as x2.x4.x8");
    }
  } else if (!named && config.mix == BeaconConfig::Mix::kSequence) {
    ratios = config.ratios;
  } else if (!named && config.ratios.size() == 1) {
    ratios = config.ratios;
  } else {
    constexpr int64_t kMost = int64_t{1} << 40;
    QUIRE_ASSIGN(const int64_t reserve, arguments.integer("reserve", 0, kMost, config.reserve));
    if (model.expected_tokens == 0) {
      return arguments.refuse(
          "ratio", "beacon chooses its ratio by the length of the text: set expected_tokens, or name ratio=");
    }
    std::vector<int64_t> possible = config.ratios;
    std::erase_if(possible, [&](int64_t ratio) { return !is_ratio_of(ratio, shape.stride); });
    if (possible.empty()) possible = config.ratios;  // one of them is refused
    ratios = {adapted_ratio(possible, std::min(model.expected_tokens, kMost) + reserve, shape.window, model.train_len)};
  }
  for (const int64_t ratio : ratios) QUIRE_TRY(check_ratio(arguments, name, ratio, shape.stride));
  return ratios;
}

Result<std::unique_ptr<Strategy>> make_beacon(const Arguments& arguments, const MethodModel& model,
                                              CanonicalTerm& canonical) {
  if (!model.beacon) {
    return arguments.unsupported(
        "the model has no beacon weights; they come with its checkpoint, or with a plug-in that is loaded with it");
  }
  const BeaconConfig& config = *model.beacon;
  BeaconShape shape;
  QUIRE_ASSIGN(shape.window, arguments.integer("window", 1, model.train_len, std::min(config.window, model.train_len)));
  QUIRE_ASSIGN(shape.stride, arguments.integer("stride", 1, shape.window, std::min(config.stride, shape.window)));
  size_t attention = static_cast<size_t>(config.attention);
  if (arguments.has("attn")) {
    QUIRE_ASSIGN(attention, arguments.choice("attn", kAttention));
  }
  shape.attention = static_cast<BeaconAttention>(attention);
  QUIRE_ASSIGN(const std::vector<int64_t> ratios, read_ratios(arguments, model, config, shape));
  QUIRE_ASSIGN(const size_t growth, arguments.choice("growth", kGrowth));
  canonical.add_integer("window", shape.window).add_integer("stride", shape.stride).add("attn", kAttention[attention]);
  if (ratios.size() == 1) {
    canonical.add_integer("ratio", ratios[0]);
  } else {
    canonical.add("sequence", sequence_text(ratios));
  }
  canonical.add("growth", kGrowth[growth]);
  return std::unique_ptr<Strategy>(std::make_unique<Beacon>(shape, ratios, growth == 0, model.train_len));
}

constexpr ArgumentDoc kArguments[] = {
    {"window", "tokens that are condensed at a time"},
    {"stride", "tokens of a window that its entries stand for"},
    {"attn", "what beacon tokens see, as the checkpoint was trained", "attn=step_expansion"},
    {"ratio", "tokens an entry stands for, of all windows; 0: they are kept", "ratio=0"},
    {"sequence", "ratios of windows in succession, such as x2.x4", "sequence=x1"},
    {"reserve", "tokens beside expected_tokens that the ratio leaves room for", "reserve=0"},
    {"growth", "what happens where a ratio ends: later windows are condensed more, or the text ends"},
};

}  // namespace

const Method kBeacon{.name = "beacon",
                     .text = "what trained beacon tokens condense from each window, and the window",
                     .arguments = kArguments,
                     .make = make_beacon,
                     .needs_far_keys = true};

}  // namespace quire
