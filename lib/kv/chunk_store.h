// The chunk store of one session: keys and values of its tokens in records of `chunk` tokens per layer, and what a
// strategy that selects chunks needs of them (representations, the queries of the chunk in progress). The entries of a
// condensed text are a second kind of keys, in records of the same form under the same budget. Records of old text in a
// narrower type are a third kind (store_old_text.cc), and those of layers with a window a fourth (window_layers.h).
//
// Without a lower tier all records are in device memory, and the byte budget bounds them. With one, such as the host's
// memory below that of a device of its own, compressed memory, or a file in a spill directory, each record has its slot
// there too; it is in memory while it is used, and the least recently used ones leave when the budget is reached. What
// comes back is what left, byte for byte. Memory never exceeds the budget.
//
// A store that was restored from a snapshot has the snapshot as its last tier: records are read from it when they are
// asked for, and nothing is written to it. Records that are made or changed afterwards have their slots in another
// tier, or, where there is none, a fixed place in memory.
//
// The store puts parts together: record.h and record_table.h (which records exist), prefix_table.h (which of them other
// stores may share), residency.h (which are in memory, of all stores of a runtime), transfers.h (how they come and go),
// tier.h (where else they are), selection_state.h, tier_budget.h, store_snapshot.h. One thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/io_thread.h"
#include "lib/kv/prefix_table.h"
#include "lib/kv/record_table.h"
#include "lib/kv/residency.h"
#include "lib/kv/selection_state.h"
#include "lib/kv/store_snapshot.h"
#include "lib/kv/tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/kv/window_layers.h"
#include "lib/support/allocator.h"
#include "lib/support/status.h"

namespace quire {

class PrefixCache;

struct ChunkStoreOptions {
  int64_t budget_bytes = 0;  // of device memory, the staging buffer included; 0: no limit
  // Below the memory of a device of its own: the host's, before the others. Always there for such a device.
  int64_t host_budget_bytes = 0;   // 0: no limit
  std::string spill_directory{};   // empty: no file
  int64_t spill_budget_bytes = 0;  // of the file; 0: no limit
  // Compressed records, before the file; 0: none. Their memory comes from host_memory, which must outlive the store.
  int64_t compressed_budget_bytes = 0;
  Allocator* host_memory = nullptr;
  int64_t stored_div = 1;  // where text keys are stored: stored_position
  // Where it narrows: old chunks have narrow records, and their full ones are dropped when no query reads them.
  // Not of layers with a window.
  OldText old{};
  WindowLayers windowed{};
  // Text keys that some query with index >= next_query may see, as Strategy::retained says; null: all.
  std::function<std::vector<KeyRange>(int64_t next_query)> seen{};
  int n_query_heads = 0;
  ChunkSelection selection{};  // how heads choose: a representation of each complete chunk is kept for it
  // Tiers below device memory and before the file, the nearest first. A record's slot is in the first with room.
  std::vector<std::shared_ptr<Tier>> tiers{};
  // What the store will be restored from; null: nothing.
  std::shared_ptr<const BlockSource> snapshot{};
  // Of the runtime's stores together: those of the device, and by tier; null: there are no others.
  std::shared_ptr<Residency> residency{};
  std::shared_ptr<TierBudget> runtime_host{};
  std::shared_ptr<TierBudget> runtime_compressed{};
  std::shared_ptr<TierBudget> runtime_file{};
  // Where stores with equal texts find each other, and of what they must be alike beside; null: this one takes no part.
  std::shared_ptr<PrefixTable> prefixes{};
  PrefixHash prefix_root{};
  // What is kept of released sessions, and makes room for this store; null: there is no such thing. Must outlive it.
  PrefixCache* cache = nullptr;
  // Reads and writes lower tiers; null: the store's own thread does. Must outlive the store. With a lower tier its
  // threads are started.
  IoThreads* io = nullptr;
};

struct ChunkStoreStats {
  int64_t bytes = 0, bytes_peak = 0;  // of memory: pages of records, representations, queries in progress, staging
  int64_t representation_bytes = 0;   // of those
  int64_t n_records = 0;              // held, in memory or in a lower tier
  int64_t n_resident = 0;             // of those in memory
  int64_t n_evicted = 0;              // dropped, because no query to come sees them
  int64_t full_bytes = 0, narrow_bytes = 0;  // of n_records, wherever they are
  // Where there is host memory below the device's, or compressed memory, what these say is of all forks together.
  TierStats host{};
  TierStats compressed{};
  int64_t n_in_file = 0;              // held in the file: not in memory, or, behind another tier, given on to it
  int64_t file_bytes = 0;             // reserved in lower tiers, host and compressed memory aside
  int64_t n_read = 0, n_written = 0;  // records, from and to them
  int64_t n_restored = 0;             // read from the snapshot
  int64_t bytes_read = 0, bytes_written = 0, bytes_restored = 0;  // of these three
  int64_t n_in_snapshot = 0;  // held, not in memory, and read from the snapshot when they are needed
  // Where there is a lower tier: records asked for that were in memory, that were not, and that left it; nanoseconds in
  // which computing waited for records.
  int64_t n_hits = 0, n_misses = 0, n_left = 0, stall_ns = 0;
  int64_t n_written_behind = 0;  // records that were written to a lower tier before they had to leave
};

class ChunkStore {
 public:
  // The backend must outlive the store. Errors: those of making the file.
  static Result<std::unique_ptr<ChunkStore>> create(Backend& backend, const KvGeometry& geometry, int n_layers,
                                                    const ChunkStoreOptions& options);

