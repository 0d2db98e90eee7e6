// The compressed form of a record: its byte planes, each by zstd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/support/allocator.h"
#include "lib/support/status.h"

namespace quire {

// A plane has one byte of each element: all first bytes, all second ones, and so on. The bytes with the exponents
// compress; those of the mantissas do not, and stay as they are. Each plane is a frame of its own, because one table of
// codes for both would fit neither.
//
//   u32 for each plane: its bytes in compressed form; as many as it has elements: it is not compressed
//   checksum of the record (content_checksum)
//   the planes
//
// The form is for this process: numbers are in the machine's order. One thread at a time.
class RecordCodec {
 public:
  // element_bytes: 1 (a narrow record), 2 or 4; record_bytes: a multiple of it. kOutOfMemory.
  static Result<std::unique_ptr<RecordCodec>> create(Allocator& allocator, int64_t record_bytes, int64_t element_bytes);

  // What create() takes from the allocator.
  static int64_t working_bytes(int64_t record_bytes, int64_t element_bytes);
  // The longest compressed form.
  static int64_t most_bytes(int64_t record_bytes, int64_t element_bytes);

  // The compressed form is valid until the next call of compress().
  Result<std::span<const std::byte>> compress(const void* record);
  // kInternal: it is no compressed form of a record; what `record` has then is not known.
  Status decompress(std::span<const std::byte> packed, void* record);

 private:
  RecordCodec(HostMemory memory, int64_t record_bytes, int64_t element_bytes);

  const int64_t element_bytes_, n_elements_;
  const HostMemory memory_;  // of everything below
  void* compressor_ = nullptr;
  void* decompressor_ = nullptr;
  std::byte* plane_ = nullptr;   // one
  std::byte* packed_ = nullptr;  // most_bytes()
};

}  // namespace quire
