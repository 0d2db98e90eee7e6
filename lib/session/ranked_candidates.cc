#include "lib/session/ranked_candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/session/repetitions.h"

namespace quire {
namespace {

using Item = Candidates::Item;

// By how much RankedLogits::sum may be wrong, relatively, and by how much a sum in float64 over a vocabulary.
constexpr double kRowError = 1e-6, kSumError = 1e-9;

// kPenalties: f(logit) <= logit, whatever the logit.
bool only_lowers(const SamplerStep& step) { return step.value >= 1 && step.frequency >= 0 && step.presence >= 0; }

}  // namespace

RankedCandidates::RankedCandidates(const RankedLogits& row, Candidates& known) : known_(known) {
  known_.items.clear();
  others_.n = row.width - static_cast<int64_t>(row.best.size());
  others_.upper = row.best.back().logit;
  others_.tie = row.best.back().token;
  others_.origin = row.best.front().logit;
  double mass = 0;
  for (const RankedToken& token : row.best) {
    known_.items.push_back({token.token, token.logit});
    known_tokens_.push_back(token.token);
    mass += std::exp(token.logit - others_.origin);
  }
  std::sort(known_tokens_.begin(), known_tokens_.end());
  std::sort(known_.items.begin(), known_.items.end(), [](const Item& a, const Item& b) { return a.token < b.token; });
  others_.least_mass = std::max(0.0, row.sum * (1 - kRowError) - mass);
  others_.most_mass = std::max(0.0, row.sum * (1 + kRowError) - mass);
}

bool RankedCandidates::is_known(int32_t token) const {
  return std::binary_search(known_tokens_.begin(), known_tokens_.end(), token);
}

bool RankedCandidates::precedes_others(const Item& item) const {
  return complete() || item.logit > others_.upper || (item.logit == others_.upper && item.token <= others_.tie);
}

std::optional<int32_t> RankedCandidates::best() const {
  if (known_.items.empty() || !precedes_others(known_.best())) return std::nullopt;
  return known_.best().token;
}

void RankedCandidates::drop_impossible() {
  std::erase_if(known_.items,
                [](const Item& item) { return !(item.logit > -std::numeric_limits<double>::infinity()); });
}

// ---- before the steps

void RankedCandidates::add_bias(int32_t token, double bias) {
  if (!is_known(token)) return change_other(others_.upper + bias, bias <= 0);
  for (Item& item : known_.items) {
    if (item.token == token) item.logit += bias;
  }
}

void RankedCandidates::ban_others(std::span<const uint32_t> allowed) {
  const auto may = [&](int32_t token) { return (allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0; };
  int64_t n = 0;
  for (const uint32_t word : allowed) n += std::popcount(word);
  for (const int32_t token : known_tokens_) n -= may(token) ? 1 : 0;
  others_.n = std::min(others_.n, n);
  others_.least_mass = 0;
  std::erase_if(known_.items, [&](const Item& item) { return !may(item.token); });
}

// ---- the other tokens

void RankedCandidates::change_other(double upper, bool lowers) {
  // It had at most the greatest one's share.
  others_.least_mass = std::max(0.0, others_.least_mass - std::exp(others_.upper - others_.origin));
  if (!lowers) others_.most_mass += std::exp(upper - others_.origin);
  if (lowers || upper < others_.upper) return;
  others_.upper = upper;
  others_.tie = -1;
}

// Exponentials are raised to the power of 1 / by. With a given sum of n numbers, none of which is above a greatest one,
// that of powers above 1 is greatest if some are as great as can be and the others are 0, and least if all are equal;
// of powers below 1 it is the other way round.
void RankedCandidates::divide_others(double by) {
  if (by == 1) return;
  const double power = 1 / by, n = static_cast<double>(others_.n);
  const double greatest = std::exp(others_.upper - others_.origin);
  const auto if_equal = [&](double mass) { return n * std::pow(mass / n, power); };
  const auto if_greatest = [&](double mass) { return mass * std::pow(greatest, power - 1); };
  const double least = others_.least_mass, most = others_.most_mass;
  others_.least_mass = power > 1 ? if_equal(least) : if_greatest(least);
  others_.most_mass = power > 1 ? if_greatest(most) : if_equal(most);
  others_.origin /= by;
  others_.upper /= by;
  others_.tie = -1;  // what was less may have become equal
}

// n of them change, and none is above what it was.
void RankedCandidates::lower_others(int64_t n) {
  const double share = std::exp(others_.upper - others_.origin);
  for (; n > 0 && others_.least_mass != 0; --n) others_.least_mass = std::max(0.0, others_.least_mass - share);
}

// The tokens that were counted and are not known, as if each had the greatest logit that it may have: penalties keep
// the order of logits.
void RankedCandidates::change_seen_others(const SamplerStep& step, const TokenCounts& seen) {
  if (only_lowers(step)) {
    const auto is_seen = [&](int32_t token) { return seen.of(token) > 0; };
    return lower_others(seen.n_distinct() - std::count_if(known_tokens_.begin(), known_tokens_.end(), is_seen));
  }
  Candidates others;
  for (int32_t token = 0; token < seen.end(); ++token) {
    if (seen.of(token) > 0 && !is_known(token)) others.items.push_back({token, others_.upper});
  }
  penalise_seen(step, seen, others);
  for (const Item& item : others.items) change_other(item.logit, false);
}

// ---- the steps

bool RankedCandidates::apply(const SamplerStep& step, std::span<const int32_t> history,
                             const std::vector<bool>& dry_breakers, TokenCounts& counts) {
  using Kind = SamplerStep::Kind;
  const bool bounded = std::isfinite(others_.upper) && std::isfinite(others_.origin);
  if (complete()) {
    quire::apply(step, history, dry_breakers, counts, known_);
  } else if (!bounded || known_.items.empty()) {
    return false;
  } else {
    switch (step.kind) {
      case Kind::kTopK:
        if (!keep_most_probable(step)) return false;
        break;
      case Kind::kTopP:
        if (!keep_probable_mass(step.value)) return false;
        break;
      case Kind::kMinP:
        if (!keep_near_most_probable(step)) return false;
        break;
      case Kind::kTypical:  // which asks for the entropy of all
        if (step.value < 1) return false;
        break;
      case Kind::kTemperature:
        divide_others(step.value);
        quire::apply(step, {}, {}, known_);
        break;
      case Kind::kPenalties:
        counts.follow(history, step.n);
        change_seen_others(step, counts);
        penalise_seen(step, counts, known_);
        break;
      case Kind::kDry: {
        const Repetitions repetitions = find_repetitions(step, history, dry_breakers);
        lower_others(
            std::count_if(repetitions.begin(), repetitions.end(), [&](const auto& r) { return !is_known(r.first); }));
        penalise_repetition(step, repetitions, known_);
        break;
      }
    }
  }
  drop_impossible();
  return true;
}

// With as many candidates as are to be kept, or fewer, those of the whole row might not be sorted.
bool RankedCandidates::keep_most_probable(const SamplerStep& step) {
  if (step.n >= static_cast<int64_t>(known_.items.size())) return false;
  quire::apply(step, {}, {}, known_);
  if (!precedes_others(known_.items.back())) return false;
  others_.n = 0;
  return true;
}

bool RankedCandidates::keep_probable_mass(double mass) {
  if (mass >= 1) return true;
  auto& items = known_.items;
  std::sort(items.begin(), items.end(), more_probable);
  const double most = items.front().logit;
  if (!std::isfinite(most)) return false;
  double sum = 0;
  for (const Item& item : items) sum += std::exp(item.logit - most);
  const double scale = std::exp(others_.origin - most);
  const double least_enough = mass * (sum + others_.least_mass * scale) * (1 - kSumError);
  const double most_enough = mass * (sum + others_.most_mass * scale) * (1 + kSumError);
  // The sums of the first ones are those of the whole row, bit for bit. One that could be enough or not is not decided.
  sum = 0;
  size_t keep = 0;
  do {
    if (keep == items.size() || !precedes_others(items[keep]) || !(sum < least_enough)) return false;
    sum += std::exp(items[keep++].logit - most);
  } while (!(sum >= most_enough));
  items.resize(keep);
  others_.n = 0;
  return true;
}

bool RankedCandidates::keep_near_most_probable(const SamplerStep& step) {
  const double most = known_.best().logit;
  if (!(most >= others_.upper)) return false;
  quire::apply(step, {}, {}, known_);
  if (most + std::log(step.value) > others_.upper) {
    others_.n = 0;
  } else {
    others_.least_mass = 0;
  }
  return true;
}

}  // namespace quire