  ~ChunkStore();

  const KvGeometry& geometry() const { return geometry_; }
  const OldText& old_text() const { return options_.old; }
  const Residency* residency() const { return residency_.get(); }
  // Whether records may be elsewhere than in memory.
  bool spills() const { return Residency::spills(user_); }
  // Whether records may come and go during a step: then acquire() says where they are to be. Otherwise it does nothing
  // but for what is changed.
  bool moves() const { return spills() && !pins_all_; }

  // Makes room for text keys [first, first + n) in all layers: in memory, or in a lower tier. `first` is where the text
  // ends now. No work on the records is queued. kBudget, kOutOfMemory, kIo: nothing was changed, but that what is kept
  // beside what queries see (KeptKeys) may be gone.
  Status reserve(int64_t first, int64_t n);
  // The same for n more condensed entries.
  Status reserve_condensed(int64_t first, int64_t n);
  // Forgets the text keys from n_tokens on, and the condensed entries from n_entries on. Waits for records on their
  // way.
  void truncate(int64_t n_tokens, int64_t n_entries = 0);
  // Whether no full record with a text key in [begin, end) was dropped; of layers with a window this says nothing, and
  // neither do the next two.
  bool holds(int64_t begin, int64_t end) const;
  // Whether of each chunk with a text key in [begin, end) there are full or narrow records.
  bool holds_any(int64_t begin, int64_t end) const;
  // Whether the text keys in [begin, end) are held as queries from next_query on read them, or as narrow records are
  // made from.
  bool holds_for(int64_t next_query, int64_t begin, int64_t end) const;

