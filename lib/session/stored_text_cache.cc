#include "lib/session/stored_text_cache.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

int64_t bytes_of(const std::string& name, const StoredText& text) {
  const SnapshotOrigin& origin = text.origin;
  size_t bytes = 512 + name.size() + text.title.size() + origin.model.size() + origin.strategy.size();  // and nodes
  for (const SnapshotOrigin::Adapter& adapter : origin.adapters) bytes += sizeof adapter + adapter.identity.size();
  bytes += text.chain.links.size() * sizeof(TokenChain::Link) + text.chain.tail.size() * sizeof(int32_t);
  return static_cast<int64_t>(bytes);
}

}  // namespace

StoredTextCache::Shared StoredTextCache::find(const std::string& name, const Files& files) const {
  MutexLock lock(mutex_);
  const auto found = texts_.find(name);
  return found != texts_.end() && found->second.files == files ? found->second.text : nullptr;
}

void StoredTextCache::keep(const std::string& name, const Files& files, Shared text, int64_t looked_ns) {
  const int64_t changed_ns = std::max(files.snapshot.changed_ns, files.text.changed_ns);
  const int64_t bytes = bytes_of(name, *text);
  MutexLock lock(mutex_);
  if (const auto old = texts_.find(name); old != texts_.end()) {
    bytes_ -= old->second.bytes;
    texts_.erase(old);
  }
  if (changed_ns > looked_ns - kSettledNs || bytes > most_bytes_ - bytes_) return;
  texts_.emplace(name, Known{files, std::move(text), bytes});
  bytes_ += bytes;
}

void StoredTextCache::keep_only(std::span<const std::string_view> names) {
  MutexLock lock(mutex_);
  for (auto known = texts_.begin(); known != texts_.end();) {
    if (std::ranges::binary_search(names, std::string_view(known->first))) {
      ++known;
      continue;
    }
    bytes_ -= known->second.bytes;
    known = texts_.erase(known);
  }
}

}  // namespace quire
