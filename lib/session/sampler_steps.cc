// The links of a sampling chain.
#include <algorithm>
#include <cmath>

#include "lib/session/repetitions.h"
#include "lib/session/sampler.h"

namespace quire {
namespace {

using Item = Candidates::Item;

void keep_most_probable(int64_t n, Candidates& c) {
  if (static_cast<size_t>(n) >= c.items.size()) return;
  std::nth_element(c.items.begin(), c.items.begin() + n, c.items.end(), more_probable);
  c.items.resize(static_cast<size_t>(n));
  std::sort(c.items.begin(), c.items.end(), more_probable);  // what nth_element leaves depends on the library
}

// Orders items by `before` and keeps them from the front until their weights reach `enough`; at least one. Sorts parts
// that grow: as a rule few of a vocabulary are kept.
template <typename T, typename Before, typename Weight>
void keep_front(std::vector<T>& items, double enough, const Before& before, const Weight& weight) {
  double sum = 0;
  size_t keep = 0;
  for (size_t part = 64; keep < items.size() && sum < enough; part *= 4) {
    const auto begin = items.begin() + static_cast<int64_t>(keep);
    const size_t n = std::min(part, items.size() - keep);
    const auto end = begin + static_cast<int64_t>(n);
    if (end != items.end()) std::nth_element(begin, end, items.end(), before);
    std::sort(begin, end, before);
    for (const size_t stop = keep + n; keep < stop && sum < enough; ++keep) sum += weight(items[keep]);
  }
  items.resize(std::max<size_t>(keep, 1));
}

// logit - most, but 0 and not NaN where both are infinite.
double below(double logit, double most) { return logit == most ? 0 : logit - most; }

void keep_probable_mass(double mass, Candidates& c) {
  if (mass >= 1) return;
  const double most = c.best().logit;
  const auto weight = [&](const Item& item) { return std::exp(below(item.logit, most)); };
  double all = 0;
  for (const Item& item : c.items) all += weight(item);
  keep_front(c.items, mass * all, more_probable, weight);
}

void keep_near_most_probable(double share, Candidates& c) {
  const double least = c.best().logit + std::log(share);
  std::erase_if(c.items, [&](const Item& item) { return item.logit < least; });
}

// Typical: whose information content, -log p, is near the distribution's entropy.
void keep_typical_mass(double mass, Candidates& c) {
  if (mass >= 1) return;
  struct Rated {
    Item item;
    double p, strangeness;
  };
  const double most = c.best().logit;
  double all = 0, entropy = 0;
  for (const Item& item : c.items) all += std::exp(below(item.logit, most));
  std::vector<Rated> rated;
  for (const Item& item : c.items) {
    const double information = std::log(all) - below(item.logit, most);
    const double p = std::exp(-information);
    if (p > 0) entropy += p * information;
    rated.push_back({item, p, information});
  }
  for (Rated& r : rated) r.strangeness = std::fabs(r.strangeness - entropy);
  const auto more_typical = [](const Rated& a, const Rated& b) {
    return a.strangeness != b.strangeness ? a.strangeness < b.strangeness : more_probable(a.item, b.item);
  };
  keep_front(rated, mass, more_typical, [](const Rated& r) { return r.p; });
  c.items.clear();
  for (const Rated& r : rated) c.items.push_back(r.item);
}

}  // namespace

void penalise_seen(const SamplerStep& step, const TokenCounts& seen, Candidates& c) {
  for (Item& item : c.items) {
    const int64_t n = seen.of(item.token);
    if (n == 0) continue;
    item.logit = item.logit > 0 ? item.logit / step.value : item.logit * step.value;
    item.logit -= step.frequency * static_cast<double>(n) + step.presence;
  }
}

std::span<const int32_t> last_tokens(std::span<const int32_t> history, int64_t n) {
  const auto most = static_cast<int64_t>(history.size());
  return n == 0 || n >= most ? history : history.last(static_cast<size_t>(n));
}

const Item& Candidates::best() const { return *std::min_element(items.begin(), items.end(), more_probable); }

std::vector<double> Candidates::probabilities() const {
  const double most = best().logit;
  double sum = 0;
  std::vector<double> p;
  p.reserve(items.size());
  for (const Item& item : items) sum += p.emplace_back(std::exp(below(item.logit, most)));
  for (double& x : p) x /= sum;
  return p;
}

void apply(const SamplerStep& step, std::span<const int32_t> history, const std::vector<bool>& dry_breakers,
           TokenCounts& counts, Candidates& candidates) {
  using Kind = SamplerStep::Kind;
  switch (step.kind) {
    case Kind::kTemperature:
      for (Item& item : candidates.items) item.logit /= step.value;
      return;
    case Kind::kTopK:
      return keep_most_probable(step.n, candidates);
    case Kind::kTopP:
      return keep_probable_mass(step.value, candidates);
    case Kind::kMinP:
      return keep_near_most_probable(step.value, candidates);
    case Kind::kTypical:
      return keep_typical_mass(step.value, candidates);
    case Kind::kPenalties:
      counts.follow(history, step.n);
      return penalise_seen(step, counts, candidates);
    case Kind::kDry:
      return penalise_repetition(step, find_repetitions(step, history, dry_breakers), candidates);
  }
}

}  // namespace quire