  // ---- what no query to come sees (store_evict.cc)
  bool is_windowed(int layer) const { return table_.is_windowed(layer); }
  // Whether there is text that no query to come sees, or sees in another type.
  bool drops() const { return options_.seen || options_.windowed.any() || options_.old.narrows(); }
  // Whether layers with a window have all text keys that queries from next_query on see; true where there are none.
  bool holds_windows(int64_t next_query) const;
  // Whether the text can go on at next_query: all layers hold the keys that queries from there on see, in the type in
  // which these read them.
  bool can_go_on(int64_t next_query) const;
  // What is kept is what queries would see that come so many chunks of tokens earlier. So, where room is enough, the
  // text can be cut by as many without the others being read again, and stores whose texts part there can share what is
  // before.
  static constexpr int64_t kSpareChunks = 4;
  // The first of the queries for which records are kept where next_query is the least index of a query to come.
  static int64_t first_spare_query(int64_t next_query, int64_t chunk);
  // Of the tokens before next_query, those from here on need not be named as places: what is read where the text is cut
  // to one of these, or a chunk before it, is spare.
  int64_t spare_places_from(int64_t next_query) const { return next_query - kSpareChunks / 2 * geometry_.chunk; }
  // Whether anything can be dropped for this query that was not for the last one.
  bool passes(int64_t next_query) const;
  // Of each kind of records, ascending disjoint ranges of keys; empty where nothing can be dropped.
  struct KeptKeys {
    int64_t next_query = 0;
    std::vector<KeyRange> text{}, windowed{};
  };
  // What stays where the least index of a query to come is next_query: what such queries see, what is spare, and what
  // is read where the text is cut to one of `places`, or by up to a chunk's tokens more; so stores that share what is
  // before a place find it, too.
  KeptKeys kept_keys(int64_t next_query, std::span<const int64_t> places) const;
  // Drops the records of chunks that have no kept key, and full records of text that is old for next_query, but for
  // those of the last kSpareChunks chunks. Where a budget has no room, reserve() drops all that no query to come sees.
  // Allocates nothing. Waits as truncate().
  void drop_unseen(const KeptKeys& kept);

  // ---- steps
  // Chunks that are old for the last reserved token and have no narrow record yet, ascending: reserve() made room for
  // it, and the step makes it in each layer from the full one, before it reads the chunk. None in a layer with a
  // window.
  std::span<const int64_t> to_narrow(int layer) const {
    return is_windowed(layer) ? std::span<const int64_t>() : to_narrow_;
  }
  // The step is done, with the narrow records that it had to make. Without this the next truncate() drops them.
  void narrowed() noexcept;
  // The most tokens, at most n_tokens, to which the text can be cut so that the following tokens come out as if no
  // other had ever followed: where the queries of the chunk in progress are known, and its records can be written.
  int64_t exact_boundary(int64_t n_tokens) const;

  // In which type the text of chunks is read: narrow the keys before narrow_before, full those from full_from on.
  struct Versions {
    int64_t narrow_before = 0;
    int64_t full_from = 0;
  };
  // At the beginning of a step, after its tokens were reserved: where all records are in memory and there is room to
  // spare, they stay there until release() (Residency::pin_all). moves() says whether they do.
  void pin_all();
  // Brings records of a layer into memory, at most max_resident() of them, and keeps them there until the next acquire
  // of text, or release(); others may leave it. kWrite: they will be changed. Work on the records is queued on `queue`.
  // Waits for records on their way. kIo, kOutOfMemory, kBudget: nothing is lost, and nothing is kept there.
  Status acquire(Queue& queue, int layer, std::span<const int64_t> chunks, Access access, KvKind kind = KvKind::kText) {
    return acquire(queue, layer, chunks, access, kind, {});
  }
  // The same for text that is read.
  Status acquire(Queue& queue, int layer, std::span<const int64_t> chunks, Access access, const Versions& versions) {
    return acquire(queue, layer, chunks, access, KvKind::kText, versions);
  }
  // Begins to bring records of a layer's text into memory, the first ones first, as far as this fits into half of the
  // memory beside what the last acquire asked for. Returns at once; what fails is as if it had not been asked for.
  // Without an I/O thread it does nothing.
  void prefetch(int layer, std::span<const int64_t> chunks, Access access, const Versions& versions) noexcept;
  void prefetch(int layer, std::span<const int64_t> chunks, Access access = Access::kRead) noexcept {
    prefetch(layer, chunks, access, {});
  }
  // Nothing more will be queued on what was acquired: other sessions can have its memory when the work is done.
  void release(Queue& queue) noexcept;
  // The same with a fence behind all work on it, which other stores may be given too.
  void release(std::shared_ptr<const Fence> fence) noexcept;
  // No stream works on the session any more: its records are the first to leave memory when others need room.
  void rest();
  // The first n_tokens tokens of the text are computed, and its first n_entries condensed entries: the records of their
  // complete chunks are not changed any more, and may be written to the host's memory before they have to leave a
  // device's (Residency::write_behind).
  void computed(int64_t n_tokens, int64_t n_entries) noexcept;
  // The chunks that a layer's last query chose, as the forward pass said; none: it has not said any yet.
  std::span<const int64_t> last_chosen(int layer) const { return last_chosen_[static_cast<size_t>(layer)]; }
  void set_last_chosen(int layer, std::vector<int64_t> chunks) {
    last_chosen_[static_cast<size_t>(layer)] = std::move(chunks);
  }
  // Records of a layer's text that can be in memory together, beside all records of its condensed entries.
  int64_t max_resident() const;
  // How many of n records of a layer's text to acquire at a time: all if they fit, else half of what fits, so that the
  // next ones can arrive meanwhile. Where not all that the store holds fits, a scan takes few, so that most of the
  // memory goes to records that stay there.
  int64_t window(int64_t n, Access access = Access::kRead) const;
  int64_t condensed_chunks() const { return table_.n_chunks(RecordKind::kCondensed); }
  KvRecords layer(int layer, KvKind kind = KvKind::kText) const {
    return {table_.layer(layer, kind), kind == KvKind::kText ? options_.stored_div : 1, table_.version()};
  }

