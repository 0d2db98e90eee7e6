// none, pi, ntk, yarn, llama3, dynamic_ntk, longrope, freq_factors: other RoPE frequencies, so that a longer text stays
// inside the trained angles.
//
// Idea        Pair a of a head turns by theta_a = b^(-2a/d) per position (b = rope_theta; d dimensions of the head
// turn).
//             A factor f slows it down:
//   pi        theta_a / f: positions squeezed f times (Chen et al. 2023, "Position Interpolation").
//   ntk       b' = b f^(d/(d-2)): the fastest pair keeps its speed, the slowest is slowed f times (bloc97 2023).
//   yarn      theta_a ((1-g)/f + g), g falling from 1 to 0 between the pairs that turn beta_fast and beta_slow times in
//             the original length, and logits times A^2, A = 0.1 ln f + 1 (Peng et al. 2023). variant=pose is the
//             harmonic form theta_a / ((1-g) f + g) of the PoSE checkpoints.
//   llama3    keeps wavelengths below original/high, divides those above original/low by f, blends between (Llama 3.1).
//   dynamic_ntk
//             ntk with the factor f n / L - (f - 1) for a text of n > L tokens, plain RoPE for shorter ones (emozilla
//             2023). Implementations that take n from what has been read rotate cached keys and new queries by other
//             bases; here n is one number, known when the session begins.
//   longrope  theta_a / e_a and logits times A^2, A = sqrt(1 + ln f / ln L); e is one of two lists that a search found
//             for the checkpoint: for texts of up to L tokens, and for longer ones (Ding et al. 2024, "LongRoPE").
//   freq_factors
//             theta_a / e_a with a list of the checkpoint: how GGUF files carry the scaling of Llama 3.1.
// Invariants  Frequencies depend on the expression, the model and the length the session expects, never on how much has
//             been read.
// Complexity  None at run time. Memory: none.
#include "lib/strategy/rope_scaling.h"

#include <algorithm>
#include <cmath>

#include "lib/strategy/arguments.h"

