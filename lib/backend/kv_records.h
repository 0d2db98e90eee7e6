// Where keys and values lie: records of a chunk of tokens in one layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/backend/memory.h"

namespace quire {

// Shape of one record: keys and values of `chunk` tokens in one layer, per KV head contiguous.
struct KvGeometry {
  int n_kv_heads = 0;
  int head_dim = 0;
  int64_t chunk = 0;
  ElementType type = ElementType::kF16;
};

// Bytes of a record's neutral form.
inline size_t kv_neutral_bytes(const KvGeometry& g) {
  return static_cast<size_t>(2 * g.n_kv_heads * g.chunk) * row_bytes(g.type, g.head_dim);
}

// Where a record lies: kv_record_bytes of a page that may hold others, from a byte offset that is a multiple of
// kv_record_bytes. Borrowed. No page: the record is dropped, or not in this memory.
struct KvRecord {
  Buffer* page = nullptr;
  size_t offset = 0;

  explicit operator bool() const { return page != nullptr; }
  bool operator==(const KvRecord&) const = default;
};

// The records of one layer and KV kind, by chunk index.
struct KvRecords {
  std::span<const KvRecord> chunks;
  bool raw = false;  // keys were stored unrotated; spans over them have rotation kRaw
};

// Representations of the chunks of ChunkSelection::chunk keys in one layer, in pages of kPageChunks chunks; nullptr
// where none. A chunk has the vectors of ChunkSelection::n_vectors, of ChunkSelection::vector_type. Borrowed.
struct Representations {
  static constexpr int64_t kPageChunks = 64;
  std::span<const std::shared_ptr<Buffer>> pages;
};

}  // namespace quire
