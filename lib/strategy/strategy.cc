// From expression to strategy: which methods exist, which of them go together, and the lengths they share.
#include "lib/strategy/strategy.h"

#include <algorithm>
#include <numeric>

#include "lib/strategy/arguments.h"
#include "lib/strategy/auto_choice.h"
#include "lib/strategy/expression.h"
#include "lib/strategy/methods.h"
#include "lib/strategy/rope_scaling.h"
#include "lib/strategy/sliding_window.h"
#include "lib/strategy/strategy_list.h"

namespace quire {

// Sets what make_strategy decides for every method.
class StrategyBuilder {
 public:
  static void finish(Strategy& strategy, RopeTable rope, int64_t kv_chunk, std::string canonical) {
    strategy.rope_ = std::move(rope);
    strategy.kv_chunk_ = kv_chunk;
    // Groups of keys that share a position must not reach over the chunk's end.
    if (strategy.stored_div_ > 1 && kv_chunk % strategy.stored_div_ != 0) strategy.stored_div_ = 0;
    strategy.canonical_ = std::move(canonical);
  }
  static void set_window_layers(Strategy& strategy, std::unique_ptr<Strategy> windowed, RopeTable rope) {
    windowed->rope_ = std::move(rope);
    windowed->kv_chunk_ = strategy.kv_chunk_;
    windowed->stored_div_ = strategy.stored_div_;
    strategy.window_layers_ = std::move(windowed);
  }
  static void set_notice(Strategy& strategy, std::string notice) { strategy.notice_ = std::move(notice); }
  static void set_names_frequencies(Strategy& strategy, bool names) { strategy.names_frequencies_ = names; }
};

namespace {

constexpr double kMinTheta = 1 + 1e-6;  // frequencies must fall
constexpr double kMaxTheta = 1e15;
constexpr int64_t kChunkStep = 16;  // backends lay keys out in blocks of 16

constexpr ArgumentDoc kCommonArguments[] = {
    {"train_len", "tokens that weights and scaling are good for (L)"},
    {"ignore_window", "1: do without the model's own sliding window"},
    {"kv_chunk", "tokens of a stored chunk"},
};
constexpr ArgumentDoc kBaseArguments[] = {{"theta", "the RoPE base"}};

const Method* const kMethods[] = {&kFull,      &kBeacon,    &kDualChunk,  &kDcaTopK,     &kLmInfinite,
                                  &kLongMixed, &kLongHeads, &kReRope,     &kS2,          &kSccaFixed,
                                  &kSccaFlow,  &kSda,       &kSelfExtend, &kStreamingLlm};
constexpr std::string_view kAuto = "auto";  // stands for one of them

std::vector<std::string_view> method_names() {
  std::vector<std::string_view> names;
  for (const Method* method : kMethods) names.push_back(method->name);
  names.push_back(kAuto);
  return names;
}

std::vector<std::string_view> modifier_names() {
  std::vector<std::string_view> names = rope_scaling_names();
  names.push_back("base");
  return names;
}

bool contains(Words names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// Of an expression that names none.
const Term& usual_visibility() {
  static const Term full{"full", 0, {}};
  return full;
}

// The terms by their parts in the strategy; nullptr where not named.
struct Parts {
  const Term* visibility = nullptr;
  const Term* scaling = nullptr;
  const Term* base = nullptr;
};

Status refuse_name(const Term& term, const Parts& before) {
  if (!before.visibility) {
    return expression_error(term.at, "unknown method " + in_quotes(term.name) + "; expected one of " +
                                         joined(method_names()) + ", or for full attention one of " +
                                         joined(modifier_names()));
  }
  const std::string expected = "expected one of " + joined(modifier_names());
  if (!contains(method_names(), term.name)) {
    return expression_error(term.at, "unknown method " + in_quotes(term.name) + "; " + expected);
  }
  if (before.visibility == &usual_visibility()) {
    return expression_error(term.at, in_quotes(term.name) + " is a visibility and must come first; here " + expected);
  }
  return expression_error(
      term.at, in_quotes(term.name) + " is the second visibility; a strategy has one, " + "and after '+' " + expected,
      Code::kUnsupported);
}

// Scalings and a base alone go with full attention.
Result<Parts> sort_terms(const std::vector<Term>& terms) {
  Parts parts;
  for (const Term& term : terms) {
    if (!contains(modifier_names(), term.name)) {
      if (parts.visibility || !contains(method_names(), term.name)) return refuse_name(term, parts);
      parts.visibility = &term;
      continue;
    }
    if (!parts.visibility) parts.visibility = &usual_visibility();
    const Term*& slot = term.name == "base" ? parts.base : parts.scaling;
    if (slot) {
      return expression_error(term.at,
                              in_quotes(term.name) + " after " + in_quotes(slot->name) +
                                  ": a strategy has one RoPE scaling, and may have one base besides",
                              Code::kUnsupported);
    }
    slot = &term;
  }
  return parts;
}

Status check_context(const StrategyContext& context) {
  const auto bad = [](const std::string& what) { return Status(Code::kInvalidArgument, what); };
  if (context.train_len < 1 || context.train_len > kMaxTrainLen) {
    return bad("train_len is " + std::to_string(context.train_len) + "; expected 1 to " + std::to_string(kMaxTrainLen));
  }
  if (context.head_dim < 2 || context.head_dim % 2 != 0) {
    return bad("head_dim is " + std::to_string(context.head_dim) + "; expected a positive even number");
  }
  if (context.rotary_dim < 0 || context.rotary_dim > context.head_dim || context.rotary_dim % 2 != 0) {
    return bad("rotary_dim is " + std::to_string(context.rotary_dim) + "; expected an even number of at most " +
               std::to_string(context.head_dim));
  }
  const int64_t n_pairs = context.turning_dim() / 2;
  if (!(context.rope_theta >= kMinTheta && context.rope_theta <= kMaxTheta)) {
    return bad("rope_theta is " + std::to_string(context.rope_theta) + "; expected more than 1 and at most 1e15");
  }
  if (context.window_rope_theta != 0 &&
      !(context.window_rope_theta >= kMinTheta && context.window_rope_theta <= kMaxTheta)) {
    return bad("window_rope_theta is " + std::to_string(context.window_rope_theta) +
               "; expected 0, or more than 1 and at most 1e15");
  }
  if (context.longrope) {
    for (const std::vector<double>* factors : {&context.longrope->short_factors, &context.longrope->long_factors}) {
      if (static_cast<int64_t>(factors->size()) != n_pairs) {
        return bad("a list of " + std::to_string(factors->size()) + " longrope factors; expected " +
                   std::to_string(n_pairs));
      }
    }
  }
  const std::vector<double>& factors = context.freq_factors;
  if (!factors.empty() && static_cast<int64_t>(factors.size()) != n_pairs) {
    return bad("a list of " + std::to_string(factors.size()) + " frequency factors; expected " +
               std::to_string(n_pairs));
  }
  return {};
}

Result<RopeScaling> checkpoint_rope(const std::string& term, RopeBase base) {
  base.original_len = base.train_len;  // as transformers: a term that has another one says so
  bool by_length = false, reaches_further = false;
  const auto make = [&]() -> Result<RopeScaling> {
    QUIRE_ASSIGN(const std::vector<Term> terms, parse_expression(term));
    if (terms.size() != 1) return expression_error(terms[1].at, "expected one RoPE scaling");
    by_length = needs_length(terms.front().name);
    reaches_further = terms.front().name == "yarn";
    if (!by_length || base.expected_tokens > 0) return make_rope_scaling(terms.front(), base);
    return Status(Code::kInvalidArgument, "the checkpoint's RoPE scaling " + in_quotes(term) +
                                              " depends on the length of the text: set expected_tokens, or name a "
                                              "scaling in the strategy, such as `none` or " +
                                              std::string(terms.front().name) + "(length=...)");
  };
  Result<RopeScaling> scaling = make();
  if (!scaling.ok() && scaling.status().code() == Code::kInvalidArgument) return scaling;
  if (!scaling.ok()) {
    return Status(Code::kBadFile,
                  "the checkpoint's RoPE scaling " + in_quotes(term) + ": " + scaling.status().message());
  }
  // A checkpoint's max_position_embeddings is the length it was tuned for with its scaling: it is extended already.
  // YaRN may be asked for without that: Qwen's files keep the trained length, and original * factor is the longer one.
  // The scalings made for one length say themselves how far they go.
  if (!by_length && !reaches_further) scaling->extended_len = base.train_len;
  return scaling;
}

// As the expression names it. The checkpoint's own scaling is no other computation when it is named: it reaches as far.
Result<RopeScaling> named_rope(const Term& term, const RopeBase& base, const std::string& checkpoint_term,
                               ArgumentLog* log) {
  QUIRE_ASSIGN(RopeScaling scaling, make_rope_scaling(term, base, log));
  if (checkpoint_term.empty()) return scaling;
  Result<RopeScaling> own = checkpoint_rope(checkpoint_term, base);
  if (own.ok() && own->canonical == scaling.canonical) scaling.extended_len = own->extended_len;
  return scaling;
}

// A stored chunk holds whole chunks of what a strategy selects. The usual one also holds whole groups of keys that are
// stored at one position, if it is as long as a group.
Result<int64_t> read_kv_chunk(const Arguments& arguments, const Strategy& strategy, int64_t train_len) {
  const int64_t step = strategy.selects_chunks() ? strategy.selection().chunk : kChunkStep;
  const int64_t good = std::lcm(step, std::max<int64_t>(strategy.stored_div(), 1));
  const int64_t most = default_kv_chunk(train_len), unit = good <= most ? good : step;
  const int64_t usual = std::max<int64_t>(most / unit, 1) * unit;
  return arguments.integer("kv_chunk", step, kMostKvChunk, usual, step);
}

// Its own arguments and those that all take.
std::vector<ArgumentDoc> arguments_of(const Method& method) {
  std::vector<ArgumentDoc> all(method.arguments.begin(), method.arguments.end());
  all.insert(all.end(), std::begin(kCommonArguments), std::end(kCommonArguments) - (method.has_kv_chunk ? 0 : 1));
  return all;
}

// Of the layers with a window of their own; `others`: of the other layers.
Result<RopeTable> window_rope(const StrategyContext& context, const RopeTable& others) {
  if (context.window_rope_theta == 0) return others;
  RopeBase base;
  base.theta = context.window_rope_theta;
  base.rotary_dim = context.turning_dim();
  QUIRE_ASSIGN(RopeScaling plain, make_rope_scaling(Term{"none", 0, {}}, base));
  plain.table.theta.resize(others.theta.size(), 0);
  return std::move(plain.table);
}

// The strategy that `term` (not auto) names, with `scaling`; `suffix` ends the canonical form.
Result<std::unique_ptr<Strategy>> make_visibility(const Term& term, RopeScaling scaling, const std::string& suffix,
                                                  const StrategyContext& context, ArgumentLog* log) {
  const Method& method =
      **std::find_if(std::begin(kMethods), std::end(kMethods), [&](const Method* m) { return m->name == term.name; });
  const Arguments arguments(term, log);
  QUIRE_TRY(arguments.check_names(names_of(arguments_of(method))));
  QUIRE_ASSIGN(const int64_t train_len, arguments.integer("train_len", 1, kMaxTrainLen, scaling.extended_len));
  QUIRE_ASSIGN(const int64_t ignore_window, arguments.integer("ignore_window", 0, 1, 0));
  const int64_t window = ignore_window == 1 ? 0 : context.common_window();
  if (window > 0 && method.needs_far_keys) {
    return arguments.unsupported("the model sees only " + std::to_string(window) +
                                 " tokens back (its sliding window), and this method needs keys behind them; "
                                 "ignore_window=1 shows them to a model that was not trained so");
  }
  CanonicalTerm canonical(term.name);
  QUIRE_ASSIGN(std::unique_ptr<Strategy> strategy,
               method.make(arguments,
                           {train_len, context.n_query_heads, context.beacon ? &*context.beacon : nullptr,
                            context.expected_tokens},
                           canonical));
  canonical.add_integer("train_len", train_len);
  int64_t kv_chunk = strategy->kv_chunk();
  if (method.has_kv_chunk) {
    QUIRE_ASSIGN(kv_chunk, read_kv_chunk(arguments, *strategy, train_len));
    canonical.add_integer("kv_chunk", kv_chunk);
  }
  if (ignore_window == 1) canonical.add_integer("ignore_window", 1);
  if (window > 0) strategy = make_windowed(std::move(strategy), window, train_len);
  StrategyBuilder::finish(*strategy, std::move(scaling.table), kv_chunk, canonical.text() + suffix);
  if (context.some_layers_slide && ignore_window == 0) {
    if (strategy->condenses()) {
      return arguments.unsupported("some of the model's layers see only " + std::to_string(context.sliding_window) +
                                   " tokens back (its sliding window), and condensed entries stand for older ones");
    }
    CanonicalTerm unused("full");
    QUIRE_ASSIGN(auto all, kFull.make(Arguments(Term{"full", 0, {}}), {train_len, context.n_query_heads}, unused));
    QUIRE_ASSIGN(RopeTable rope, window_rope(context, strategy->rope()));
    StrategyBuilder::set_window_layers(*strategy, make_windowed(std::move(all), context.sliding_window, train_len),
                                       std::move(rope));
  }
  return strategy;
}

Result<std::unique_ptr<Strategy>> make_chosen(const Parts& parts, RopeScaling scaling, const std::string& suffix,
                                              const StrategyContext& context) {
  QUIRE_TRY(Arguments(*parts.visibility).check_names({}));
  QUIRE_ASSIGN(const AutoChoice choice, choose_visibility(context, scaling.extended_len, parts.scaling != nullptr));
  const auto make = [&]() -> Result<std::unique_ptr<Strategy>> {
    QUIRE_ASSIGN(const std::vector<Term> terms, parse_expression(choice.visibility));
    return make_visibility(terms.front(), std::move(scaling), suffix, context, nullptr);
  };
  Result<std::unique_ptr<Strategy>> strategy = make();
  if (!strategy.ok()) {  // a request of the checkpoint that makes no sense
    return expression_error(
        parts.visibility->at,
        "auto chose " + choice.visibility + " because " + choice.reason + ": " + strategy.status().message(),
        strategy.status().code());
  }
  StrategyBuilder::set_notice(**strategy, "auto chose " + (*strategy)->canonical() + " because " + choice.reason);
  return strategy;
}

}  // namespace

bool Strategy::drops_text() const {
  constexpr int64_t kFar = int64_t{1} << 40;  // behind all that a strategy keeps of a text's beginning
  const std::vector<KeyRange> ranges = retained(kFar);
  return ranges.size() != 1 || ranges.front().begin > 0;
}

std::vector<KeyRange> sinks_and_window(int64_t sinks, int64_t window) {
  if (window <= sinks) return {{0, kNoLimit}};
  if (sinks == 0) return {{window, kNoLimit}};
  return {{0, sinks}, {window, kNoLimit}};
}

int64_t default_kv_chunk(int64_t train_len) {
  return std::clamp(train_len / 4, kChunkStep, int64_t{256}) / kChunkStep * kChunkStep;
}

std::vector<ListedTerm> listed_terms() {
  std::vector<ListedTerm> terms;
  for (const Method* method : kMethods) {
    terms.push_back({"visibility", method->name, method->text, arguments_of(*method)});
  }
  terms.push_back({"visibility", kAuto, "one of these, by checkpoint, expected length and KV budget", {}});
  for (const TermDoc& scaling : rope_scaling_docs()) {
    terms.push_back({"rope_scaling", scaling.name, scaling.text, {scaling.arguments.begin(), scaling.arguments.end()}});
  }
  terms.push_back({"base", "base", "another RoPE base", {std::begin(kBaseArguments), std::end(kBaseArguments)}});
  return terms;
}

Result<std::unique_ptr<const Strategy>> make_strategy(std::string_view expression, const StrategyContext& context) {
  return make_logged_strategy(expression, context, nullptr);
}

Result<std::unique_ptr<const Strategy>> make_logged_strategy(std::string_view expression,
                                                             const StrategyContext& context, ArgumentLog* log) {
  QUIRE_TRY(check_context(context));
  QUIRE_ASSIGN(const std::vector<Term> terms, parse_expression(expression));
  QUIRE_ASSIGN(const Parts parts, sort_terms(terms));
  const bool automatic = parts.visibility->name == kAuto;

  RopeBase base{context.rope_theta,      context.turning_dim(),
                context.train_len,       context.original_len > 0 ? context.original_len : context.train_len,
                context.expected_tokens, context.longrope ? &*context.longrope : nullptr,
                context.freq_factors};
  std::string base_text;
  if (parts.base) {
    const Arguments arguments(*parts.base, log);
    QUIRE_TRY(arguments.check_names(names_of(kBaseArguments)));
    QUIRE_ASSIGN(base.theta, arguments.real("theta", kMinTheta, kMaxTheta));
    base_text = " + " + CanonicalTerm("base").add_real("theta", base.theta).text();
  }
  // Without a scaling, `none` is written out: the canonical form means the same whatever a checkpoint says.
  const Term none{"none", 0, {}};
  const bool from_checkpoint = !parts.scaling && !context.checkpoint_scaling.empty();
  // auto goes beyond the trained length without the scaling's help, so a checkpoint's may stop there.
  if (from_checkpoint && automatic && base.expected_tokens == 0) base.expected_tokens = context.train_len;
  QUIRE_ASSIGN(RopeScaling scaling, from_checkpoint ? checkpoint_rope(context.checkpoint_scaling, base)
                                                    : named_rope(parts.scaling ? *parts.scaling : none, base,
                                                                 context.checkpoint_scaling, log));
  // The other pairs of a head stand still: a model's loader puts them last (plan/head_order.h).
  scaling.table.theta.resize(static_cast<size_t>(context.head_dim / 2), 0);

  const std::string suffix = " + " + scaling.canonical + base_text;
  QUIRE_ASSIGN(std::unique_ptr<Strategy> strategy,
               automatic ? make_chosen(parts, std::move(scaling), suffix, context)
                         : make_visibility(*parts.visibility, std::move(scaling), suffix, context, log));
  StrategyBuilder::set_names_frequencies(*strategy, parts.base || (parts.scaling && parts.scaling->name != none.name));
  return std::unique_ptr<const Strategy>(std::move(strategy));
}

}  // namespace quire
