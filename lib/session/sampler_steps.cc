// The links of a sampling chain.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "lib/session/sampler.h"

namespace quire {
namespace {

using Item = Candidates::Item;

bool more_probable(const Item& a, const Item& b) { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

void keep_most_probable(int64_t n, Candidates& c) {
  if (n <= 0 || static_cast<size_t>(n) >= c.items.size()) return;
  std::nth_element(c.items.begin(), c.items.begin() + n, c.items.end(), more_probable);
  c.items.resize(static_cast<size_t>(n));
}

// Keeps items from the front until their probabilities reach `enough`.
void keep_front(const std::vector<double>& p, double enough, Candidates& c) {
  double sum = 0;
  size_t keep = 0;
  while (keep < p.size() && sum < enough) sum += p[keep++];
  c.items.resize(std::max<size_t>(keep, 1));
}

void keep_probable_mass(double mass, Candidates& c) {
  if (mass >= 1) return;
  c.sort();
  keep_front(c.probabilities(), mass, c);
}

void keep_near_most_probable(double share, Candidates& c) {
  double most = c.items[0].logit;
  for (const Item& item : c.items) most = std::max(most, item.logit);
  const double least = most + std::log(share);
  std::erase_if(c.items, [&](const Item& item) { return item.logit < least; });
}

// Typical: whose information content, -log p, is near the distribution's entropy.
void keep_typical_mass(double mass, Candidates& c) {
  if (mass >= 1) return;
  c.sort();  // so that equally typical ones come in the order of their probability
  const std::vector<double> p = c.probabilities();
  double entropy = 0;
  for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
  std::vector<size_t> order;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) order.push_back(i);
  }
  const auto strangeness = [&](size_t i) { return std::fabs(-std::log(p[i]) - entropy); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strangeness(a) < strangeness(b); });
  std::vector<Item> items;
  std::vector<double> sorted;
  for (const size_t i : order) {
    items.push_back(c.items[i]);
    sorted.push_back(p[i]);
  }
  c.items = std::move(items);
  keep_front(sorted, mass, c);
}

std::span<const int32_t> last(std::span<const int32_t> history, int64_t n) {
  const auto most = static_cast<int64_t>(history.size());
  return n == 0 || n >= most ? history : history.last(static_cast<size_t>(n));
}

void penalise_seen(const SamplerStep& step, std::span<const int32_t> history, Candidates& c) {
  std::unordered_map<int32_t, int64_t> seen;
  for (const int32_t token : last(history, step.n)) ++seen[token];
  for (Item& item : c.items) {
    const auto found = seen.find(item.token);
    if (found == seen.end()) continue;
    item.logit = item.logit > 0 ? item.logit / step.value : item.logit * step.value;
    item.logit -= step.frequency * static_cast<double>(found->second) + step.presence;
  }
}

// match[k]: how many tokens before position k, counted back from the end of the text, equal those at the very end (the
// Z function of the reversed text).
std::vector<size_t> matches_of_the_end(std::span<const int32_t> history) {
  const size_t n = history.size();
  const auto at = [&](size_t k) { return history[n - 1 - k]; };
  std::vector<size_t> match(n, 0);
  for (size_t k = 1, left = 0, right = 0; k < n; ++k) {
    if (k < right) match[k] = std::min(right - k, match[k - left]);
    while (k + match[k] < n && at(match[k]) == at(k + match[k])) ++match[k];
    if (k + match[k] > right) left = k, right = k + match[k];
  }
  return match;
}

void penalise_repetition(const SamplerStep& step, std::span<const int32_t> history, const std::vector<bool>& breakers,
                         Candidates& c) {
  const auto text = last(history, step.n);
  size_t most = 0;  // a repetition begins after the last breaker
  while (most < text.size()) {
    const auto token = static_cast<size_t>(text[text.size() - 1 - most]);
    if (token < breakers.size() && breakers[token]) break;
    ++most;
  }
  const auto match = matches_of_the_end(text);
  std::unordered_map<int32_t, size_t> longest;  // by the token that would continue the repetition
  for (size_t k = 1; k < text.size(); ++k) {
    const size_t length = std::min(match[k], most);
    if (static_cast<int64_t>(length) < step.allowed_length || length == 0) continue;
    size_t& known = longest[text[text.size() - k]];
    known = std::max(known, length);
  }
  for (Item& item : c.items) {
    const auto found = longest.find(item.token);
    if (found == longest.end()) continue;
    const auto beyond = static_cast<double>(static_cast<int64_t>(found->second) - step.allowed_length);
    item.logit -= step.value * std::pow(step.base, beyond);
  }
}

}  // namespace

void Candidates::sort() { std::sort(items.begin(), items.end(), more_probable); }

std::vector<double> Candidates::probabilities() const {
  double most = items[0].logit, sum = 0;
  for (const Item& item : items) most = std::max(most, item.logit);
  std::vector<double> p;
  for (const Item& item : items) sum += p.emplace_back(std::exp(item.logit - most));
  for (double& x : p) x /= sum;
  return p;
}

void apply(const SamplerStep& step, std::span<const int32_t> history, const std::vector<bool>& dry_breakers,
           Candidates& candidates) {
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
      return penalise_seen(step, history, candidates);
    case Kind::kDry:
      return penalise_repetition(step, history, dry_breakers, candidates);
  }
}

}  // namespace quire