  // None in a layer with a window; neither are queries kept there.
  Representations representations(int layer) const {
    return is_windowed(layer) ? Representations() : selection_.representations(table_.index_of(layer));
  }
  // Rows for the raw queries of the chunk in progress before or after the reserved tokens; no buffer if `chunk` is
  // neither.
  Rows queries_in_progress(int layer, int64_t chunk) const {
    return is_windowed(layer) ? Rows() : selection_.queries_in_progress(table_.index_of(layer), chunk);
  }

  // Another store with the same contents. Both hold the same records, wherever they are, and each copies what it shares
  // before it changes it. kOutOfMemory: the store is as it was.
  Result<std::unique_ptr<ChunkStore>> fork();

  // ---- prefixes: complete chunks that stores with equal texts share (store_prefixes.cc)
  // The tokens of a chunk as Prefix has them; none: the chunk depends on more than these, and takes no part.
  using ChunkIds = std::function<std::vector<int32_t>(int64_t chunk)>;
  bool shares_prefixes() const { return prefixes_.takes_part(); }
  // Chunks of the text, the first ones, that are known as prefixes.
  int64_t n_prefixes() const { return prefixes_.size(); }
  // Lets other stores share the chunks [first, end), which are complete and computed; first: at most n_prefixes().
  void enter_prefixes(int64_t first, int64_t end, const ChunkIds& ids_of);
  // Whether adopt() is likely to find the first one of chunks behind [n_prefixes(), chunk), which is not held yet.
  bool knows_prefix(int64_t chunk, const ChunkIds& ids_of) const;
  // How many chunks were taken over, and why no more: all that were asked for, nobody has computed the next one, or it
  // exceeds a budget.
  enum class AdoptEnd { kAll, kUnknown, kNoRoom };
  struct Adopted {
    int64_t n_chunks = 0;
    AdoptEnd end = AdoptEnd::kAll;
  };
  // Shares the chunks [n_prefixes(), end) with the stores that computed them, the first ones of them as far as they are
  // known; of records that stay in memory, while those of this store can leave it, it makes copies. The text ends at
  // the first one. kOutOfMemory: nothing was changed, and so at an exception, after truncate().
  Result<Adopted> adopt(int64_t end, const ChunkIds& ids_of);
  // The session is released: what stays are the complete chunks that other stores can take over, from the text's first
  // one on, but for those that a snapshot has, which is let go. Returns their records by kTextKinds; null: there are
  // none. They are the first to leave memory from here on. Afterwards the store may be truncated at chunks, or go.
  using Kept = std::array<ChunkRecords*, kTextKinds.size()>;
  static bool has_text(const Kept& kept);  // but for what layers with a window have
  std::vector<Kept> keep_prefix();
  // Bytes of memory beside records.
  int64_t bytes_beside() const;
  // Whether memory is held that is not given to others who need it.
  bool in_memory() const { return fixed_bytes_ + selection_.bytes() > 0; }

