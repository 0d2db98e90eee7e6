#include "lib/kv/prefix_table.h"

#include <algorithm>
#include <utility>

#include "lib/support/content_hash.h"
#include "lib/support/make_room.h"

namespace quire {

PrefixHash PrefixTable::next(const PrefixHash& before, std::span<const int32_t> ids) {
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
  const PrefixHash hash = PrefixTable::next(last_hash(), ids);
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

bool PrefixChain::enter(int64_t n, ChunkRecords& chunk, PrefixPages pages) {
  Link& link = links_[static_cast<size_t>(n)];
  MutexLock lock(table_->mutex_);
  if (link.holds) return true;
  if (link.prefix->chunk && link.prefix->chunk != &chunk) return false;
  if (!link.prefix->chunk) {
    link.prefix->chunk = &chunk;
    link.prefix->pages = std::move(pages);
  }
  ++link.prefix->n_holders;
  link.holds = true;
  return true;
}

bool PrefixChain::knows(std::span<const std::vector<int32_t>> following) const {
  if (!table_) return false;
  const Prefix* prefix = last();
  PrefixHash hash = last_hash();
  MutexLock lock(table_->mutex_);
  for (const auto& ids : following) {
    hash = PrefixTable::next(hash, ids);
    prefix = table_->find(prefix, hash, ids);
    if (!prefix) return false;
  }
  return prefix && prefix->chunk;
}

PrefixChain::Take PrefixChain::take(std::span<const int32_t> ids, Residency& residency, RecordUser& user,
                                    const std::function<bool(const ChunkRecords&)>& accept, ChunkRecords** chunk,
                                    PrefixPages* pages) {
  if (!table_) return Take::kUnknown;
  const PrefixHash hash = PrefixTable::next(last_hash(), ids);
  make_room(links_, 1);
  MutexLock lock(table_->mutex_);
  Prefix* const prefix = table_->find(last(), hash, ids);
  if (!prefix || !prefix->chunk) return Take::kUnknown;
  if (!accept(*prefix->chunk)) return Take::kRefused;
  *pages = prefix->pages;
  *chunk = prefix->chunk;
  residency.share({chunk, 1}, user);
  ++prefix->n_chains;
  ++prefix->n_holders;
  links_.push_back({prefix, true});
  return Take::kTaken;
}

bool PrefixChain::leave(int64_t n) {
  if (!holds(n)) return false;
  Link& link = links_[static_cast<size_t>(n)];
  PrefixPages released;  // without the mutex
  MutexLock lock(table_->mutex_);
  link.holds = false;
  if (--link.prefix->n_holders > 0) return true;
  link.prefix->chunk = nullptr;
  std::swap(released, link.prefix->pages);
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
  table_ = other.table_;
  if (!table_) return;
  std::vector<Link> links = other.links_;
  MutexLock lock(table_->mutex_);
  for (const Link& link : links) {
    ++link.prefix->n_chains;
    link.prefix->n_holders += link.holds ? 1 : 0;
  }
  links_ = std::move(links);
}

void PrefixChain::close() {
  cut(0);
  table_.reset();
}

}  // namespace quire
