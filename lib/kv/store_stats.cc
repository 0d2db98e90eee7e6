// What a chunk store says of itself: ChunkStore's statistics.
#include <algorithm>

#include "lib/kv/chunk_store.h"
#include "lib/kv/compressed_tier.h"
#include "lib/kv/host_tier.h"

namespace quire {
namespace {

// Two tiers of a store that share a budget, as one.
void add(const TierStats& tier, const TierBudget* budget, TierStats* sum) {
  if (sum->name.empty()) {
    *sum = tier;
    return;
  }
  sum->bytes += tier.bytes;
  sum->bytes_peak = budget->peak();
  sum->n_records += tier.n_records;
  sum->n_hits += tier.n_hits;
  sum->n_misses += tier.n_misses;
  sum->n_prefetched += tier.n_prefetched;
  sum->n_evicted += tier.n_evicted;
  sum->n_written_behind += tier.n_written_behind;
  sum->bytes_read += tier.bytes_read;
  sum->bytes_written += tier.bytes_written;
  sum->stall_ns += tier.stall_ns;
}

}  // namespace

RecordSums ChunkStore::held() const {
  const RecordSums& text = table_.held();
  return {text.n + old_held_.n, text.full_bytes + old_held_.full_bytes, text.narrow_bytes + old_held_.narrow_bytes};
}

ChunkStoreStats ChunkStore::stats() const {
  ChunkStoreStats stats;
  stats.bytes = account_.used();
  stats.bytes_peak = account_.peak();
  stats.representation_bytes = selection_.representation_bytes();
  const RecordSums held = this->held();
  stats.n_records = held.n;
  stats.full_bytes = held.full_bytes;
  stats.narrow_bytes = held.narrow_bytes;
  stats.n_evicted = n_evicted_;
  const RecordsOut out = residency_->n_out(user_);
  stats.n_resident = held.n - out.n;
  stats.n_in_snapshot = out.n_in_snapshot;
  const TierStats device = residency_->device_stats(user_);
  stats.n_hits = device.n_hits;
  stats.n_misses = device.n_misses;
  stats.n_left = device.n_evicted;
  stats.stall_ns = device.stall_ns;
  stats.n_written_behind = device.n_written_behind;
  for (size_t t = 0; t < tiers_.all.size(); ++t) {
    const int64_t bytes = bytes_in(t);
    if (tiers_.all[t]->read_only()) {
      const TierStats moved = residency_->tier_stats(user_, t);
      stats.n_restored += moved.bytes_read / bytes;
      stats.bytes_restored += moved.bytes_read;
      continue;
    }
    const TierRows rows = rows_of(t);
    for (const TierStats& row : rows) {
      if (row.name == HostTier::kName) {
        add(row, budget_of(row), &stats.host);
      } else if (row.name == CompressedTier::kName) {
        add(row, budget_of(row), &stats.compressed);
      } else {
        stats.file_bytes += row.bytes;
        stats.n_read += row.bytes_read / bytes;
        stats.n_written += row.bytes_written / bytes;
        stats.bytes_read += row.bytes_read;
        stats.bytes_written += row.bytes_written;
        stats.n_in_file += &row == &rows.front() ? 0 : row.n_records;
      }
    }
  }
  if (stats.host.name.empty() && stats.compressed.name.empty())
    stats.n_in_file = stats.n_records - stats.n_resident - stats.n_in_snapshot;
  return stats;
}

ChunkStoreStats ChunkStore::counted() const {
  ChunkStoreStats stats;
  for_held([&](RecordKind kind, const ChunkRecords& records) {
    (kind == RecordKind::kNarrow ? stats.narrow_bytes : stats.full_bytes) += records.bytes();
    stats.n_records += records.n();
    for (const Record& record : records.records) {
      const bool is_in = residency_->is_in(record);
      stats.n_resident += is_in ? 1 : 0;
      stats.n_in_snapshot += !is_in && records.in_snapshot() ? 1 : 0;
    }
  });
  return stats;
}

// Of a record that has a slot there.
int64_t ChunkStore::bytes_in(size_t tier) const {
  const size_t n_written = tiers_.n_full + tiers_.n_narrow;
  const bool narrow = tier < n_written ? tier >= tiers_.n_full : tier > n_written;
  return narrow ? narrow_bytes_ : record_bytes_;
}

// One of the tiers, and those behind it. n_held: of records with slots there.
TierRows ChunkStore::rows_of(size_t tier, int64_t n_held) const {
  TierRows rows;
  rows.push_back(residency_->tier_stats(user_, tier));
  rows[0].name = tiers_.all[tier]->name();
  rows[0].n_records = n_held;
  tiers_.all[tier]->describe(rows[0]);
  tiers_.all[tier]->describe_behind(rows);
  return rows;
}

// That the tiers of its name share.
const TierBudget* ChunkStore::budget_of(const TierStats& row) const {
  if (row.name == HostTier::kName) return tiers_.host.get();
  return row.name == CompressedTier::kName ? tiers_.compressed.get() : tiers_.file.get();
}

std::vector<TierStats> ChunkStore::tier_stats() const {
  std::vector<TierStats> all;
  all.push_back(residency_->device_stats(user_));
  all[0].name = "device";
  all[0].limit = account_.limit();
  all[0].bytes = account_.used();
  all[0].bytes_peak = account_.peak();
  all[0].n_records = held().n - residency_->n_out(user_).n;
  std::vector<int64_t> n_in(tiers_.all.size());
  for_held([&](RecordKind, const ChunkRecords& records) {
    for (size_t t = 0; t < tiers_.all.size(); ++t) {
      if (records.tier == tiers_.all[t]) n_in[t] += records.n();
    }
  });
  // Those of full and of narrow records are one.
  for (size_t t = 0; t < tiers_.all.size(); ++t) {
    for (const TierStats& row : rows_of(t, n_in[t])) {
      const auto same = std::ranges::find(all, row.name, &TierStats::name);
      if (same == all.end()) {
        all.push_back(row);
      } else {
        add(row, budget_of(row), &*same);
      }
    }
  }
  return all;
}

}  // namespace quire
