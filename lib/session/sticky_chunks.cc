#include "lib/session/sticky_chunks.h"

#include <algorithm>
#include <string>

#include "lib/backend/operations.h"

namespace quire {

KeyRange sticky_keys(const ChunkSelection& s, int64_t token) {
  return {s.chunk, std::max(s.chunk, (token / s.chunk + 1 - s.n_last) * s.chunk)};
}

std::vector<int32_t> sticky_chunks(const ChunkSelection& s, int64_t token, std::span<const float> peaks) {
  struct Peak {
    float share;
    int32_t chunk;
  };
  constexpr int64_t kCell = AttentionShares::kCell;
  const KeyRange keys = sticky_keys(s, token);
  std::vector<Peak> ranked;
  for (int64_t key = keys.begin; key < keys.end; key += s.chunk) {
    const auto cells = peaks.subspan(static_cast<size_t>(key / kCell), static_cast<size_t>(s.chunk / kCell));
    const float share = *std::ranges::max_element(cells);
    if (share > 0) ranked.push_back({share, static_cast<int32_t>(key / s.chunk)});
  }
  const auto n = std::min(ranked.size(), static_cast<size_t>(s.n_sticky));
  std::ranges::partial_sort(ranked, ranked.begin() + static_cast<std::ptrdiff_t>(n), [](const Peak& a, const Peak& b) {
    return a.share > b.share || (a.share == b.share && a.chunk < b.chunk);
  });
  std::vector<int32_t> chunks;
  for (size_t i = 0; i < n; ++i) chunks.push_back(ranked[i].chunk);
  std::ranges::sort(chunks);
  for (int64_t c = keys.end / s.chunk; c <= token / s.chunk; ++c) chunks.push_back(static_cast<int32_t>(c));
  return chunks;
}

Result<StickyChunks> StickyChunks::make(std::vector<Entry> entries, int64_t chunk, int64_t n_tokens) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    const bool ascends =
        i == 0 || entries[i - 1].token < e.token || (entries[i - 1].token == e.token && entries[i - 1].chunk < e.chunk);
    if (chunk > 0 && ascends && e.token >= 0 && e.token < n_tokens && e.chunk >= 0 && e.chunk <= e.token / chunk)
      continue;
    return Status(Code::kBadFile, "sticky chunks: entry " + std::to_string(i) + " is chunk " + std::to_string(e.chunk) +
                                      " of token " + std::to_string(e.token) + "; expected ascending ones of " +
                                      std::to_string(n_tokens) + " tokens in chunks of " + std::to_string(chunk));
  }
  StickyChunks made;
  made.entries_ = std::move(entries);
  return made;
}

void StickyChunks::add(int64_t token, std::span<const int32_t> chunks) {
  cut(token);
  for (const int32_t chunk : chunks) entries_.push_back({token, chunk});
}

void StickyChunks::cut(int64_t n_tokens) {
  while (last_token() >= n_tokens) entries_.pop_back();
}

std::vector<int32_t> StickyChunks::before(int64_t token) const {
  const auto less = [](const Entry& e, int64_t t) { return e.token < t; };
  const auto end = std::lower_bound(entries_.begin(), entries_.end(), token, less);
  if (end == entries_.begin()) return {};
  std::vector<int32_t> chunks;
  for (auto e = std::lower_bound(entries_.begin(), end, std::prev(end)->token, less); e < end; ++e) {
    chunks.push_back(static_cast<int32_t>(e->chunk));
  }
  return chunks;
}

}  // namespace quire