  // ---- moves: chunks of a text before an edit that stand elsewhere in the new one (store_moves.cc)
  // The chunk will be that of the old text's tokens from first_old on.
  struct Move {
    int64_t chunk = 0;
    int64_t first_old = 0;
  };
  // As truncate(n_tokens, n_entries), but the records that `moves` need are kept aside. They lie behind what stays, all
  // of them are held (can_move), and no old token is needed twice. Moves ascend; those from before are forgotten.
  // An exception: nothing was changed.
  void truncate_for_moves(int64_t n_tokens, int64_t n_entries, std::vector<Move> moves);
  // The next one that has not been made; null: there is none.
  const Move* next_move() const { return next_move_ < moves_.size() ? &moves_[next_move_] : nullptr; }
  int64_t n_moves() const { return static_cast<int64_t>(moves_.size() - next_move_); }
  // Whether the records of a chunk that begins at an old token can be taken over: all kinds that a query may need.
  bool can_move(int64_t first_old) const {
    const int64_t end = first_old + geometry_.chunk;
    return holds_any(first_old, end) &&
           (!options_.windowed.any() ||
            table_.holds(RecordKind::kWindow, first_old / geometry_.chunk, ceil_div(end, geometry_.chunk)));
  }
  // The text, which ends where the next move's chunk begins, goes on with that chunk. Its records are those of the old
  // text, full and narrow as they were, if it had a chunk there; else full ones are made of two, and keys are turned to
  // their new offsets. Where a full record is needed and there is a narrow one alone, its numbers are taken: for a
  // chunk of two, for representations, which are made anew, and by reserve() for a chunk that is young now. ropes: of
  // each layer. kBudget, kOutOfMemory, kIo: nothing was changed, and so at an exception.
  Status make_move(std::span<const Rope* const> ropes);
  // Moves of chunks before `first` will not be made, and none of chunks that end behind token n_tokens. Records that
  // no other one needs are let go.
  void drop_moves(int64_t first, int64_t n_tokens = kNoLimit) noexcept;

  // ---- snapshots (store_snapshot.cc)
  // Writes all that the store holds of the first n_tokens tokens and n_entries entries, which are all it holds. Errors:
  // those of the sink; kIo, kBadFile, kOutOfMemory for records in lower tiers. The store is as it was.
  Result<StoreSnapshot> save(int64_t n_tokens, int64_t n_entries, BlockSink& sink);
  // Keys of a kind that a snapshot of so many tokens and entries has records of, and how many records a chunk of them
  // has.
  int64_t saved_keys(RecordKind kind, int64_t n_tokens, int64_t n_entries) const;
  int64_t n_records(RecordKind kind) const { return std::ssize(table_.layers(kind)); }
  // Bytes of the records in it, of chunks for which `which` is true.
  int64_t saved_bytes(int64_t n_tokens, int64_t n_entries,
                      const std::function<bool(RecordKind kind, int64_t chunk)>& which) const;
  // How many blocks that will be, and their bytes.
  StoreSnapshotSize snapshot_size(int64_t n_tokens, int64_t n_entries) const;
  // An empty store becomes the one that was saved to options.snapshot. What other stores hold of the same text is
  // shared with them, as by adopt(). Reads what is not records, all condensed entries, and the records that the next
  // token will be stored in. kBadFile: the snapshot does not fit this store; kIo, kBudget, kOutOfMemory. The store is
  // then of no use.
  Status restore(const StoreSnapshot& snapshot, const ChunkIds& ids_of);

