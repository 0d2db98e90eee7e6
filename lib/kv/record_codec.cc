#include "lib/kv/record_codec.h"

#define ZSTD_STATIC_LINKING_ONLY  // working memory of ours
#include <zstd.h>
#include <zstd_errors.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "lib/support/content_hash.h"
#include "lib/support/types.h"

// zstd calls these functions of the program's where it has them. Here it does not: they are the library's own, hidden.
extern "C" {
unsigned long long ZSTD_trace_compress_begin(const ZSTD_CCtx*) { return 0; }
void ZSTD_trace_compress_end(unsigned long long, const void*) {}
unsigned long long ZSTD_trace_decompress_begin(const ZSTD_DCtx*) { return 0; }
void ZSTD_trace_decompress_end(unsigned long long, const void*) {}
}

namespace quire {
namespace {

// What compresses in keys and values is that few exponents are frequent; hardly anything repeats. So low a level looks
// for repeated strings almost nowhere. Level 1 takes twice as long in bf16 for one to four hundredths of the size
// (tests/bench/README.md).
constexpr int kLevel = -1000;
constexpr int64_t kMostPlanes = 4;
constexpr size_t kChecksumBytes = 16;
constexpr auto kAlignment = static_cast<int64_t>(Allocator::kAlignment);

int64_t header_bytes(int64_t element_bytes) {
  return element_bytes * static_cast<int64_t>(sizeof(uint32_t)) + static_cast<int64_t>(kChecksumBytes);
}

int64_t compressor_bytes(int64_t n_elements) {
  const auto parameters = ZSTD_getCParams(kLevel, static_cast<unsigned long long>(n_elements), 0);
  return round_up(static_cast<int64_t>(ZSTD_estimateCCtxSize_usingCParams(parameters)), kAlignment);
}

int64_t decompressor_bytes() { return round_up(static_cast<int64_t>(ZSTD_estimateDCtxSize()), kAlignment); }

// The stride is known when it is compiled, which makes it several times as fast.
template <int64_t kStride>
void gather(const std::byte* from, int64_t n, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i * kStride];
}

template <int64_t kStride>
void scatter(const std::byte* from, int64_t n, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) to[i * kStride] = from[i];
}

// A plane of n elements, whose first byte is at `from`, and back.
void gather_plane(const std::byte* from, int64_t element_bytes, int64_t n, std::byte* plane) {
  (element_bytes == 1 ? gather<1> : element_bytes == 2 ? gather<2> : gather<4>)(from, n, plane);
}

void scatter_plane(const std::byte* plane, int64_t element_bytes, int64_t n, std::byte* to) {
  (element_bytes == 1 ? scatter<1> : element_bytes == 2 ? scatter<2> : scatter<4>)(plane, n, to);
}

}  // namespace

int64_t RecordCodec::most_bytes(int64_t record_bytes, int64_t element_bytes) {
  return header_bytes(element_bytes) + record_bytes;
}

int64_t RecordCodec::working_bytes(int64_t record_bytes, int64_t element_bytes) {
  const int64_t n = record_bytes / element_bytes;
  return compressor_bytes(n) + decompressor_bytes() + round_up(n, kAlignment) + most_bytes(record_bytes, element_bytes);
}

Result<std::unique_ptr<RecordCodec>> RecordCodec::create(Allocator& allocator, int64_t record_bytes,
                                                         int64_t element_bytes) {
  HostMemory memory(allocator, static_cast<size_t>(working_bytes(record_bytes, element_bytes)));
  if (!memory) return Status(Code::kOutOfMemory, "out of memory for compressing records");
  std::unique_ptr<RecordCodec> codec(new RecordCodec(std::move(memory), record_bytes, element_bytes));
  if (codec->compressor_ && codec->decompressor_) return codec;
  return Status(Code::kInternal, "zstd refuses its working memory");
}

