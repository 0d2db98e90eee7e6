#include <cmath>
#include <cstring>
#include <limits>

#include "lib/abi/boundary.h"
#include "lib/abi/options.h"

namespace quire::abi {
namespace {

using Kind = SamplerStep::Kind;

// temperature, top_k, top_p and min_p as a chain.
Status read_simple(const quire_stream_options& o, SamplingOptions* out) {
  if (!std::isfinite(o.temperature) || o.temperature < 0) return invalid("temperature must be 0 or a positive number");
  QUIRE_TRY(check_range("top_k", o.top_k, 0, std::numeric_limits<int32_t>::max()));
  if (!(o.top_p >= 0 && o.top_p <= 1)) return invalid("top_p must lie between 0 and 1");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return invalid("min_p must lie between 0 and 1");
  out->greedy = o.temperature == 0;
  if (out->greedy) return {};
  const auto add = [&](Kind kind, int64_t n, double value) {
    SamplerStep step;
    step.kind = kind;
    step.n = n;
    step.value = value;
    out->steps.push_back(step);
  };
  add(Kind::kTemperature, 0, o.temperature);
  if (o.top_k > 0) add(Kind::kTopK, o.top_k, 0);
  if (o.top_p > 0 && o.top_p < 1) add(Kind::kTopP, 0, o.top_p);
  if (o.min_p > 0) add(Kind::kMinP, 0, o.min_p);
  return {};
}

// What a kind uses of quire_sampler, and its ranges.
struct Shape {
  Kind kind;
  bool n = false, m = false, a = false, b = false, c = false;
};
constexpr Shape kShapes[] = {{.kind = Kind::kTemperature, .a = true},
                             {.kind = Kind::kTopK, .n = true},
                             {.kind = Kind::kTopP, .a = true},
                             {.kind = Kind::kMinP, .a = true},
                             {.kind = Kind::kTypical, .a = true},
                             {.kind = Kind::kPenalties, .n = true, .a = true, .b = true, .c = true},
                             {.kind = Kind::kDry, .n = true, .m = true, .a = true, .b = true}};

Status read_sampler(const quire_sampler& s, const std::string& name, SamplerStep* out) {
  const Shape* shape = nullptr;
  for (const Shape& known : kShapes) {
    if (static_cast<int32_t>(known.kind) == s.kind) shape = &known;
  }
  if (!shape) return invalid(name + ".kind is " + std::to_string(s.kind) + ", which is no QUIRE_SAMPLER_*");
  const auto unused = [&](bool used, double value, const char* field) {
    if (used || value == 0) return Status();
    return invalid(name + "." + field + " is " + std::to_string(value) +
                   "; expected 0, since it means nothing for kind " + std::to_string(s.kind));
  };
  QUIRE_TRY(unused(shape->n, s.n, "n"));
  QUIRE_TRY(unused(shape->m, s.m, "m"));
  QUIRE_TRY(unused(shape->a, s.a, "a"));
  QUIRE_TRY(unused(shape->b, s.b, "b"));
  QUIRE_TRY(unused(shape->c, s.c, "c"));
  const auto number = [&](double value, double least, double most, const char* field) {
    if (std::isfinite(value) && value >= least && value <= most) return Status();
    return invalid(name + "." + field + " is " + std::to_string(value) + "; expected " + std::to_string(least) +
                   " to " + std::to_string(most));
  };
  const auto positive = [&](double value, double most, const char* field) {
    if (value > 0 && value <= most) return Status();
    return invalid(name + "." + field + " is " + std::to_string(value) + "; expected more than 0 and at most " +
                   std::to_string(most));
  };
  constexpr double kLarge = 1e6;
  const bool mass = s.kind == QUIRE_SAMPLER_TOP_P || s.kind == QUIRE_SAMPLER_MIN_P || s.kind == QUIRE_SAMPLER_TYPICAL;
  if (shape->a) QUIRE_TRY(positive(s.a, mass ? 1 : kLarge, "a"));
  if (s.kind == QUIRE_SAMPLER_PENALTIES) {
    QUIRE_TRY(number(s.b, -kLarge, kLarge, "b"));
    QUIRE_TRY(number(s.c, -kLarge, kLarge, "c"));
  }
  if (s.kind == QUIRE_SAMPLER_DRY) {
    QUIRE_TRY(number(s.b, 1, kLarge, "b"));
    QUIRE_TRY(number(s.m, 1, kLarge, "m"));
  }
  if (shape->n) {
    QUIRE_TRY(number(s.n, s.kind == QUIRE_SAMPLER_TOP_K ? 1 : 0, std::numeric_limits<int32_t>::max(), "n"));
  }
  out->kind = shape->kind;
  out->n = s.n;
  out->allowed_length = s.m;
  out->value = s.a;
  out->frequency = out->base = s.b;
  out->presence = s.c;
  return {};
}

Status read_chain(const quire_stream_options& o, SamplingOptions* out) {
  if (o.temperature != 0 || o.top_k != 0 || o.top_p != 0 || o.min_p != 0) {
    return invalid("temperature, top_k, top_p and min_p must be 0 where samplers are given");
  }
  if (o.n_samplers > 64) return invalid("n_samplers is " + std::to_string(o.n_samplers) + "; at most 64");
  const size_t stride = o.sampler_stride == 0 ? sizeof(quire_sampler) : o.sampler_stride;
  if (stride < sizeof(quire_sampler) || stride % alignof(quire_sampler) != 0 || stride > kMostStructBytes) {
    return invalid("sampler_stride is " + std::to_string(stride) + "; expected 0, or a multiple of " +
                   std::to_string(alignof(quire_sampler)) + " from sizeof(quire_sampler), " +
                   std::to_string(sizeof(quire_sampler)) + ", to " + std::to_string(kMostStructBytes));
  }
  const auto* at = reinterpret_cast<const unsigned char*>(o.samplers);
  for (size_t i = 0; i < o.n_samplers; ++i, at += stride) {
    const std::string name = "samplers[" + std::to_string(i) + "]";
    for (size_t byte = sizeof(quire_sampler); byte < stride; ++byte) {
      if (at[byte] != 0) return invalid(name + " has a field at byte " + std::to_string(byte) + " that is not known");
    }
    quire_sampler sampler;
    std::memcpy(&sampler, at, sizeof sampler);
    SamplerStep step;
    QUIRE_TRY(read_sampler(sampler, name, &step));
    out->steps.push_back(step);
  }
  out->greedy = false;
  return {};
}

}  // namespace

Status read_sampling(const quire_stream_options& o, SamplingOptions* out) {
  if (!o.samplers && (o.n_samplers > 0 || o.sampler_stride > 0)) {
    return invalid("samplers is NULL but n_samplers or sampler_stride is not 0");
  }
  QUIRE_TRY(o.n_samplers > 0 ? read_chain(o, out) : read_simple(o, out));
  out->seed = o.seed;
  if (!o.logit_bias && o.n_logit_bias > 0) return invalid("logit_bias is NULL but n_logit_bias is not 0");
  if (o.n_logit_bias > 4096) return invalid("n_logit_bias is " + std::to_string(o.n_logit_bias) + "; at most 4096");
  for (size_t i = 0; i < o.n_logit_bias; ++i) {
    const quire_logit_bias& bias = o.logit_bias[i];
    if (std::isnan(bias.bias) || bias.bias == std::numeric_limits<float>::infinity()) {
      return invalid("logit_bias[" + std::to_string(i) + "].bias must be a number or -INFINITY");
    }
    out->logit_bias.emplace_back(bias.token, bias.bias);
  }
  QUIRE_TRY(check_range("n_top_logprobs", o.n_top_logprobs, 0, 64));
  out->n_top = o.n_top_logprobs;
  return {};
}

}  // namespace quire::abi
