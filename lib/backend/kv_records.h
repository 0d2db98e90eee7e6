// Where keys and values lie: records of a chunk of tokens in one layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/backend/memory.h"
#include "lib/plan/plan.h"
#include "lib/support/int4.h"

namespace quire {

// Shape of one record: keys and values of `chunk` tokens in one layer, per KV head contiguous.
struct KvGeometry {
  int n_kv_heads = 0;
  int head_dim = 0;
  int64_t chunk = 0;
  ElementType type = ElementType::kF16;
};

// Bytes of a record's neutral form. Records of kInt8 have scales (kernels/cpu/kernels.h) behind their integers; those
// of kInt4 are groups.
inline size_t kv_neutral_bytes(const KvGeometry& g) {
  if (g.type == ElementType::kInt4) {
    return static_cast<size_t>(g.n_kv_heads) *
           (int4_key_bytes(g.chunk, g.head_dim) + int4_value_bytes(g.chunk, g.head_dim));
  }
  const size_t scales = g.type == ElementType::kInt8 ? static_cast<size_t>(g.head_dim + g.chunk) * sizeof(float) : 0;
  return static_cast<size_t>(g.n_kv_heads) *
         (static_cast<size_t>(2 * g.chunk) * row_bytes(g.type, g.head_dim) + scales);
}

// Text keys and values that queries see in a narrower type, by their age.
struct OldText {
  ElementType type = ElementType::kInt8;  // or kInt4
  int64_t after = kNoLimit;  // a chunk is old that ends so many tokens before the query's own chunk; kNoLimit: none is
  int64_t query = -1;        // queries that are no tokens of the text are as old as this one; -1: they are tokens

  bool narrows() const { return after != kNoLimit; }
  // Query i reads the text keys before this one from narrow records: a multiple of the chunk, which depends on i's own
  // chunk alone and does not fall with i.
  int64_t before(int64_t i, int64_t chunk) const {
    if (!narrows()) return 0;
    const int64_t own = (query >= 0 ? query : i) / chunk * chunk;
    return own <= after ? 0 : (own - after) / chunk * chunk;
  }
};

// The same shape in the type of old text.
inline KvGeometry narrow_geometry(KvGeometry geometry, const OldText& old) {
  geometry.type = old.type;
  return geometry;
}

// What a compressor of records takes for their elements.
constexpr int64_t record_element_bytes(ElementType type) {
  return type == ElementType::kInt4 ? 1 : static_cast<int64_t>(element_bytes(type));
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
  int64_t stored_div = 1;  // where keys are: stored_position
  // Not 0: records that lie at the same address and have the same version are the same, and at the same places.
  uint64_t version = 0;
};

// Representations of the chunks of ChunkSelection::chunk keys in one layer, in pages of kPageChunks chunks; nullptr
// where none. A chunk has the vectors of ChunkSelection::n_vectors, of ChunkSelection::vector_type. Borrowed.
struct Representations {
  static constexpr int64_t kPageChunks = 64;
  std::span<const std::shared_ptr<Buffer>> pages;
};

}  // namespace quire
