// What a snapshot has of a chunk store: blocks of bytes in a fixed order, and the few numbers that say which they are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/kv/record.h"
#include "lib/support/status.h"

namespace quire {

// Where blocks go to. Any Status that add() returns ends the saving.
class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Returns the number of the block; blocks that are added one after the other have consecutive numbers.
  virtual Result<int64_t> add(std::span<const std::byte> block) = 0;
  // Before the record of a chunk would be read and added: if the sink knows it already, it is the next block by that,
  // and its number is returned. -1: it is to be added. index: of the chunk's records. Errors as of add().
  virtual Result<int64_t> add_known(RecordKind /*kind*/, int64_t /*chunk*/, int64_t /*index*/) { return -1; }
};

// Where blocks come from. Any thread, several at once.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual int64_t block_bytes(int64_t block) const = 0;  // -1: there is no such block
  // Reads the whole block. kIo; kBadFile: it is damaged.
  virtual Status read(int64_t block, std::span<std::byte> out) const = 0;
  // A hint that the block will be read soon (Tier::will_read).
  virtual void will_read(int64_t /*block*/) const {}
};

// Chunks [begin, end).
struct ChunkRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// The blocks are, one after the other from first_block on:
// - for each kind of records, each chunk that is held, ascending, and each layer of the kind: the record in its neutral
// form
//   (Backend::to_neutral), with zeros for tokens behind the text's end;
// - for each layer without a window and each page of representations with complete chunks: the page in its neutral form
//   (Backend::page_to_neutral), with zeros for other chunks;
// - if the queries of the chunk in progress are known, for each of these layers: those of its tokens, f32
//   [n_tokens mod chunk][n_query_heads * head_dim], unrotated. The chunk is ChunkSelection's.
struct StoreSnapshot {
  std::array<int64_t, kAllRecordKinds.size()> n_keys{};  // tokens, condensed entries, tokens of complete chunks, tokens
  std::array<std::vector<ChunkRange>, kAllRecordKinds.size()> held{};  // ascending; other chunks were dropped
  bool has_queries = false;
  int64_t first_block = 0;

  bool has(RecordKind kind, int64_t chunk) const {
    return std::ranges::any_of(held[static_cast<size_t>(kind)],
                               [&](const ChunkRange& range) { return range.begin <= chunk && chunk < range.end; });
  }
};

struct StoreSnapshotSize {
  int64_t n_blocks = 0;
  int64_t bytes = 0;
};

}  // namespace quire
