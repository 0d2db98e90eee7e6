#include "lib/kv/prefix_table.h"

#include <algorithm>
#include <utility>

#include "lib/support/content_hash.h"
#include "lib/support/make_room.h"

namespace quire {
namespace {

std::vector<PrefixHolder>::iterator find_holder(std::vector<PrefixHolder>& holders, const PrefixChain* chain) {
  return std::ranges::find(holders, chain, &PrefixHolder::chain);
}

}  // namespace

PrefixHash PrefixTable::next_hash(const PrefixHash& before, std::span<const int32_t> ids) {
  std::vector<std::byte> bytes(before.begin(), before.end());
  const auto of_ids = std::as_bytes(ids);
  bytes.insert(bytes.end(), of_ids.begin(), of_ids.end());
  return content_checksum(bytes);
}

int64_t PrefixTable::size() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(all_.size());
}

Prefix* PrefixTable::find(const Prefix* before, const PrefixHash& hash, std::span<const int32_t> ids) {
  const auto found = all_.find(hash);
  if (found == all_.end()) return nullptr;
  Prefix* const prefix = found->second.get();
  return prefix->before == before && std::ranges::equal(prefix->ids, ids) ? prefix : nullptr;
}

bool PrefixChain::append(std::span<const int32_t> ids) {
  if (!table_) return false;
  const PrefixHash hash = table_->next_(last_hash(), ids);
  make_room(links_, 1);
  std::unique_ptr<Prefix> made(new Prefix{last(), hash, {ids.begin(), ids.end()}});
  MutexLock lock(table_->mutex_);
  Prefix* prefix = table_->find(last(), hash, ids);
  if (!prefix) {
    const auto [at, is_new] = table_->all_.try_emplace(hash, std::move(made));
    if (!is_new) return false;
    prefix = at->second.get();
  }
  ++prefix->n_chains;
  links_.push_back({prefix, false});
  return true;
}

bool PrefixChain::enter(int64_t n, ChunkRecords& chunk, const PrefixPages& pages) {
  Link& link = links_[static_cast<size_t>(n)];
  std::vector<std::weak_ptr<Buffer>> own(pages.begin(), pages.end());
  MutexLock lock(table_->mutex_);
  std::vector<PrefixHolder>& holders = link.prefix->holders;
  if (link.holds) {
    std::swap(find_holder(holders, this)->pages, own);
    return true;
  }
  if (link.prefix->chunk && link.prefix->chunk != &chunk) return false;
  holders.push_back({this, std::move(own)});
  link.prefix->chunk = &chunk;
  link.holds = true;
  return true;
}

// The text with these chunks behind it; null: no store has it.
const Prefix* PrefixChain::find(std::span<const std::vector<int32_t>> following) const {
  const Prefix* prefix = last();
  PrefixHash hash = last_hash();
  for (const auto& ids : following) {
    hash = table_->next_(hash, ids);
    prefix = table_->find(prefix, hash, ids);
    if (!prefix) return nullptr;
  }
  return prefix;
}

bool PrefixChain::knows(std::span<const std::vector<int32_t>> following) const {
  if (!table_) return false;
  MutexLock lock(table_->mutex_);
  const Prefix* const prefix = find(following);
  return prefix && prefix->chunk;
}

bool PrefixChain::knows_text(std::span<const std::vector<int32_t>> following) const {
  if (!table_) return false;
  MutexLock lock(table_->mutex_);
  return find(following) != nullptr;
}

PrefixChain::Take PrefixChain::take(std::span<const int32_t> ids, size_t n_pages, Residency& residency,
                                    RecordUser& user, const std::function<bool(const ChunkRecords&)>& accept,
                                    ChunkRecords** chunk, PrefixPages* pages) {
  if (!table_) return Take::kUnknown;
  const PrefixHash hash = table_->next_(last_hash(), ids);
  make_room(links_, 1);
  PrefixPages found;  // goes after the lock: it may be the last to have them
  MutexLock lock(table_->mutex_);
  Prefix* const prefix = table_->find(last(), hash, ids);
  if (!prefix || !prefix->chunk) return Take::kUnknown;
  const auto has_pages = [&](const PrefixHolder& holder) {
    if (holder.pages.size() != n_pages) return false;
    const size_t before = found.size();
    for (const auto& page : holder.pages) found.push_back(page.lock());
    pages->assign(found.begin() + static_cast<int64_t>(before), found.end());
    return std::ranges::find(*pages, nullptr) == pages->end();
  };
  if (std::ranges::none_of(prefix->holders, has_pages)) return Take::kUnknown;
  if (!accept(*prefix->chunk)) return Take::kRefused;
  make_room(prefix->holders, 1);
  *chunk = prefix->chunk;
  residency.share({chunk, 1}, user);
  ++prefix->n_chains;
  prefix->holders.push_back({this});
  links_.push_back({prefix, true});
  return Take::kTaken;
}

bool PrefixChain::join(int64_t n, Residency& residency, RecordUser& user,
                       const std::function<bool(const ChunkRecords&)>& accept, ChunkRecords** chunk) {
  if (n >= size() || holds(n)) return false;
  Link& link = links_[static_cast<size_t>(n)];
  MutexLock lock(table_->mutex_);
  if (!link.prefix->chunk || !accept(*link.prefix->chunk)) return false;
  make_room(link.prefix->holders, 1);
  *chunk = link.prefix->chunk;
  residency.share({chunk, 1}, user);
  link.prefix->holders.push_back({this});
  link.holds = true;
  return true;
}

bool PrefixChain::leave(int64_t n) {
  if (!holds(n)) return false;
  Link& link = links_[static_cast<size_t>(n)];
  MutexLock lock(table_->mutex_);
  std::vector<PrefixHolder>& holders = link.prefix->holders;
  link.holds = false;
  holders.erase(find_holder(holders, this));
  if (!holders.empty()) return true;
  link.prefix->chunk = nullptr;
  return false;
}

bool PrefixChain::cut(int64_t n) {
  bool held = false;
  while (size() > n) {
    held = leave(size() - 1) || held;
    std::unique_ptr<Prefix> released;
    MutexLock lock(table_->mutex_);
    Prefix* const prefix = links_.back().prefix;
    links_.pop_back();
    if (--prefix->n_chains > 0) continue;
    const auto at = table_->all_.find(prefix->hash);
    released = std::move(at->second);
    table_->all_.erase(at);
  }
  return held;
}

void PrefixChain::copy(const PrefixChain& other) {
  if (!table_) return;
  std::vector<Link> links = other.links_;
  std::vector<PrefixHolder> own;
  MutexLock lock(table_->mutex_);
  for (const Link& link : links) {
    if (!link.holds) continue;
    own.push_back({this, find_holder(link.prefix->holders, &other)->pages});
    make_room(link.prefix->holders, 1);
  }
  // Nothing fails from here on.
  auto next = own.begin();
  for (const Link& link : links) {
    ++link.prefix->n_chains;
    if (link.holds) link.prefix->holders.push_back(std::move(*next++));
  }
  links_ = std::move(links);
}

}  // namespace quire
