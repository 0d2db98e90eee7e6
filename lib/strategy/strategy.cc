// From expression to strategy: which methods exist, which of them go together, and the lengths they share.
#include "lib/strategy/strategy.h"

#include <algorithm>

#include "lib/strategy/arguments.h"
#include "lib/strategy/expression.h"
#include "lib/strategy/methods.h"
#include "lib/strategy/rope_scaling.h"

namespace quire {

// Sets what make_strategy decides for every method.
class StrategyBuilder {
 public:
  static void finish(Strategy& strategy, RopeTable rope, int64_t kv_chunk, std::string canonical) {
    strategy.rope_ = std::move(rope);
    if (strategy.kv_chunk_ == 0) strategy.kv_chunk_ = kv_chunk;
    strategy.canonical_ = std::move(canonical);
  }
};

namespace {

constexpr double kMinTheta = 1 + 1e-6;  // frequencies must fall
constexpr double kMaxTheta = 1e15;
constexpr int64_t kChunkStep = 16;  // backends lay keys out in blocks of 16
constexpr int64_t kMaxChunk = 65536;

constexpr std::string_view kFullArguments[] = {"train_len", "kv_chunk"};
constexpr std::string_view kDualChunkArguments[] = {"preset",      "chunk",     "cap",     "local",
                                                    "logit_scale", "train_len", "kv_chunk"};
constexpr std::string_view kLongHeadsArguments[] = {"chunk",  "chunks", "begin",    "forced",
                                                    "select", "init",   "train_len"};
constexpr std::string_view kStreamingLlmArguments[] = {"sinks", "recent", "train_len", "kv_chunk"};
constexpr std::string_view kBaseArguments[] = {"theta"};

struct Method {
  std::string_view name;
  Words arguments;
  MethodMaker make;
};

constexpr Method kMethods[] = {{"full", kFullArguments, make_full},
                               {"dca", kDualChunkArguments, make_dual_chunk},
                               {"longheads", kLongHeadsArguments, make_longheads},
                               {"streaming_llm", kStreamingLlmArguments, make_streaming_llm}};

// Methods of the literature that an expression may rightly ask for.
constexpr std::string_view kUnavailable[] = {"auto",       "beacon",    "dynamic_ntk", "lm_infinite",
                                             "longmixed",  "longrope",  "rerope",      "s2",
                                             "scca_fixed", "scca_flow", "sda",         "self_extend"};

std::vector<std::string_view> method_names() {
  std::vector<std::string_view> names;
  for (const Method& method : kMethods) names.push_back(method.name);
  return names;
}

std::vector<std::string_view> modifier_names() {
  std::vector<std::string_view> names = rope_scaling_names();
  names.push_back("base");
  return names;
}

bool contains(Words names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

Status refuse_name(const Term& term, bool first) {
  if (contains(kUnavailable, term.name)) {
    return expression_error(term.at, std::string(term.name) + " is not available in this version", Code::kUnsupported);
  }
  const std::string expected = "expected one of " + joined(first ? method_names() : modifier_names());
  if (first && contains(modifier_names(), term.name)) {
    return expression_error(term.at, in_quotes(term.name) + " cannot come first; " + expected + ", then '+' and this");
  }
  if (!first && contains(method_names(), term.name)) {
    return expression_error(
        term.at, in_quotes(term.name) + " is the second visibility; a strategy has one, " + "and after '+' " + expected,
        Code::kUnsupported);
  }
  return expression_error(term.at, "unknown method " + in_quotes(term.name) + "; " + expected);
}

// The terms by their parts in the strategy; nullptr where not named.
struct Parts {
  const Method* method = nullptr;
  const Term* visibility = nullptr;
  const Term* scaling = nullptr;
  const Term* base = nullptr;
};

Result<Parts> sort_terms(const std::vector<Term>& terms) {
  Parts parts;
  parts.visibility = &terms.front();
  for (const Method& method : kMethods) {
    if (method.name == terms.front().name) parts.method = &method;
  }
  if (!parts.method) return refuse_name(terms.front(), true);
  for (size_t t = 1; t < terms.size(); ++t) {
    const Term& term = terms[t];
    if (!contains(modifier_names(), term.name)) return refuse_name(term, false);
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
  if (!(context.rope_theta >= kMinTheta && context.rope_theta <= kMaxTheta)) {
    return bad("rope_theta is " + std::to_string(context.rope_theta) + "; expected more than 1 and at most 1e15");
  }
  return {};
}

Result<RopeScaling> checkpoint_rope(const std::string& term, const RopeBase& base) {
  const auto make = [&]() -> Result<RopeScaling> {
    QUIRE_ASSIGN(const std::vector<Term> terms, parse_expression(term));
    if (terms.size() != 1) return expression_error(terms[1].at, "expected one RoPE scaling");
    return make_rope_scaling(terms.front(), base);
  };
  Result<RopeScaling> scaling = make();
  if (!scaling.ok()) {
    return Status(Code::kBadModel,
                  "the checkpoint's RoPE scaling " + in_quotes(term) + ": " + scaling.status().message());
  }
  // A checkpoint's max_position_embeddings is the length it was tuned for with its scaling: it is extended already.
  scaling->extended_len = base.train_len;
  return scaling;
}

int64_t default_chunk(int64_t train_len) {
  return std::clamp(train_len / 4, kChunkStep, int64_t{256}) / kChunkStep * kChunkStep;
}

Result<int64_t> read_kv_chunk(const Arguments& arguments, int64_t train_len) {
  QUIRE_ASSIGN(const int64_t chunk, arguments.integer("kv_chunk", kChunkStep, kMaxChunk, default_chunk(train_len)));
  if (chunk % kChunkStep == 0) return chunk;
  return arguments.refuse("kv_chunk", "kv_chunk is " + std::to_string(chunk) + "; expected a multiple of 16");
}

}  // namespace

Result<std::unique_ptr<const Strategy>> make_strategy(std::string_view expression, const StrategyContext& context) {
  QUIRE_TRY(check_context(context));
  QUIRE_ASSIGN(const std::vector<Term> terms, parse_expression(expression));
  QUIRE_ASSIGN(const Parts parts, sort_terms(terms));

  RopeBase base{context.rope_theta, context.head_dim, context.train_len};
  std::string base_text;
  if (parts.base) {
    const Arguments arguments(*parts.base);
    QUIRE_TRY(arguments.check_names(kBaseArguments));
    QUIRE_ASSIGN(base.theta, arguments.real("theta", kMinTheta, kMaxTheta));
    base_text = " + " + CanonicalTerm("base").add_real("theta", base.theta).text();
  }
  // Without a scaling, `none` is written out: the canonical form means the same whatever a checkpoint says.
  const Term none{"none", 0, {}};
  const bool from_checkpoint = !parts.scaling && !context.checkpoint_scaling.empty();
  QUIRE_ASSIGN(RopeScaling scaling, from_checkpoint ? checkpoint_rope(context.checkpoint_scaling, base)
                                                    : make_rope_scaling(parts.scaling ? *parts.scaling : none, base));

  const Arguments arguments(*parts.visibility);
  QUIRE_TRY(arguments.check_names(parts.method->arguments));
  QUIRE_ASSIGN(const int64_t train_len, arguments.integer("train_len", 1, kMaxTrainLen, scaling.extended_len));
  QUIRE_ASSIGN(const int64_t kv_chunk, read_kv_chunk(arguments, train_len));
  CanonicalTerm canonical(parts.visibility->name);
  QUIRE_ASSIGN(std::unique_ptr<Strategy> strategy, parts.method->make(arguments, train_len, canonical));
  canonical.add_integer("train_len", train_len);
  if (strategy->kv_chunk() == 0) canonical.add_integer("kv_chunk", kv_chunk);
  StrategyBuilder::finish(*strategy, std::move(scaling.table), kv_chunk,
                          canonical.text() + " + " + scaling.canonical + base_text);
  return std::unique_ptr<const Strategy>(std::move(strategy));
}

}  // namespace quire