  // Takes no longer for more records.
  ChunkStoreStats stats() const;
  // What these count, found by a look at each record: n_records, n_resident, full_bytes, narrow_bytes, n_in_snapshot.
  ChunkStoreStats counted() const;
  // Device memory first, then the lower tiers.
  std::vector<TierStats> tier_stats() const;
  int64_t record_bytes() const { return record_bytes_; }
  int64_t narrow_record_bytes() const { return narrow_bytes_; }
  // The chunks of a layer's text whose records are in memory.
  std::vector<int64_t> resident(int layer) const;

 private:
  struct Tiers {
    std::vector<std::shared_ptr<Tier>> all;
    size_t n_full = 0, n_narrow = 0;  // the first ones of them, which are written to, of full and of narrow records
    std::shared_ptr<TierBudget> host, compressed,
        file;  // of full and narrow ones together; null: there are no narrow ones
  };
  ChunkStore(Backend& backend, const KvGeometry& geometry, int n_layers, const ChunkStoreOptions& options, Tiers tiers);
  static Result<Tiers> make_tiers(Backend& backend, const KvGeometry& geometry, const ChunkStoreOptions& options);
  Status let_spill();
  template <typename Do>
  Status with_room(const Do& reserve);
  template <typename Do>
  Status with_room_or_spare(const Do& reserve);
  Status reserve_text(int64_t first, int64_t n);
  void drop_old_text(int64_t next_query);
  bool drop_spare();
  // Whether the text that others can take over may have gaps of what no query to come sees.
  bool has_gaps() const { return options_.seen && options_.selection.count == 0; }
  bool has_key_in(std::span<const KeyRange> ranges, int64_t chunk) const;
  bool lacks_room(int64_t bytes) const;
  std::vector<KeyRange> seen_text(int64_t next_query) const;
  std::vector<KeyRange> seen_in_windows(int64_t next_query) const;
  void drop_all_but(std::span<const RecordKind> kinds, std::span<const KeyRange> kept);
  Status reserve_entries(int64_t first, int64_t n);
  Status make_room(int64_t bytes);
  bool drop_kept_slots(int64_t bytes);
  void note_hits(int64_t first_chunk, int64_t n_chunks);
  Status acquire(Queue& queue, int layer, std::span<const int64_t> chunks, Access access, KvKind kind,
                 const Versions& versions);
  std::vector<std::pair<RecordKind, int64_t>> wanted(int layer, std::span<const int64_t> chunks, KvKind kind,
                                                     const Versions& versions) const;
  // `in_step`: bytes of records that one step must have in memory; `missing`: of records that are made; `fixed`: other
  // bytes of memory.
  Status check_budget(int64_t fixed, int64_t in_step, int64_t missing, int64_t n_tokens) const;
  Status reserve_selection(int64_t first, int64_t n_tokens);
  // All or none.
  Status make_records(RecordKind kind, std::span<const int64_t> chunks);
  // Bytes of a chunk's records of a kind.
  int64_t chunk_bytes(RecordKind kind) const { return n_records(kind) * bytes_of(kind); }
  Result<std::unique_ptr<ChunkRecords>> new_chunk(RecordKind kind);
  Result<std::unique_ptr<ChunkRecords>> new_chunk_in_memory(RecordKind kind);
  Result<std::unique_ptr<ChunkRecords>> new_chunk_in_tier(RecordKind kind);
  void hold(RecordKind kind, int64_t chunk, std::unique_ptr<ChunkRecords> records);
  void let_go(ChunkRecords& records);
  Status own_chunk(RecordKind kind, int64_t first);
  Result<ChunkRecords*> copy_of(RecordKind kind, ChunkRecords& shared);
  bool can_write(RecordKind kind, int64_t chunk) const;
  bool writes_to_tier() const { return tiers_.n_full > 0; }
  const KvGeometry& geometry(RecordKind kind) const {
    return kind == RecordKind::kNarrow ? narrow_geometry_ : geometry_;
  }
  // Of the buffer that records go through; of small heads, narrow ones with their scales are the larger ones.
  int64_t staging_bytes() const { return std::max(record_bytes_, narrow_bytes_); }
  int64_t bytes_of(RecordKind kind) const { return kind == RecordKind::kNarrow ? narrow_bytes_ : record_bytes_; }
  int64_t bytes_in(size_t tier) const;
  TierRows rows_of(size_t tier, int64_t n_held = 0) const;
  const TierBudget* budget_of(const TierStats& row) const;
  // Of prefixes.
  bool must_copy(const ChunkRecords& records) const;
  bool can_take(const ChunkRecords& records, int64_t first, int64_t end) const;
  static Result<std::vector<std::vector<int32_t>>> prefix_ids(int64_t first, int64_t end, const ChunkIds& ids_of);
  Result<PrefixChain::Take> take_prefix(RecordKind kind, std::span<const int32_t> ids, int64_t begin, bool copies,
                                        PrefixPages* pages);
  // What is to be taken over of a chunk: of text the first of these kinds that others have, or `each` of them; of
  // layers with a window theirs. Without what is needed the chunk is not taken over.
  struct WantedKinds {
    std::vector<RecordKind> kinds{};
    bool each = false;
    bool needs_text = false, needs_window = false;
  };
  Result<PrefixChain::Take> take_kinds(const WantedKinds& wanted, std::span<const int32_t> ids, int64_t begin,
                                       bool copies, PrefixPages* pages);
  Result<Adopted> take_chunks(std::span<const std::vector<int32_t>> ids, bool copies,
                              const std::function<WantedKinds(int64_t)>& wanted_of);
  void enter_held(int64_t first, int64_t end);
  void enter_prefix(RecordKind kind, int64_t chunk);
  void hold_shared(RecordKind kind, int64_t chunk, ChunkRecords& records);
  // Of moves.
  struct OldChunk {
    int64_t chunk;
    int64_t n_moves;               // that need it
    ChunkRecords* full = nullptr;  // null: there are none, or no move needs them any more; likewise the others
    ChunkRecords* narrow = nullptr;
    ChunkRecords* windowed = nullptr;
    ChunkRecords*& of(RecordKind kind) {
      return kind == RecordKind::kText ? full : kind == RecordKind::kNarrow ? narrow : windowed;
    }
  };
  // The one or two old chunks that have the tokens of a move.
  std::span<OldChunk> old_of(const Move& move);
  void forget_move(const Move& move);
  // Calls use(kind, records) for each chunk that the store holds, those of moves included.
  template <typename Use>
  void for_held(const Use& use) const {
    table_.for_held(use);
    for (const OldChunk& old : old_) {
      if (old.full) use(RecordKind::kText, *old.full);
      if (old.narrow) use(RecordKind::kNarrow, *old.narrow);
      if (old.windowed) use(RecordKind::kWindow, *old.windowed);
    }
  }
  RecordSums held() const;  // of these
  Status gather(Queue& queue, RecordKind kind, const Move& move, std::span<const Rope* const> ropes);
  Status represent(Queue& queue, int64_t chunk, std::span<const Rope* const> ropes,
                   std::vector<std::unique_ptr<PreparedStep>>& steps);
  Status adopt_selection(int64_t first, int64_t end, PrefixPages pages);
  // Where old text is narrow.
  Status read_widened(Queue& queue, Record& narrow, std::span<std::byte> full);
  Status widen(Queue& queue, int64_t chunk);
  Status widen_young(int64_t first);
  Status narrow_moved(Queue& queue, int64_t query, const Rope* rope, std::vector<std::unique_ptr<PreparedStep>>& steps);
  void advance_narrow(int64_t end);
  void find_to_narrow(int64_t first, int64_t n);
  bool join_narrow(int64_t chunk);
  void drop_unmade();
  PrefixChain* chain_of(RecordKind kind);  // null: records of this kind are not shared so
  bool append_prefix(std::span<const int32_t> ids);
  std::vector<KeyRange> seen_of_shared(int64_t query) const;
  int64_t known_prefix(std::span<const std::vector<int32_t>> ids);
  Result<int64_t> adopt_restored(const StoreSnapshot& snapshot, int64_t end, const ChunkIds& ids_of);
  // Of snapshots.
  std::vector<ChunkRange> held_chunks(RecordKind kind, int64_t n_keys) const;
  Status write_new(Queue& queue, Record& record, std::span<const std::byte> bytes);
  Status save_records(Queue& queue, RecordKind kind, int64_t n_keys, BlockSink& sink);
  Status save_selection(Queue& queue, int64_t n_tokens, BlockSink& sink);
  Result<int64_t> restore_shared(const StoreSnapshot& snapshot, const ChunkIds& ids_of);
  Status restore_records(Queue& queue, RecordKind kind, const StoreSnapshot& snapshot, int64_t* block);
  Status restore_own(Queue& queue, RecordKind kind, int64_t chunk, int64_t block);
  Status restore_selection(Queue& queue, const StoreSnapshot& snapshot, int64_t n_shared, int64_t block);
  void drop(RecordKind kind, int64_t first_chunk, int64_t end_chunk);
  void cut(RecordKind kind, int64_t n_chunks);
  void hide();

