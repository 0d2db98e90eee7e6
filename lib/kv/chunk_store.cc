#include "lib/kv/chunk_store.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "lib/kv/file_tier.h"
#include "lib/kv/snapshot_tier.h"

namespace quire {

ChunkStore::ChunkStore(Backend& backend, const KvGeometry& geometry, int n_layers, const ChunkStoreOptions& options,
                       std::vector<std::shared_ptr<Tier>> tiers)
    : backend_(backend),
      geometry_(geometry),
      options_(options),
      tiers_(std::move(tiers)),
      n_writable_(tiers_.size() - (options.snapshot ? 1 : 0)),
      account_("of memory", options.budget_bytes, options.runtime_memory),
      table_(n_layers),
      selection_(backend, geometry, n_layers, options.n_query_heads, options.selection, account_),
      memory_(backend, account_, static_cast<int64_t>(backend.kv_record_bytes(geometry))),
      last_read_(static_cast<size_t>(n_layers)),
      tier_records_(tiers_.size()) {}

ChunkStore::~ChunkStore() {
  if (residency_) residency_->free_slots();  // forks may have the same tiers
}

Result<std::unique_ptr<ChunkStore>> ChunkStore::create(Backend& backend, const KvGeometry& geometry, int n_layers,
                                                       const ChunkStoreOptions& options) {
  std::vector<std::shared_ptr<Tier>> tiers = options.tiers;
  if (!options.spill_directory.empty()) {
    QUIRE_ASSIGN(auto file,
                 FileTier::create(options.spill_directory, static_cast<int64_t>(backend.kv_record_bytes(geometry)),
                                  options.spill_budget_bytes, options.runtime_file));
    tiers.push_back(std::move(file));
  }
  if (options.snapshot) tiers.push_back(std::make_shared<SnapshotTier>(backend, geometry, options.snapshot));
  std::unique_ptr<ChunkStore> store(new ChunkStore(backend, geometry, n_layers, options, std::move(tiers)));
  QUIRE_TRY(store->start_transfers(options.io));
  return store;
}

Status ChunkStore::start_transfers(IoThreads* io) {
  std::unique_ptr<Transfers> transfers;
  if (spills()) {
    try {
      if (io) io->start();
    } catch (const std::system_error& e) {
      return Status(Code::kOutOfMemory, std::string("cannot start threads: ") + e.what(), -1, e.code().value());
    }
    QUIRE_ASSIGN(transfers, Transfers::create(backend_, account_, record_bytes(), io));
  }
  residency_ =
      std::make_unique<Residency>(backend_, table_, memory_, account_, tiers_, std::move(transfers), table_.n_layers());
  return {};
}

// ---- room

Status ChunkStore::reserve(int64_t first, int64_t n) {
  const int64_t end = ceil_div(first + n, geometry_.chunk);
  const std::vector<RecordId> missing = table_.extend(KvKind::kText, first / geometry_.chunk, end);
  const int64_t selection = selection_.bytes_for(first + n);
  QUIRE_TRY(check_budget(selection, end - first / geometry_.chunk + condensed_chunks(), missing.size(), first + n));
  // Records that are in the way of representations go.
  if (selection > selection_.bytes()) QUIRE_TRY(residency_->shrink_for(selection - selection_.bytes()));
  QUIRE_TRY(selection_.reserve(first, first + n));
  QUIRE_TRY(own_chunk(KvKind::kText, first));
  const Status status = make_records(missing);
  if (!status.ok()) return status.with_context("KV cache at token " + std::to_string(first));
  selection_.extend(first, n);
  return {};
}

Status ChunkStore::reserve_condensed(int64_t first, int64_t n) {
  const int64_t before = condensed_chunks();
  const std::vector<RecordId> missing =
      table_.extend(KvKind::kCondensed, first / geometry_.chunk, ceil_div(first + n, geometry_.chunk));
  // A step has all condensed entries of a layer at hand, and a record of text.
  Status status = check_budget(selection_.bytes(), condensed_chunks() + 1, missing.size(), first + n);
  if (status.ok()) status = own_chunk(KvKind::kCondensed, first);
  if (status.ok()) status = make_records(missing);
  if (status.ok()) return status;
  cut(KvKind::kCondensed, before);  // what is at hand is counted by the table's length
  return status.with_context("KV cache at condensed entry " + std::to_string(first));
}

Status ChunkStore::check_budget(int64_t fixed, int64_t in_step, size_t n_missing, int64_t n_tokens) const {
  int64_t records = in_step + 1;  // and the staging buffer
  if (!writes_to_tier()) {
    const int64_t made = spills() ? memory_.fixed_bytes() : memory_.bytes();
    records = made / record_bytes() + static_cast<int64_t>(n_missing);
    if (spills()) records += 2;  // one of the snapshot's at a time, and the staging buffer
  }
  return account_.check(fixed + records * record_bytes(), " for " + std::to_string(n_tokens) + " tokens");
}

// All or none.
Status ChunkStore::make_records(const std::vector<RecordId>& missing) {
  return writes_to_tier() ? make_in_tier(missing) : make_in_memory(missing);
}

// The layers of a chunk follow each other in `missing`.
Status ChunkStore::make_in_memory(const std::vector<RecordId>& missing) {
  const auto layers = static_cast<size_t>(table_.n_layers());
  const auto kind = spills() ? RecordMemory::PageKind::kFixed : RecordMemory::PageKind::kOpen;
  // Records that the snapshot has too are in the way.
  if (spills()) QUIRE_TRY(residency_->shrink_for(static_cast<int64_t>(missing.size()) * record_bytes()));
  for (size_t m = 0; m < missing.size(); m += layers) {
    auto page = memory_.add_page(table_.n_layers(), kind);
    if (!page.ok()) {
      for (size_t undo = 0; undo < m; ++undo) residency_->drop(missing[undo]);
      memory_.trim();
      return page.status();
    }
    for (const RecordId id : std::span(missing).subspan(m, layers)) {
      table_.hold(id);
      residency_->enter(id, memory_.take_from(*page));
    }
  }
  return {};
}

// Of the first tier that has so many.
Result<ChunkStore::Slots> ChunkStore::take_slots(int64_t n) {
  for (size_t t = 0;; ++t) {
    Result<std::vector<int64_t>> slots = tiers_[t]->take_slots(n);
    if (slots.ok()) return Slots{static_cast<int8_t>(t), std::move(*slots)};
    if (slots.status().code() != Code::kBudget || t + 1 == n_writable_) return slots.status();
  }
}

Status ChunkStore::make_in_tier(const std::vector<RecordId>& missing) {
  if (missing.empty()) return {};
  QUIRE_ASSIGN(const Slots slots, take_slots(static_cast<int64_t>(missing.size())));
  for (size_t m = 0; m < missing.size(); ++m) {
    table_.hold(missing[m]);
    table_.entry(missing[m]).tier = slots.tier;
    table_.entry(missing[m]).slot = slots.numbers[m];
    ++tier_records_[static_cast<size_t>(slots.tier)];
  }
  return {};
}

// ---- forks

Result<std::unique_ptr<ChunkStore>> ChunkStore::fork() {
  residency_->settle();
  QUIRE_TRY(residency_->save_all());
  std::vector<std::shared_ptr<Tier>> tiers = tiers_;
  if (options_.snapshot) {
    tiers.back() = std::make_shared<SnapshotTier>(backend_, geometry_, options_.snapshot);  // it reads one at a time
  }
  std::unique_ptr<ChunkStore> fork(new ChunkStore(backend_, geometry_, table_.n_layers(), options_, std::move(tiers)));
  QUIRE_TRY(fork->start_transfers(options_.io));
  fork->memory_.share(memory_, spills() ? RecordMemory::Share::kFixedPages : RecordMemory::Share::kAllPages);
  fork->selection_.share(selection_);
  fork->tier_records_ = tier_records_;
  fork->n_evicted_ = n_evicted_;
  fork->evicted_until_ = evicted_until_;
  // A store gives back the slots that its table names: it has the whole table and its share of each slot, or neither.
  RecordTable table = table_;
  fork->table_ = std::move(table);
  fork->residency_->begin_as_fork(table_);
  return fork;
}

// The records of a chunk that key `first` and others will be written to are this store's alone from here on.
Status ChunkStore::own_chunk(KvKind kind, int64_t first) {
  const int64_t chunk = first / geometry_.chunk;
  const RecordId of_first_layer = table_.id(0, kind, chunk);
  if (first % geometry_.chunk == 0 || !table_.holds(of_first_layer)) return {};
  RecordEntry& entry = table_.entry(of_first_layer);
  if (entry.slot >= 0) return entry.shared ? own_in_tier(kind, chunk) : Status();
  if (!memory_.is_shared(entry.memory.page)) return {};
  if (spills()) QUIRE_TRY(residency_->shrink_for(table_.n_layers() * record_bytes()));
  QUIRE_TRY(memory_.own(entry.memory.page));
  for (int layer = 0; layer < table_.n_layers(); ++layer) {
    const RecordId id = table_.id(layer, kind, chunk);
    table_.record(id) = memory_.record(table_.entry(id).memory);
  }
  return {};
}

// Each record comes into memory, and has another slot from then on.
Status ChunkStore::own_in_tier(KvKind kind, int64_t chunk) {
  QUIRE_ASSIGN(const auto queue, backend_.create_queue());
  for (int layer = 0; layer < table_.n_layers(); ++layer) {
    const RecordId id = table_.id(layer, kind, chunk);
    RecordEntry& entry = table_.entry(id);
    if (!entry.shared) continue;  // where an earlier call failed
    QUIRE_TRY(residency_->acquire(*queue, {&id, 1}, Access::kRead, Pins::kReplaced));
    QUIRE_ASSIGN(const Slots slots, take_slots(1));
    --tier_records_[static_cast<size_t>(entry.tier)];
    ++tier_records_[static_cast<size_t>(slots.tier)];
    residency_->move_to(id, slots.tier, slots.numbers[0]);
  }
  return {};
}

// ---- residency

int64_t ChunkStore::max_resident() const {
  if (!spills() || account_.room() == kNoLimit) return kNoLimit;
  const int64_t bytes = memory_.bytes() - memory_.fixed_bytes() + account_.room() - residency_->staging_left();
  const int64_t records = bytes / record_bytes();
  return std::max<int64_t>(1, records - condensed_chunks());
}

int64_t ChunkStore::window(int64_t n) const {
  const int64_t most = max_resident();
  return n <= most ? n : std::max<int64_t>(1, residency_->asynchronous() ? most / 2 : most);
}

std::vector<RecordId> ChunkStore::ids(int layer, KvKind kind, std::span<const int64_t> chunks) const {
  std::vector<RecordId> ids;
  ids.reserve(chunks.size());
  for (const int64_t chunk : chunks) ids.push_back(table_.id(layer, kind, chunk));
  return ids;
}

Status ChunkStore::acquire(Queue& queue, int layer, std::span<const int64_t> chunks, Access access, KvKind kind) {
  if (!spills()) return {};
  if (kind == KvKind::kText && access == Access::kRead)
    last_read_[static_cast<size_t>(layer)].assign(chunks.begin(), chunks.end());
  return residency_->acquire(queue, ids(layer, kind, chunks), access,
                             kind == KvKind::kCondensed ? Pins::kKept : Pins::kReplaced);
}

void ChunkStore::prefetch(Queue& queue, int layer, std::span<const int64_t> chunks) noexcept {
  if (!residency_->asynchronous()) return;
  try {
    residency_->prefetch(queue, ids(layer, KvKind::kText, chunks));
  } catch (const std::bad_alloc&) {  // of the list
  }
}

// ---- forgetting

int64_t ChunkStore::drop(KvKind kind, int64_t first_chunk, int64_t end_chunk) {
  const int64_t before = table_.n_held();
  for (int layer = 0; layer < table_.n_layers(); ++layer) {
    for (int64_t c = first_chunk; c < std::min(end_chunk, table_.n_chunks(kind)); ++c) {
      const RecordId id = table_.id(layer, kind, c);
      if (!table_.entry(id).held) continue;
      if (table_.entry(id).tier >= 0) --tier_records_[static_cast<size_t>(table_.entry(id).tier)];
      residency_->drop(id);
    }
  }
  memory_.trim();
  return before - table_.n_held();
}

// Forgets the chunks from n_chunks on.
void ChunkStore::cut(KvKind kind, int64_t n_chunks) {
  drop(kind, n_chunks, kNoLimit);
  table_.shorten(kind, n_chunks);
}

void ChunkStore::truncate(int64_t n_tokens, int64_t n_entries) {
  const int64_t keep = ceil_div(n_tokens, geometry_.chunk);
  cut(KvKind::kText, keep);
  cut(KvKind::kCondensed, ceil_div(n_entries, geometry_.chunk));
  selection_.truncate(n_tokens);
  evicted_until_ = std::min(evicted_until_, keep);
}

void ChunkStore::evict(int64_t begin, int64_t end) {
  const int64_t first = std::max(ceil_div(begin, geometry_.chunk), evicted_until_);
  const int64_t last = end / geometry_.chunk;
  if (first >= last) return;
  n_evicted_ += drop(KvKind::kText, first, last);
  evicted_until_ = last;
}

bool ChunkStore::can_write(RecordId id) const {
  return !table_.holds(id) || table_.entry(id).tier < static_cast<int>(n_writable_);
}

int64_t ChunkStore::exact_boundary(int64_t n_tokens) const {
  const int64_t boundary = selection_.exact_boundary(n_tokens), chunk = boundary / geometry_.chunk;
  return can_write(table_.id(0, KvKind::kText, chunk)) ? boundary : chunk * geometry_.chunk;
}

bool ChunkStore::holds(int64_t begin, int64_t end) const {
  return table_.holds(KvKind::kText, begin / geometry_.chunk, ceil_div(end, geometry_.chunk));
}

// ---- statistics

ChunkStoreStats ChunkStore::stats() const {
  ChunkStoreStats stats;
  stats.bytes = account_.used();
  stats.bytes_peak = account_.peak();
  stats.representation_bytes = selection_.representation_bytes();
  stats.n_records = table_.n_held();
  stats.n_resident = residency_->n_in();
  stats.n_evicted = n_evicted_;
  const TierStats device = residency_->device_stats();
  stats.n_hits = device.n_hits;
  stats.n_misses = device.n_misses;
  stats.n_left = device.n_evicted;
  stats.stall_ns = device.stall_ns;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    TierStats tier;
    tiers_[t]->describe(tier);
    if (t >= n_writable_) {
      stats.n_restored = residency_->tier_stats(t).bytes_read / record_bytes();
      stats.n_in_snapshot = tier_records_[t] - residency_->n_in_of(t);
      continue;
    }
    stats.file_bytes += tier.bytes;
    stats.n_read += residency_->tier_stats(t).bytes_read / record_bytes();
    stats.n_written += residency_->tier_stats(t).bytes_written / record_bytes();
  }
  return stats;
}

std::vector<TierStats> ChunkStore::tier_stats() const {
  std::vector<TierStats> all;
  all.push_back(residency_->device_stats());
  all[0].name = "device";
  all[0].limit = account_.limit();
  all[0].bytes = account_.used();
  all[0].bytes_peak = account_.peak();
  all[0].n_records = residency_->n_in();
  for (size_t t = 0; t < tiers_.size(); ++t) {
    all.push_back(residency_->tier_stats(t));
    all.back().name = tiers_[t]->name();
    tiers_[t]->describe(all.back());
    all.back().n_records = tier_records_[t];
  }
  return all;
}

}  // namespace quire
