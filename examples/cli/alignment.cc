#include "alignment.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "haystack.h"

namespace cli {

int64_t longest_chunk(const std::string& canonical) {
  int64_t longest = 1;
  for (const char* name : {"chunk=", "dca_chunk=", "kv_chunk=", "group=", "stride="}) {
    for (size_t at = canonical.find(name); at != std::string::npos; at = canonical.find(name, at + 1)) {
      if (at > 0 && canonical[at - 1] != '(' && canonical[at - 1] != ' ') continue;  // the end of another name
      longest =
          std::max(longest, static_cast<int64_t>(std::strtoll(&canonical[at + std::string(name).size()], nullptr, 10)));
    }
  }
  return longest;
}

int64_t shortening(int64_t length, int64_t chunk, uint64_t seed, uint64_t trial) {
  const auto range = static_cast<uint64_t>(std::max<int64_t>(1, std::min(chunk, length / 8)));
  return static_cast<int64_t>(draw(seed, trial, 3) % range);
}

std::pair<double, double> confidence(int64_t n_right, int64_t n) {
  if (n == 0) return {0, 1};
  constexpr double kZ = 1.959964;
  const auto count = static_cast<double>(n);
  const double share = static_cast<double>(n_right) / count, z2 = kZ * kZ / count;
  const double middle = (share + z2 / 2) / (1 + z2);
  const double half = kZ * std::sqrt(share * (1 - share) / count + z2 / (4 * count)) / (1 + z2);
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

void ByAlignment::add(int64_t n_tokens, int64_t n_right, int64_t n_asked) {
  const auto quarter = static_cast<size_t>(n_tokens % chunk_ * kQuarters / chunk_);
  right_[quarter] += n_right;
  asked_[quarter] += n_asked;
}

std::pair<double, double> ByAlignment::spread() const {
  double least = 1, greatest = 0;
  bool any = false;
  for (size_t q = 0; q < kQuarters; ++q) {
    if (asked_[q] == 0) continue;
    any = true;
    const double share = static_cast<double>(right_[q]) / static_cast<double>(asked_[q]);
    least = std::min(least, share);
    greatest = std::max(greatest, share);
  }
  return any ? std::pair{least, greatest} : std::pair{0.0, 0.0};
}

Json ByAlignment::to_json() const {
  Json quarters = Json::array();
  for (size_t q = 0; q < kQuarters; ++q) {
    quarters.push_back(
        {{"from", static_cast<double>(q) / kQuarters},
         {"n_asked", asked_[q]},
         {"n_right", right_[q]},
         {"accuracy",
          asked_[q] == 0 ? Json(nullptr) : Json(static_cast<double>(right_[q]) / static_cast<double>(asked_[q]))}});
  }
  const auto [least, greatest] = spread();
  return {{"chunk", chunk_}, {"least", least}, {"greatest", greatest}, {"quarters", std::move(quarters)}};
}

}  // namespace cli