  Backend& backend_;
  const KvGeometry geometry_;
  ChunkStoreOptions options_;
  Tiers tiers_;  // below device memory
  const int64_t record_bytes_;
  const KvGeometry narrow_geometry_;
  const int64_t narrow_bytes_;  // 0: there are no narrow records
  const std::shared_ptr<Residency> residency_;
  TierAccount account_;  // of device memory
  RecordUser user_;      // this store, for the residency
  RecordTable table_;
  SelectionState selection_;
  PrefixChain prefixes_;
  PrefixChain narrow_prefixes_;    // of the same text, with its narrow records
  PrefixChain windowed_prefixes_;  // and with those of layers with a window
  std::vector<OldChunk> old_;      // ascending; held as those of the table are
  RecordSums old_held_;            // of these
  std::vector<Move> moves_;
  size_t next_move_ = 0;
  int64_t fixed_bytes_ = 0;                        // of pages of records without slots
  std::vector<std::vector<int64_t>> last_chosen_;  // [layer]
  struct Seen {
    int layer;
    RecordKind kind;
    int64_t chunk;
  };
  std::vector<Seen> seen_;  // what the last requests brought, and the backend sees
  bool pins_all_ = false;   // from pin_all() until release()
  // The backend sees all records in memory, as they lay when Residency::pin_all() said seen_changes_.
  bool sees_all_ = false;
  uint64_t seen_changes_ = 0;
  int64_t n_evicted_ = 0;
  int64_t passed_ = 0;      // the first spare query of the last drop_unseen() with ranges
  int64_t next_query_ = 0;  // queries to come have at least this index: where the text came from, or was dropped
  // Keys that were taken over for the step that comes next; empty when that is settled. If the step fails they go, and
  // the text goes on at their beginning.
  KeyRange taken_over_{0, 0};
  int64_t full_from_ = 0;           // before this chunk there is no full record
  std::vector<int64_t> to_narrow_;  // of the reserved step; perhaps not reserved, where that failed
  int64_t narrow_until_ = 0;        // before this chunk each one that is held has its narrow record
  // By kind: the residency knows that the chunks before it are complete.
  std::array<int64_t, kAllRecordKinds.size()> complete_until_{};
};

}  // namespace quire