namespace quire {
namespace {

constexpr double kMaxFactor = 1e6;
constexpr double kPi = 3.14159265358979323846;

std::vector<double> frequencies(double base, int rotary_dim) {
  std::vector<double> theta(static_cast<size_t>(rotary_dim / 2));
  for (size_t a = 0; a < theta.size(); ++a) theta[a] = std::pow(base, -2.0 * static_cast<double>(a) / rotary_dim);
  return theta;
}

int64_t extended(int64_t original, double factor, const RopeBase& base) {
  const double length = std::min(std::floor(static_cast<double>(original) * factor), static_cast<double>(kMaxTrainLen));
  // Where the checkpoint's own extension of `original` goes further, its weights are good for that.
  return std::max(base.train_len, static_cast<int64_t>(length));
}

Result<double> read_factor(const Arguments& arguments) { return arguments.real("factor", 1, kMaxFactor); }

Result<int64_t> read_original(const Arguments& arguments, const RopeBase& base) {
  return arguments.integer("original", 1, kMaxTrainLen, base.original_len);
}

Result<RopeScaling> make_none(const Arguments&, const RopeBase& base, CanonicalTerm&) {
  return RopeScaling{{frequencies(base.theta, base.rotary_dim), 1}, base.train_len, {}};
}

Result<RopeScaling> make_pi(const Arguments& arguments, const RopeBase& base, CanonicalTerm& canonical) {
  QUIRE_ASSIGN(const double factor, read_factor(arguments));
  canonical.add_real("factor", factor);
  RopeScaling scaling{{frequencies(base.theta, base.rotary_dim), 1}, extended(base.original_len, factor, base), {}};
  for (double& theta : scaling.table.theta) theta /= factor;
  return scaling;
}

Result<RopeScaling> make_ntk(const Arguments& arguments, const RopeBase& base, CanonicalTerm& canonical) {
  QUIRE_ASSIGN(const double factor, read_factor(arguments));
  canonical.add_real("factor", factor);
  const double d = base.rotary_dim;
  if (base.rotary_dim < 4)
    return arguments.refuse("", "heads with " + number_text(d) + " dimensions that turn; expected at least 4");
  const double new_base = base.theta * std::pow(factor, d / (d - 2));
  return RopeScaling{{frequencies(new_base, base.rotary_dim), 1}, extended(base.original_len, factor, base), {}};
}

struct YarnOptions {
  double factor = 1;
  int64_t original = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool harmonic = false;
  bool truncate = true;
};

std::vector<double> yarn_frequencies(const YarnOptions& options, const RopeBase& base) {
  // The (fractional) pair that turns `turns` times in the original length.
  const auto pair_of = [&](double turns) {
    const double longest = static_cast<double>(options.original) / (turns * 2 * kPi);
    return base.rotary_dim * std::log(longest) / (2 * std::log(base.theta));
  };
  double low = pair_of(options.beta_fast);
  double high = pair_of(options.beta_slow);
  if (options.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, base.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<double> theta = frequencies(base.theta, base.rotary_dim);
  for (size_t a = 0; a < theta.size(); ++a) {
    const double kept = 1 - std::clamp((static_cast<double>(a) - low) / (high - low), 0.0, 1.0);
    if (options.harmonic) {
      theta[a] /= (1 - kept) * options.factor + kept;
    } else {
      theta[a] *= (1 - kept) / options.factor + kept;
    }
  }
  return theta;
}

Result<RopeScaling> make_yarn(const Arguments& arguments, const RopeBase& base, CanonicalTerm& canonical) {
  constexpr double kMinBeta = 1e-3, kMaxBeta = 1e6, kMinAttention = 1e-6, kMaxAttention = 1e6;
  constexpr std::string_view variants[] = {"hf", "pose"};
  YarnOptions options;
  QUIRE_ASSIGN(options.factor, read_factor(arguments));
  QUIRE_ASSIGN(options.original, read_original(arguments, base));
  QUIRE_ASSIGN(options.beta_fast, arguments.real("beta_fast", kMinBeta, kMaxBeta, 32));
  QUIRE_ASSIGN(options.beta_slow, arguments.real("beta_slow", kMinBeta, kMaxBeta, 1));
  if (!(options.beta_fast > options.beta_slow)) {
    return arguments.refuse(arguments.has("beta_fast") ? "beta_fast" : "beta_slow",
                            "beta_fast is " + number_text(options.beta_fast) + " and beta_slow " +
                                number_text(options.beta_slow) + "; expected beta_fast > beta_slow");
  }
  QUIRE_ASSIGN(const double attention,
               arguments.real("attention_factor", kMinAttention, kMaxAttention, 0.1 * std::log(options.factor) + 1));
  QUIRE_ASSIGN(const size_t variant, arguments.choice("variant", variants));
  QUIRE_ASSIGN(const int64_t truncate, arguments.integer("truncate", 0, 1, 1));
  options.harmonic = variant == 1;
  options.truncate = truncate == 1;
  canonical.add_real("factor", options.factor)
      .add_integer("original", options.original)
      .add_real("beta_fast", options.beta_fast)
      .add_real("beta_slow", options.beta_slow)
      .add_real("attention_factor", attention)
      .add("variant", variants[variant])
      .add_integer("truncate", truncate);
  return RopeScaling{
      {yarn_frequencies(options, base), attention}, extended(options.original, options.factor, base), {}};
}

Result<RopeScaling> make_llama3(const Arguments& arguments, const RopeBase& base, CanonicalTerm& canonical) {
  constexpr double kMinFrequency = 1e-6, kMaxFrequency = 1e6;
  QUIRE_ASSIGN(const double factor, read_factor(arguments));
  QUIRE_ASSIGN(const double low, arguments.real("low", kMinFrequency, kMaxFrequency, 1));
  QUIRE_ASSIGN(const double high, arguments.real("high", kMinFrequency, kMaxFrequency, 4));
  if (!(low < high)) {
    return arguments.refuse(arguments.has("high") ? "high" : "low",
                            "low is " + number_text(low) + " and high " + number_text(high) + "; expected low < high");
  }
  QUIRE_ASSIGN(const int64_t original, read_original(arguments, base));
  canonical.add_real("factor", factor).add_real("low", low).add_real("high", high).add_integer("original", original);
  std::vector<double> theta = frequencies(base.theta, base.rotary_dim);
  for (double& t : theta) {
    const double turns = static_cast<double>(original) * t / (2 * kPi);  // original length / wavelength
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    t = (1 - kept) * t / factor + kept * t;
  }
  return RopeScaling{{std::move(theta), 1}, extended(original, factor, base), {}};
}

// The length that frequencies are made for.
Result<int64_t> read_length(const Arguments& arguments, const RopeBase& base) {
  if (arguments.has("length")) return arguments.integer("length", 1, kMaxTrainLen);
  if (base.expected_tokens > 0) return std::min(base.expected_tokens, kMaxTrainLen);
  return arguments.refuse("",
                          "its frequencies depend on the length of the text: give length=, or set expected_tokens "
                          "of the session");
}

Result<RopeScaling> make_dynamic_ntk(const Arguments& arguments, const RopeBase& base, CanonicalTerm& canonical) {
  QUIRE_ASSIGN(const double factor, read_factor(arguments));
  QUIRE_ASSIGN(const int64_t original, read_original(arguments, base));
  QUIRE_ASSIGN(int64_t length, read_length(arguments, base));
  length = std::max(length, original);
  canonical.add_real("factor", factor).add_integer("length", length).add_integer("original", original);
  const double d = base.rotary_dim;
  if (base.rotary_dim < 4)
    return arguments.refuse("", "heads with " + number_text(d) + " dimensions that turn; expected at least 4");
  const double ratio = static_cast<double>(length) / static_cast<double>(original);
  const double new_base = base.theta * std::pow(factor * ratio - (factor - 1), d / (d - 2));
  return RopeScaling{{frequencies(new_base, base.rotary_dim), 1}, std::max(base.train_len, length), {}};
}

Result<RopeScaling> make_longrope(const Arguments& arguments, const RopeBase& base, CanonicalTerm& canonical) {
  constexpr double kMinAttention = 1e-6, kMaxAttention = 1e6;
  if (!base.longrope) {
    return arguments.unsupported("its factors come with a checkpoint that was trained with them; there are none here");
  }
  const LongRopeFactors& factors = *base.longrope;
  QUIRE_ASSIGN(const int64_t original, arguments.integer("original", 1, kMaxTrainLen, factors.original));
  QUIRE_ASSIGN(const int64_t length, read_length(arguments, base));
  QUIRE_ASSIGN(const double attention,
               arguments.real("attention_factor", kMinAttention, kMaxAttention, factors.attention_factor));
  canonical.add_integer("length", length).add_integer("original", original).add_real("attention_factor", attention);
  const bool is_long = length > original;
  const std::vector<double>& chosen = is_long ? factors.long_factors : factors.short_factors;
  std::vector<double> theta = frequencies(base.theta, base.rotary_dim);
  for (size_t a = 0; a < theta.size(); ++a) theta[a] /= chosen[a];
  // The long factors were found for all of train_len, the short ones for the original length.
  return RopeScaling{{std::move(theta), attention}, is_long ? base.train_len : std::min(original, base.train_len), {}};
}

Result<RopeScaling> make_freq_factors(const Arguments& arguments, const RopeBase& base, CanonicalTerm&) {
  if (base.freq_factors.empty()) return arguments.unsupported("its factors come with a GGUF file; there are none here");
  std::vector<double> theta = frequencies(base.theta, base.rotary_dim);
  for (size_t a = 0; a < theta.size(); ++a) theta[a] /= base.freq_factors[a];
  return RopeScaling{{std::move(theta), 1}, base.train_len, {}};
}

constexpr ArgumentDoc kFactorArguments[] = {
    {"factor", "how many times longer the text may be"},
};
constexpr ArgumentDoc kYarnArguments[] = {
    {"factor", "how many times longer the text may be"},
    {"original", "tokens the model was trained for before the scaling"},
    {"beta_fast", "pairs that turn more often keep their speed"},
    {"beta_slow", "pairs that turn less often are slowed by the factor"},
    {"attention_factor", "logits are multiplied by its square; default: 0.1 ln(factor) + 1", "attention_factor=1"},
    {"variant", "transformers' form, or that of the PoSE checkpoints"},
    {"truncate", "1: the two borders are rounded to whole pairs"},
};
constexpr ArgumentDoc kLlama3Arguments[] = {
    {"factor", "how many times longer the text may be"},
    {"low", "pairs that turn less often in the original length are slowed"},
    {"high", "pairs that turn more often keep their speed"},
    {"original", "tokens the model was trained for before the scaling"},
};
constexpr ArgumentDoc kDynamicNtkArguments[] = {
    {"factor", "how many times longer the text may be"},
    {"length", "tokens of the text; default: the session's expected_tokens", "length=1"},
    {"original", "tokens the model was trained for before the scaling"},
};
constexpr ArgumentDoc kLongRopeArguments[] = {
    {"length", "tokens of the text; default: the session's expected_tokens", "length=1"},
    {"original", "tokens the model was trained for before the scaling"},
    {"attention_factor", "logits are multiplied by its square; default: the checkpoint's", "attention_factor=1"},
};

struct ScalingMethod {
  std::string_view name;
  std::string_view text;
  ArgumentDocs arguments;
  Result<RopeScaling> (*make)(const Arguments&, const RopeBase&, CanonicalTerm&);
  bool needs_length = false;
};

constexpr ScalingMethod kScalingMethods[] = {
    {.name = "none",
     .text = "the model's plain RoPE, whatever the checkpoint says",
     .arguments = {},
     .make = make_none},
    {.name = "pi", .text = "position interpolation", .arguments = kFactorArguments, .make = make_pi},
    {.name = "ntk", .text = "NTK-aware base", .arguments = kFactorArguments, .make = make_ntk},
    {.name = "yarn",
     .text = "YaRN: fast pairs keep their speed, slow ones are slowed",
     .arguments = kYarnArguments,
     .make = make_yarn},
    {.name = "llama3", .text = "the scaling of Llama 3.1", .arguments = kLlama3Arguments, .make = make_llama3},
    {.name = "dynamic_ntk",
     .text = "NTK-aware base for a text of known length",
     .arguments = kDynamicNtkArguments,
     .make = make_dynamic_ntk,
     .needs_length = true},
    {.name = "longrope",
     .text = "LongRoPE with the checkpoint's own lists of factors",
     .arguments = kLongRopeArguments,
     .make = make_longrope,
     .needs_length = true},
    {.name = "freq_factors",
     .text = "frequencies divided by the checkpoint's own list (rope_freqs of a GGUF file)",
     .arguments = {},
     .make = make_freq_factors}};

}  // namespace

std::vector<std::string_view> rope_scaling_names() {
  std::vector<std::string_view> names;
  for (const ScalingMethod& method : kScalingMethods) names.push_back(method.name);
  return names;
}

std::vector<TermDoc> rope_scaling_docs() {
  std::vector<TermDoc> docs;
  for (const ScalingMethod& method : kScalingMethods) docs.push_back({method.name, method.text, method.arguments});
  return docs;
}

bool needs_length(std::string_view scaling) {
  return std::any_of(std::begin(kScalingMethods), std::end(kScalingMethods),
                     [&](const ScalingMethod& method) { return method.name == scaling && method.needs_length; });
}

Result<RopeScaling> make_rope_scaling(const Term& term, const RopeBase& base, ArgumentLog* log) {
  for (const ScalingMethod& method : kScalingMethods) {
    if (method.name != term.name) continue;
    const Arguments arguments(term, log);
    QUIRE_TRY(arguments.check_names(names_of(method.arguments)));
    CanonicalTerm canonical(term.name);
    QUIRE_ASSIGN(RopeScaling scaling, method.make(arguments, base, canonical));
    scaling.canonical = canonical.text();
    return scaling;
  }
  return expression_error(term.at, in_quotes(term.name) + " is no RoPE scaling");
}

}  // namespace quire