RecordCodec::RecordCodec(HostMemory memory, int64_t record_bytes, int64_t element_bytes)
    : element_bytes_(element_bytes), n_elements_(record_bytes / element_bytes), memory_(std::move(memory)) {
  auto* at = static_cast<std::byte*>(memory_.data());
  const auto take = [&](int64_t bytes) { return std::exchange(at, at + bytes); };
  const auto compressor = compressor_bytes(n_elements_), decompressor = decompressor_bytes();
  compressor_ = ZSTD_initStaticCCtx(take(compressor), static_cast<size_t>(compressor));
  decompressor_ = ZSTD_initStaticDCtx(take(decompressor), static_cast<size_t>(decompressor));
  plane_ = take(round_up(n_elements_, kAlignment));
  packed_ = at;
  if (!compressor_) return;
  auto* const zstd = static_cast<ZSTD_CCtx*>(compressor_);
  ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(zstd, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);  // which levels below 0 leave out
}

Result<std::span<const std::byte>> RecordCodec::compress(const void* record) {
  const auto* from = static_cast<const std::byte*>(record);
  const auto n = static_cast<size_t>(n_elements_);
  std::array<uint32_t, kMostPlanes> sizes{};
  std::byte* to = packed_ + header_bytes(element_bytes_);
  for (int64_t p = 0; p < element_bytes_; ++p) {
    gather_plane(from + p, element_bytes_, n_elements_, plane_);
    // Without room for a byte less than the plane has, it fails: then the plane does not compress.
    size_t size = ZSTD_compress2(static_cast<ZSTD_CCtx*>(compressor_), to, n - 1, plane_, n);
    if (ZSTD_isError(size) != 0) {
      if (ZSTD_getErrorCode(size) != ZSTD_error_dstSize_tooSmall) {
        return Status(Code::kInternal, std::string("zstd: ") + ZSTD_getErrorName(size));
      }
      size = n;
      std::memcpy(to, plane_, n);
    }
    sizes[static_cast<size_t>(p)] = static_cast<uint32_t>(size);
    to += size;
  }
  const auto planes = static_cast<size_t>(element_bytes_);
  const auto checksum = content_checksum({from, n * planes});
  std::memcpy(packed_, sizes.data(), planes * sizeof sizes[0]);
  std::memcpy(packed_ + planes * sizeof sizes[0], checksum.data(), kChecksumBytes);
  return std::span<const std::byte>(packed_, to);
}

Status RecordCodec::decompress(std::span<const std::byte> packed, void* record) {
  const auto damaged = [] { return Status(Code::kInternal, "a compressed record is damaged"); };
  const auto n = static_cast<size_t>(n_elements_), planes = static_cast<size_t>(element_bytes_);
  const auto header = static_cast<size_t>(header_bytes(element_bytes_));
  if (packed.size() < header) return damaged();
  std::array<uint32_t, kMostPlanes> sizes{};
  std::array<std::byte, kChecksumBytes> checksum;
  std::memcpy(sizes.data(), packed.data(), planes * sizeof sizes[0]);
  std::memcpy(checksum.data(), packed.data() + planes * sizeof sizes[0], kChecksumBytes);
  std::span<const std::byte> rest = packed.subspan(header);
  auto* const to = static_cast<std::byte*>(record);
  for (size_t p = 0; p < planes; ++p) {
    const size_t size = sizes[p];
    if (size > n || size > rest.size()) return damaged();
    const std::byte* plane = rest.data();
    if (size < n) {
      if (ZSTD_decompressDCtx(static_cast<ZSTD_DCtx*>(decompressor_), plane_, n, plane, size) != n) return damaged();
      plane = plane_;
    }
    scatter_plane(plane, element_bytes_, n_elements_, to + p);
    rest = rest.subspan(size);
  }
  if (!rest.empty() || content_checksum({to, n * planes}) != checksum) return damaged();
  return {};
}

}  // namespace quire
