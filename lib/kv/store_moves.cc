// How a chunk store takes chunks of the text before an edit to their places in the new one: ChunkStore's part of moves.
//
// A key is stored rotated at its offset in its chunk, so its record serves at any place of a text that is a multiple of
// the chunk away. Elsewhere a new chunk has tokens of two old ones, and each key is turned by the difference of its
// offsets. What a key has of the text before it, by the layers below, stays as it was.
#include <algorithm>
#include <utility>

#include "lib/kv/chunk_store.h"

namespace quire {

void ChunkStore::truncate_for_moves(int64_t n_tokens, int64_t n_entries, std::vector<Move> moves) {
  std::vector<OldChunk> needed;
  for (const Move& move : moves) {
    for (int64_t token = move.first_old / geometry_.chunk * geometry_.chunk; token < move.first_old + geometry_.chunk;
         token += geometry_.chunk) {
      needed.push_back({.chunk = token / geometry_.chunk, .n_moves = 1});
    }
  }
  std::ranges::sort(needed, {}, &OldChunk::chunk);
  size_t n = 0;
  for (size_t i = 0; i < needed.size(); ++i) {
    if (i > 0 && needed[i].chunk == needed[n - 1].chunk) {
      ++needed[n - 1].n_moves;
    } else {
      needed[n++] = needed[i];
    }
  }
  needed.resize(n);
  // Nothing fails from here on.
  drop_moves(kNoLimit);
  hide();
  for (OldChunk& old : needed) {
    for (const RecordKind kind : kTextKinds) {
      if (!table_.holds(kind, old.chunk)) continue;
      old.of(kind) = &table_.forget(kind, old.chunk);
      old_held_.add(kind, *old.of(kind));
    }
  }
  old_ = std::move(needed);
  moves_ = std::move(moves);
  truncate(n_tokens, n_entries);
}

std::span<ChunkStore::OldChunk> ChunkStore::old_of(const Move& move) {
  const auto first = std::ranges::lower_bound(old_, move.first_old / geometry_.chunk, {}, &OldChunk::chunk);
  return {first, move.first_old % geometry_.chunk == 0 ? size_t{1} : size_t{2}};
}

void ChunkStore::forget_move(const Move& move) {
  for (OldChunk& old : old_of(move)) {
    if (--old.n_moves > 0) continue;
    for (const RecordKind kind : kTextKinds) {
      ChunkRecords* const records = std::exchange(old.of(kind), nullptr);
      if (!records) continue;
      old_held_.add(kind, *records, -1);
      let_go(*records);
    }
  }
}

void ChunkStore::drop_moves(int64_t first, int64_t n_tokens) noexcept {
  if (moves_.empty()) return;
  hide();
  while (n_moves() > 0 && (moves_.back().chunk + 1) * geometry_.chunk > n_tokens) {
    forget_move(moves_.back());
    moves_.pop_back();
  }
  while (n_moves() > 0 && moves_[next_move_].chunk < first) forget_move(moves_[next_move_++]);
  if (n_moves() > 0) return;
  old_ = {};
  moves_ = {};
  next_move_ = 0;
}

Status ChunkStore::make_move(std::span<const Rope* const> ropes) {
  const Move move = moves_[next_move_];
  const int64_t first = move.chunk * geometry_.chunk;
  const std::span<OldChunk> old = old_of(move);
  struct Undo {
    ChunkStore& store;
    const Move& move;
    OldChunk* lent = nullptr;  // its records are in the table
    bool done = false;
    ~Undo() {
      if (done) return;
      store.hide();
      for (const RecordKind kind : kTextKinds) {
        if (lent && lent->of(kind)) store.table_.forget(kind, move.chunk);
      }
      store.truncate(move.chunk * store.geometry_.chunk);
    }
  } undo{*this, move};
  std::vector<std::unique_ptr<PreparedStep>> steps;  // the queue's destructor waits for what works with them
  QUIRE_ASSIGN(const auto queue, backend_.create_queue());
  for (const RecordKind kind : kTextKinds) {
    table_.extend(kind, move.chunk, move.chunk + 1);
  }
  const bool whole = old.size() == 1;
  // Of a move of two, both and the new one are in memory together.
  QUIRE_TRY(check_budget(selection_.bytes_for(first + geometry_.chunk), (whole ? 1 : 3) * record_bytes_ + narrow_bytes_,
                         whole ? 0 : table_.n_layers() * record_bytes_, first + geometry_.chunk));
  QUIRE_TRY(make_room(selection_.bytes_to_add(first, first + geometry_.chunk)));
  QUIRE_TRY(selection_.reserve(first, first + geometry_.chunk));
  if (whole) {
    undo.lent = &old[0];
    for (const RecordKind kind : kTextKinds) {
      if (ChunkRecords* const records = old[0].of(kind)) table_.hold(kind, move.chunk, *records);
    }
  } else {
    for (const RecordKind kind : {RecordKind::kText, RecordKind::kWindow}) {
      if (table_.layers(kind).empty()) continue;
      QUIRE_TRY(make_records(kind, {&move.chunk, 1}));
      QUIRE_TRY(gather(*queue, kind, move, ropes));
    }
  }
  selection_.extend(first, geometry_.chunk);
  if (options_.selection.count > 0) {
    if (!table_.holds(RecordKind::kText, move.chunk)) QUIRE_TRY(widen(*queue, move.chunk));
    QUIRE_TRY(represent(*queue, move.chunk, ropes, steps));
  }
  QUIRE_TRY(narrow_moved(*queue, first + geometry_.chunk, ropes[0], steps));
  undo.done = true;
  ++next_move_;
  if (whole) {
    for (const RecordKind kind : kTextKinds) {
      if (const ChunkRecords* const records = old[0].of(kind)) old_held_.add(kind, *records, -1);
    }
    old[0] = {.chunk = old[0].chunk, .n_moves = 0};  // the table has its records
  } else {
    hide();
    forget_move(move);
  }
  drop_moves(0);
  return {};
}

// Fills the records of a new chunk, of text or of layers with a window, from those of two old ones. Where one has
// narrow records alone, they are widened to memory beside.
Status ChunkStore::gather(Queue& queue, RecordKind kind, const Move& move, std::span<const Rope* const> ropes) {
  const std::span<OldChunk> old = old_of(move);
  ChunkRecords& made = table_.chunk(kind, move.chunk);
  struct Release {
    ChunkStore& store;
    Queue& queue;
    ~Release() { store.release(queue); }
  } release{*this, queue};
  hide();
  std::unique_ptr<Buffer> widened[2];
  struct Free {
    ChunkStore& store;
    Queue& queue;
    std::unique_ptr<Buffer>* buffers;
    ~Free() {
      for (auto* buffer = buffers; buffer < buffers + 2; ++buffer) {
        if (!*buffer) continue;
        (void)finish_queue(store.backend_, queue);
        buffer->reset();
        store.account_.remove(store.record_bytes_);
      }
    }
  } free{*this, queue, widened};
  std::vector<std::byte> host;
  for (size_t i = 0; i < 2; ++i) {
    if (old[i].of(kind)) continue;
    QUIRE_TRY(make_room(record_bytes_));
    QUIRE_ASSIGN(widened[i], account_.allocate(backend_, record_bytes_, MemoryKind::kDevice));
    host.resize(static_cast<size_t>(record_bytes_));
  }
  for (size_t r = 0; r < made.records.size(); ++r) {
    Record* const to = &made.records[r];
    std::vector<Record*> read;
    KvRecord from[2];
    for (size_t i = 0; i < 2; ++i) {
      if (widened[i]) {
        from[i] = {widened[i].get(), 0};
        QUIRE_TRY(read_widened(queue, old[i].narrow->records[r], host));
        QUIRE_TRY(backend_.upload(queue, host.data(), *widened[i], 0, host.size()));
        QUIRE_TRY(finish_queue(backend_, queue));
      } else if (Record& record = old[i].of(kind)->records[r]; record.tier) {
        read.push_back(&record);
      }
    }
    QUIRE_TRY(residency_->acquire(user_, queue, read, Access::kScan, Pins::kReplaced));
    if (to->tier) QUIRE_TRY(residency_->acquire(user_, queue, {&to, 1}, Access::kWrite, Pins::kKept));
    for (size_t i = 0; i < 2; ++i) {
      if (!widened[i]) from[i] = old[i].of(kind)->records[r].place();
    }
    QUIRE_TRY(backend_.move_kv({queue}, {.geometry = geometry_,
                                         .rope = ropes[static_cast<size_t>(to->layer)],
                                         .stored_div = options_.stored_div,
                                         .first = from[0],
                                         .second = from[1],
                                         .offset = move.first_old % geometry_.chunk,
                                         .to = to->place()}));
  }
  return finish_queue(backend_, queue);
}

// Representations of a chunk's keys alone. `steps` gets what must live until the queue's work is done.
Status ChunkStore::represent(Queue& queue, int64_t chunk, std::span<const Rope* const> ropes,
                             std::vector<std::unique_ptr<PreparedStep>>& steps) {
  const ChunkSelection& s = options_.selection;
  const int64_t parts = geometry_.chunk / s.chunk;
  struct Release {
    ChunkStore& store;
    Queue& queue;
    ~Release() { store.release(queue); }
  } release{*this, queue};
  const Rope* rope = nullptr;
  for (const int layer : table_.layers(RecordKind::kText)) {
    if (steps.empty() || ropes[static_cast<size_t>(layer)] != rope) {
      rope = ropes[static_cast<size_t>(layer)];
      const StepSequence sequence{.plan = std::make_shared<const Plan>(),
                                  .first_key = chunk * geometry_.chunk,
                                  .rope = rope,
                                  .geometry = geometry_};
      steps.emplace_back();
      QUIRE_ASSIGN(steps.back(), backend_.prepare_step({queue}, options_.n_query_heads, {&sequence, 1}));
    }
    QUIRE_TRY(acquire(queue, layer, {&chunk, 1}, Access::kRead));
    QUIRE_TRY(backend_.represent_chunks({queue}, *steps.back(),
                                        {.selection = s,
                                         .first_chunk = chunk * parts,
                                         .n_chunks = parts,
                                         .records = this->layer(layer),
                                         .out = representations(layer)}));
  }
  return finish_queue(backend_, queue);
}

}  // namespace quire
