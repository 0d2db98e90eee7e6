#include "lib/kv/chunk_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/kv/compressed_tier.h"
#include "lib/kv/file_tier.h"
#include "lib/kv/host_tier.h"
#include "lib/kv/prefix_cache.h"
#include "lib/kv/snapshot_tier.h"
#include "lib/support/thread_pool.h"

namespace quire {
namespace {

// Narrow records of a text, and those of layers with a window, are not the others.
PrefixHash root_of(PrefixHash root, RecordKind kind) {
  root[0] ^= static_cast<std::byte>(kind);
  return root;
}

}  // namespace

ChunkStore::ChunkStore(Backend& backend, const KvGeometry& geometry, int n_layers, const ChunkStoreOptions& options,
                       Tiers tiers)
    : backend_(backend),
      geometry_(geometry),
      options_(options),
      tiers_(std::move(tiers)),
      record_bytes_(static_cast<int64_t>(backend.kv_record_bytes(geometry))),
      narrow_geometry_(narrow_geometry(geometry, options.old)),
      narrow_bytes_(options.old.narrows() ? static_cast<int64_t>(backend.kv_record_bytes(narrow_geometry_)) : 0),
      residency_(options.residency ? options.residency : std::make_shared<Residency>()),
      account_(backend.has_own_memory() ? "of device memory" : "of memory", options.budget_bytes, residency_->budget()),
      user_(backend, account_, tiers_.all, staging_bytes()),
      table_(n_layers, options.windowed.layers),
      selection_(backend, geometry, static_cast<int>(table_.layers(RecordKind::kText).size()), options.n_query_heads,
                 options.selection, account_),
      prefixes_(options.prefixes, options.prefix_root),
      narrow_prefixes_(options.old.narrows() ? options.prefixes : nullptr,
                       root_of(options.prefix_root, RecordKind::kNarrow)),
      windowed_prefixes_(options.windowed.any() ? options.prefixes : nullptr,
                         root_of(options.prefix_root, RecordKind::kWindow)),
      last_chosen_(static_cast<size_t>(n_layers)) {}

ChunkStore::~ChunkStore() {
  residency_->stop(user_);
  for (const RecordKind kind : kAllRecordKinds) drop(kind, 0, kNoLimit);
  drop_moves(kNoLimit);
  residency_->remove(user_);
}

// Full and narrow records have slots of their own sizes, in tiers of their own that share a budget.
Result<ChunkStore::Tiers> ChunkStore::make_tiers(Backend& backend, const KvGeometry& geometry,
                                                 const ChunkStoreOptions& options) {
  Tiers tiers;
  tiers.all = options.tiers;
  tiers.host = options.runtime_host;
  tiers.compressed = options.runtime_compressed;
  tiers.file = options.runtime_file;
  int64_t growth = FileTier::kGrowth;
  if (options.old.narrows()) {
    tiers.host = std::make_shared<TierBudget>(options.host_budget_bytes, options.runtime_host);
    tiers.compressed = std::make_shared<TierBudget>(options.compressed_budget_bytes, options.runtime_compressed);
    tiers.file = std::make_shared<TierBudget>(options.spill_budget_bytes, options.runtime_file);
    // One must not take what the other one needs.
    if (options.spill_budget_bytes > 0) growth = std::min(growth, options.spill_budget_bytes / 64);
  }
  const auto add = [&](const KvGeometry& g) -> Status {
    const auto record_bytes = static_cast<int64_t>(backend.kv_record_bytes(g));
    std::unique_ptr<Tier> lower;
    if (!options.spill_directory.empty()) {
      QUIRE_ASSIGN(lower, FileTier::create(options.spill_directory, record_bytes, options.spill_budget_bytes,
                                           tiers.file, growth));
    }
    if (options.compressed_budget_bytes > 0) {
      const CompressedTier::Options compressed{record_bytes, record_element_bytes(g.type),
                                               options.compressed_budget_bytes, tiers.compressed};
      QUIRE_ASSIGN(lower, CompressedTier::create(*options.host_memory, compressed, std::move(lower)));
    }
    if (backend.has_own_memory()) {
      const HostTier::Options host{record_bytes, options.host_budget_bytes, tiers.host};
      lower = std::make_unique<HostTier>(backend, host, std::move(lower));
    }
    if (lower) tiers.all.push_back(std::move(lower));
    return {};
  };
  QUIRE_TRY(add(geometry));
  tiers.n_full = tiers.all.size();
  if (options.old.narrows()) QUIRE_TRY(add(narrow_geometry(geometry, options.old)));
  tiers.n_narrow = tiers.all.size() - tiers.n_full;
  if (!options.snapshot) return tiers;
  tiers.all.push_back(std::make_shared<SnapshotTier>(backend, geometry, options.snapshot));
  if (options.old.narrows()) {
    tiers.all.push_back(
        std::make_shared<SnapshotTier>(backend, narrow_geometry(geometry, options.old), options.snapshot));
  }
  return tiers;
}

Result<std::unique_ptr<ChunkStore>> ChunkStore::create(Backend& backend, const KvGeometry& geometry, int n_layers,
                                                       const ChunkStoreOptions& options) {
  QUIRE_ASSIGN(Tiers tiers, make_tiers(backend, geometry, options));
  std::unique_ptr<ChunkStore> store(new ChunkStore(backend, geometry, n_layers, options, std::move(tiers)));
  if (!store->tiers_.all.empty()) QUIRE_TRY(store->let_spill());
  store->residency_->add(store->user_);
  return store;
}

Status ChunkStore::let_spill() {
  if (options_.io) QUIRE_TRY(start_threads([&] { options_.io->start(); }));
  return residency_->let_spill(user_, options_.io);
}

// ---- room

// Where the runtime's memory does not suffice, and the device has no more than was known, what is kept of released
// sessions goes, a text at a time.
template <typename Do>
Status ChunkStore::with_room(const Do& reserve) {
  for (bool looked = false;;) {
    Status status = reserve();
    const bool of_budget = status.code() == Code::kBudget && account_.room() < account_.own_room();
    if (of_budget && !std::exchange(looked, true) && residency_->look_again(user_)) continue;
    const bool of_runtime = status.code() == Code::kOutOfMemory || of_budget;
    if (!of_runtime || !options_.cache || !options_.cache->drop_oldest(*residency_)) return status;
  }
}

// Where room is lacking all the same, what no query to come sees goes.
template <typename Do>
Status ChunkStore::with_room_or_spare(const Do& reserve) {
  const Status status = with_room(reserve);
  const bool lacks_room = status.code() == Code::kBudget || status.code() == Code::kOutOfMemory;
  return lacks_room && drop_spare() ? with_room(reserve) : status;
}

// Room in memory for so many bytes more: what is kept of released sessions goes first, then records leave.
Status ChunkStore::make_room(int64_t bytes) {
  if (options_.cache) options_.cache->make_room(*residency_, bytes + Residency::staging_left(user_));
  return residency_->make_room(user_, bytes);
}

// Whether all tiers together lack room for so many bytes of records and representations more. On a device this would
// come out in the middle of a step: its host's memory has a place for a record when that leaves the device.
bool ChunkStore::lacks_room(int64_t bytes) const {
  if (!writes_to_tier() || !backend_.has_own_memory()) return false;
  int64_t held = bytes + selection_.bytes() + staging_bytes();
  held += this->held().full_bytes + this->held().narrow_bytes;
  // What is left of the session's budgets, which have no part of a record, and of the runtime's.
  int64_t own = account_.limit() > 0 ? account_.limit() - held : kNoLimit, of_all = account_.room() - bytes;
  const auto add = [](int64_t& sum, int64_t more) {
    sum = more > kNoLimit - std::max<int64_t>(0, sum) ? kNoLimit : sum + more;
  };
  const TierRows rows = rows_of(0);
  for (const TierStats& row : rows) {
    const TierBudget* const budget = budget_of(row);
    add(own, row.limit > 0 ? row.limit / record_bytes_ * record_bytes_ : kNoLimit);
    add(of_all, std::min(row.limit > 0 ? row.limit - row.bytes : kNoLimit, budget ? budget->room() : kNoLimit));
  }
  return own < 0 || of_all < 0;
}

Status ChunkStore::reserve(int64_t first, int64_t n) {
  residency_->begin_step(user_);
  if (drops()) {
    const int64_t chunks = ceil_div(first + n, geometry_.chunk) - ceil_div(first, geometry_.chunk);
    int64_t bytes = selection_.bytes_to_add(first, first + n);
    for (const RecordKind kind : kTextKinds) bytes += chunks * chunk_bytes(kind);
    if (lacks_room(bytes)) drop_spare();
  }
  return with_room_or_spare([&] { return reserve_text(first, n); });
}

Status ChunkStore::reserve_condensed(int64_t first, int64_t n) {
  const int64_t chunks = ceil_div(first + n, geometry_.chunk) - ceil_div(first, geometry_.chunk);
  if (drops() && lacks_room(chunks * chunk_bytes(RecordKind::kCondensed))) drop_spare();
  return with_room_or_spare([&] { return reserve_entries(first, n); });
}

Status ChunkStore::reserve_text(int64_t first, int64_t n) {
  const int64_t end = ceil_div(first + n, geometry_.chunk);
  const std::vector<int64_t> missing = table_.extend(RecordKind::kText, first / geometry_.chunk, end);
  std::vector<int64_t> missing_windowed;
  if (options_.windowed.any()) missing_windowed = table_.extend(RecordKind::kWindow, first / geometry_.chunk, end);
  const int64_t selection = selection_.bytes_for(first + n);
  QUIRE_TRY(widen_young(first));
  find_to_narrow(first, n);
  // Narrow records are made one at a time, when the block's own records may leave memory.
  const int64_t in_step =
      (end - first / geometry_.chunk + condensed_chunks()) * record_bytes_ + (to_narrow_.empty() ? 0 : narrow_bytes_);
  const std::pair<RecordKind, std::span<const int64_t>> made[] = {
      {RecordKind::kText, missing}, {RecordKind::kWindow, missing_windowed}, {RecordKind::kNarrow, to_narrow_}};
  int64_t added_records = 0;
  for (const auto& [kind, chunks] : made) added_records += std::ssize(chunks) * chunk_bytes(kind);
  QUIRE_TRY(check_budget(selection, in_step, added_records, first + n));
  QUIRE_TRY(reserve_selection(first, first + n));
  QUIRE_TRY(own_chunk(RecordKind::kText, first));
  QUIRE_TRY(own_chunk(RecordKind::kWindow, first));
  for (size_t m = 0; m < std::size(made); ++m) {
    const Status status = make_records(made[m].first, made[m].second);
    if (status.ok()) continue;
    for (const auto& [kind, chunks] : std::span(made).first(m)) {
      for (const int64_t chunk : chunks) drop(kind, chunk, chunk + 1);
    }
    return status.with_context("KV cache at token " + std::to_string(first));
  }
  selection_.extend(first, n);
  return {};
}

// Records that are in the way of representations go.
Status ChunkStore::reserve_selection(int64_t first, int64_t n_tokens) {
  for (;;) {
    const int64_t added = selection_.bytes_to_add(first, n_tokens);
    if (added > 0) QUIRE_TRY(make_room(added));
    const Status status = selection_.reserve(first, n_tokens);
    if (status.code() != Code::kOutOfMemory || !residency_->make_room_on_device(user_, added)) return status;
  }
}

Status ChunkStore::reserve_entries(int64_t first, int64_t n) {
  const int64_t before = condensed_chunks();
  const std::vector<int64_t> missing =
      table_.extend(RecordKind::kCondensed, first / geometry_.chunk, ceil_div(first + n, geometry_.chunk));
  // A step has all condensed entries of a layer at hand, and a record of text.
  Status status = check_budget(selection_.bytes(), (condensed_chunks() + 1) * record_bytes_,
                               std::ssize(missing) * chunk_bytes(RecordKind::kCondensed), first + n);
  if (status.ok()) status = own_chunk(RecordKind::kCondensed, first);
  if (status.ok()) status = make_records(RecordKind::kCondensed, missing);
  if (status.ok()) return status;
  cut(RecordKind::kCondensed, before);  // what is at hand is counted by the table's length
  return status.with_context("KV cache at condensed entry " + std::to_string(first));
}

Status ChunkStore::check_budget(int64_t fixed, int64_t in_step, int64_t missing, int64_t n_tokens) const {
  int64_t bytes = in_step + staging_bytes();
  if (!writes_to_tier()) {
    bytes = fixed_bytes_ + missing;
    if (spills()) bytes += 2 * staging_bytes();  // one of the snapshot's records at a time, too
  }
  if (options_.cache) {
    // Records that can leave memory are better in it.
    const int64_t wanted = spills() ? table_.held().n * record_bytes_ + missing : 0;
    const int64_t more = std::max(fixed + bytes, wanted) - account_.used();
    options_.cache->make_room(*residency_, std::clamp<int64_t>(more, 0, account_.own_room()));
  }
  return account_.check(fixed + bytes, " for " + std::to_string(n_tokens) + " tokens", residency_->reclaimable(user_));
}

Status ChunkStore::make_records(RecordKind kind, std::span<const int64_t> chunks) {
  for (size_t made = 0; made < chunks.size(); ++made) {
    auto records = new_chunk(kind);
    if (!records.ok()) {
      for (const int64_t chunk : chunks.first(made)) drop(kind, chunk, chunk + 1);
      return records.status();
    }
    hold(kind, chunks[made], std::move(*records));
  }
  return {};
}

Result<std::unique_ptr<ChunkRecords>> ChunkStore::new_chunk(RecordKind kind) {
  return writes_to_tier() ? new_chunk_in_tier(kind) : new_chunk_in_memory(kind);
}

// Records that could leave memory are in the way.
Result<std::unique_ptr<ChunkRecords>> ChunkStore::new_chunk_in_memory(RecordKind kind) {
  const int64_t record_bytes = bytes_of(kind), bytes = chunk_bytes(kind);
  QUIRE_TRY(make_room(bytes));
  auto chunk = std::make_unique<ChunkRecords>(table_.layers(kind), record_bytes);
  chunk->holders.reserve(1);
  QUIRE_ASSIGN(chunk->page, account_.allocate_shared(backend_, bytes, MemoryKind::kDevice));
  fixed_bytes_ += bytes;
  for (size_t layer = 0; layer < chunk->records.size(); ++layer) {
    chunk->records[layer].fixed = {chunk->page.get(), layer * static_cast<size_t>(record_bytes)};
  }
  return chunk;
}

// In the first tier that has room.
Result<std::unique_ptr<ChunkRecords>> ChunkStore::new_chunk_in_tier(RecordKind kind) {
  auto chunk = std::make_unique<ChunkRecords>(table_.layers(kind), bytes_of(kind));
  chunk->holders.reserve(1);
  const size_t end = kind == RecordKind::kNarrow ? tiers_.n_full + tiers_.n_narrow : tiers_.n_full;
  for (size_t t = kind == RecordKind::kNarrow ? tiers_.n_full : 0;; ++t) {
    Result<std::vector<int64_t>> slots = tiers_.all[t]->take_slots(chunk->n());
    if (!slots.ok() && slots.status().code() == Code::kBudget && drop_kept_slots(chunk->bytes())) {
      --t;  // again
      continue;
    }
    if (!slots.ok() && (slots.status().code() != Code::kBudget || t + 1 == end)) return slots.status();
    if (!slots.ok()) continue;
    chunk->tier = tiers_.all[t];
    for (size_t layer = 0; layer < chunk->records.size(); ++layer) {
      chunk->records[layer].tier = tiers_.all[t].get();
      chunk->records[layer].slot = (*slots)[layer];
    }
    return chunk;
  }
}

// Whether slots of a released session were freed, because the runtime's budget of a tier does not suffice.
bool ChunkStore::drop_kept_slots(int64_t bytes) {
  if (!options_.cache) return false;
  const auto is_full = [&](const std::shared_ptr<TierBudget>& budget) {
    return budget && budget->room() < std::max(bytes, FileTier::kGrowth);
  };
  return (is_full(options_.runtime_file) || is_full(options_.runtime_compressed)) &&
         options_.cache->drop_oldest_with_tier();
}

// The records have room for a holder.
void ChunkStore::hold(RecordKind kind, int64_t chunk, std::unique_ptr<ChunkRecords> records) {
  residency_->hold(user_, *records);
  table_.hold(kind, chunk, *records.release());
}

// Writes a record that this store alone holds, for the first time, where no step is on its way: to its slot, or, where
// the tiers have no room for it, to a device's memory.
Status ChunkStore::write_new(Queue& queue, Record& record, std::span<const std::byte> bytes) {
  const auto upload = [&](const KvRecord& place) {
    if (!place.page) return Status(Code::kInternal, "a record has no memory");
    QUIRE_TRY(backend_.upload(queue, bytes.data(), *place.page, place.offset, bytes.size()));
    return finish_queue(backend_, queue);
  };
  if (!record.tier) return upload(record.fixed);
  const Status status = record.tier->write(record.slot, bytes.data());
  if (status.ok()) record.saved = true;
  if (status.code() != Code::kBudget || !backend_.has_own_memory()) return status;
  struct Release {
    ChunkStore& store;
    Queue& queue;
    ~Release() { store.release(queue); }
  } release{*this, queue};
  Record* const one = &record;
  QUIRE_TRY(residency_->acquire(user_, queue, {&one, 1}, Access::kWrite, Pins::kReplaced));
  return upload(record.place());
}

void ChunkStore::let_go(ChunkRecords& records) {
  if (records.page) {
    const auto bytes = static_cast<int64_t>(records.page->size());
    account_.let_go_shared(bytes);
    fixed_bytes_ -= bytes;
  }
  residency_->let_go(user_, records);
}

// ---- forks

Result<std::unique_ptr<ChunkStore>> ChunkStore::fork() {
  std::unique_ptr<ChunkStore> fork(new ChunkStore(backend_, geometry_, table_.n_layers(), options_, tiers_));
  if (spills()) QUIRE_TRY(fork->let_spill());
  residency_->add(fork->user_);
  RecordTable table = table_;
  std::vector<ChunkRecords*> chunks;
  for_held([&](RecordKind, ChunkRecords& records) { chunks.push_back(&records); });
  std::vector<OldChunk> old = old_;
  std::vector<Move> moves = moves_;
  fork->selection_.share(selection_);
  fork->prefixes_.copy(prefixes_);
  fork->narrow_prefixes_.copy(narrow_prefixes_);
  fork->windowed_prefixes_.copy(windowed_prefixes_);
  residency_->share(chunks, fork->user_);
  // Nothing fails from here on.
  table.see_fixed();
  fork->table_ = std::move(table);
  fork->old_ = std::move(old);
  fork->old_held_ = old_held_;
  fork->moves_ = std::move(moves);
  fork->next_move_ = next_move_;
  fork->account_.hold_shared(fixed_bytes_);
  fork->fixed_bytes_ = fixed_bytes_;
  fork->n_evicted_ = n_evicted_;
  fork->passed_ = passed_;
  fork->next_query_ = next_query_;
  fork->full_from_ = full_from_;
  fork->narrow_until_ = narrow_until_;
  fork->complete_until_ = complete_until_;
  return fork;
}

// The records of a chunk that key `first` and others will be written to are this store's alone from here on: copies, if
// others hold them too. The chunk is in no table of prefixes: it is not complete, or was cut. So nobody joins those who
// hold it.
Status ChunkStore::own_chunk(RecordKind kind, int64_t first) {
  const int64_t chunk = first / geometry_.chunk;
  if (first % geometry_.chunk == 0 || !table_.holds(kind, chunk)) return {};
  ChunkRecords& shared = table_.chunk(kind, chunk);
  if (residency_->n_holders(shared) == 1) return {};
  QUIRE_ASSIGN(ChunkRecords* const copy, copy_of(kind, shared));
  hide();
  let_go(table_.forget(kind, chunk));
  table_.hold(kind, chunk, *copy);
  return {};
}

// A chunk of this store's own, which it holds, with what the records of another one are. It is not in the table yet.
Result<ChunkRecords*> ChunkStore::copy_of(RecordKind kind, ChunkRecords& shared) {
  std::vector<std::byte> host(static_cast<size_t>(bytes_of(kind)));
  QUIRE_ASSIGN(const auto queue, backend_.create_queue());
  struct Copy {
    ChunkStore& store;
    ChunkRecords* records = nullptr;
    ~Copy() {
      if (records) store.let_go(*records);
    }
  } copy{*this};
  QUIRE_ASSIGN(auto made, new_chunk(kind));
  residency_->hold(user_, *made);
  copy.records = made.release();
  for (size_t layer = 0; layer < shared.records.size(); ++layer) {
    QUIRE_TRY(residency_->read(user_, *queue, shared.records[layer], host));
    QUIRE_TRY(write_new(*queue, copy.records->records[layer], host));
  }
  return std::exchange(copy.records, nullptr);
}

// ---- residency

int64_t ChunkStore::max_resident() const {
  const int64_t records = spills() ? residency_->capacity(user_) : kNoLimit;
  return records == kNoLimit ? kNoLimit : std::max<int64_t>(1, records - condensed_chunks());
}

int64_t ChunkStore::window(int64_t n, Access access) const {
  const int64_t most = max_resident();
  if (access == Access::kScan && table_.held().n > most)
    return std::min(n, std::max({most / 8, std::min<int64_t>(8, most / 2), int64_t{1}}));
  return n <= most ? n : std::max<int64_t>(1, Residency::asynchronous(user_) ? most / 2 : most);
}

// What the backend sees of records that can leave is what was asked for last.
void ChunkStore::hide() {
  if (std::exchange(sees_all_, false)) table_.see_fixed();
  for (const Seen& s : seen_) table_.see(s.layer, s.kind, s.chunk, {});
  seen_.clear();
}

void ChunkStore::pin_all() {
  if (!spills()) return;
  std::vector<ChunkRecords*> fresh;  // they stand behind the others
  for (const RecordKind kind : kAllRecordKinds) {
    for (int64_t chunk = table_.n_chunks(kind) - 1; chunk >= 0 && table_.holds(kind, chunk); --chunk) {
      ChunkRecords& records = table_.chunk(kind, chunk);
      if (!residency_->is_fresh(records)) break;
      fresh.push_back(&records);
    }
  }
  uint64_t changes = 0;
  pins_all_ = residency_->pin_all(user_, fresh, &changes);
  if (pins_all_ && sees_all_ && changes == seen_changes_) return;
  hide();
  if (!pins_all_) return;
  table_.see_all();
  sees_all_ = true;
  seen_changes_ = changes;
}

// The records of chunks that are asked for. A step of several queries may need both versions of a chunk.
std::vector<std::pair<RecordKind, int64_t>> ChunkStore::wanted(int layer, std::span<const int64_t> chunks, KvKind kind,
                                                               const Versions& versions) const {
  const RecordKind records = table_.kind_in(layer, kind);
  const bool versioned = records == RecordKind::kText;
  std::vector<std::pair<RecordKind, int64_t>> all;
  all.reserve(chunks.size());
  for (const int64_t chunk : chunks) {
    const int64_t first_key = chunk * geometry_.chunk;
    if (versioned && first_key < versions.narrow_before) all.emplace_back(RecordKind::kNarrow, chunk);
    if (!versioned || first_key >= versions.full_from) all.emplace_back(records, chunk);
  }
  return all;
}

Status ChunkStore::acquire(Queue& queue, int layer, std::span<const int64_t> chunks, Access access, KvKind kind,
                           const Versions& versions) {
  if (!spills()) return {};
  if (pins_all_ && access != Access::kWrite) return {};
  if (kind == KvKind::kText && !pins_all_) hide();
  std::vector<Record*> records;
  const size_t before = seen_.size();
  for (const auto& [version, chunk] : wanted(layer, chunks, kind, versions)) {
    Record& record = table_.record(layer, version, chunk);
    if (!record.tier) continue;
    records.push_back(&record);
    if (!pins_all_) seen_.push_back({layer, version, chunk});
  }
  const Status status =
      residency_->acquire(user_, queue, records, access, kind == KvKind::kText ? Pins::kReplaced : Pins::kKept);
  if (!status.ok()) {
    hide();
    return status;
  }
  for (size_t s = before; s < seen_.size(); ++s)
    table_.see(layer, seen_[s].kind, seen_[s].chunk, records[s - before]->place());
  return {};
}

void ChunkStore::prefetch(int layer, std::span<const int64_t> chunks, Access access,
                          const Versions& versions) noexcept {
  if (!Residency::asynchronous(user_)) return;
  try {
    std::vector<Record*> records;
    for (const auto& [version, chunk] : wanted(layer, chunks, KvKind::kText, versions)) {
      if (!table_.holds(version, chunk)) continue;
      Record& record = table_.record(layer, version, chunk);
      if (record.tier) records.push_back(&record);
    }
    residency_->prefetch(user_, records, access);
  } catch (const std::bad_alloc&) {  // of the list
  }
}

void ChunkStore::release(Queue& queue) noexcept {
  if (!std::exchange(pins_all_, false)) hide();
  residency_->release(user_, queue);
}

void ChunkStore::release(std::shared_ptr<const Fence> fence) noexcept {
  if (!std::exchange(pins_all_, false)) hide();
  residency_->release(user_, std::move(fence));
}

// Of the CPU there is nothing to copy beforehand: its lower tiers take work or a disk.
void ChunkStore::computed(int64_t n_tokens, int64_t n_entries) noexcept {
  if (!spills() || !backend_.has_own_memory()) return;
  for (const RecordKind kind : kAllRecordKinds) {
    const int64_t n = kind == RecordKind::kCondensed ? n_entries : n_tokens;
    const int64_t end = kind == RecordKind::kNarrow ? narrow_until_ : n / geometry_.chunk;
    for (int64_t& chunk = complete_until_[static_cast<size_t>(kind)]; chunk < end; ++chunk) {
      if (table_.holds(kind, chunk)) residency_->complete(table_.chunk(kind, chunk));
    }
  }
  residency_->write_behind(user_);
}

void ChunkStore::rest() { residency_->rest(user_); }

std::vector<int64_t> ChunkStore::resident(int layer) const {
  const RecordKind kind = table_.kind_in(layer, KvKind::kText);
  std::vector<int64_t> chunks;
  for (int64_t chunk = 0; chunk < table_.n_chunks(kind); ++chunk) {
    if (table_.holds(kind, chunk) && residency_->is_in(table_.record(layer, kind, chunk))) chunks.push_back(chunk);
  }
  return chunks;
}

// ---- forgetting

void ChunkStore::drop(RecordKind kind, int64_t first_chunk, int64_t end_chunk) {
  hide();
  for (int64_t c = first_chunk; c < std::min(end_chunk, table_.n_chunks(kind)); ++c) {
    if (PrefixChain* const chain = chain_of(kind)) chain->leave(c);
    if (table_.holds(kind, c)) let_go(table_.forget(kind, c));
  }
}

// Forgets the chunks from n_chunks on.
void ChunkStore::cut(RecordKind kind, int64_t n_chunks) {
  drop(kind, n_chunks, kNoLimit);
  table_.shorten(kind, n_chunks);
}

void ChunkStore::truncate(int64_t n_tokens, int64_t n_entries) {
  const int64_t keep = ceil_div(n_tokens, geometry_.chunk);
  // The chunk that is cut in two goes as well: it will be written to.
  drop_unmade();
  bool known = prefixes_.cut(n_tokens / geometry_.chunk);
  known = narrow_prefixes_.cut(n_tokens / geometry_.chunk) || known;
  windowed_prefixes_.cut(n_tokens / geometry_.chunk);
  cut(RecordKind::kText, keep);
  cut(RecordKind::kWindow, keep);
  cut(RecordKind::kNarrow, n_tokens / geometry_.chunk);
  cut(RecordKind::kCondensed, ceil_div(n_entries, geometry_.chunk));
  for (const RecordKind kind : kAllRecordKinds) {
    const int64_t complete = (kind == RecordKind::kCondensed ? n_entries : n_tokens) / geometry_.chunk;
    int64_t& until = complete_until_[static_cast<size_t>(kind)];
    until = std::min(until, complete);
  }
  selection_.truncate(n_tokens, known);
  passed_ = std::min(passed_, first_spare_query(n_tokens, geometry_.chunk));
  next_query_ = std::min(next_query_, n_tokens);
  taken_over_ = {0, 0};
  full_from_ = std::min(full_from_, keep);
  narrow_until_ = std::min(narrow_until_, n_tokens / geometry_.chunk);
}

bool ChunkStore::can_write(RecordKind kind, int64_t chunk) const {
  return !table_.holds(kind, chunk) || !table_.chunk(kind, chunk).in_snapshot();
}

int64_t ChunkStore::exact_boundary(int64_t n_tokens) const {
  const int64_t boundary = selection_.exact_boundary(n_tokens), chunk = boundary / geometry_.chunk;
  const bool writable = can_write(RecordKind::kText, chunk) && can_write(RecordKind::kWindow, chunk);
  return writable ? boundary : chunk * geometry_.chunk;
}

bool ChunkStore::holds(int64_t begin, int64_t end) const {
  return table_.holds(RecordKind::kText, begin / geometry_.chunk, ceil_div(end, geometry_.chunk));
}

bool ChunkStore::holds_any(int64_t begin, int64_t end) const {
  for (int64_t chunk = begin / geometry_.chunk; chunk < ceil_div(end, geometry_.chunk); ++chunk) {
    if (!table_.holds(RecordKind::kText, chunk) && !table_.holds(RecordKind::kNarrow, chunk)) return false;
  }
  return true;
}

}  // namespace quire
