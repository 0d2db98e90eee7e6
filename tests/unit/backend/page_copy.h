// What Backend::copy_representations() must do, on any backend.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {

// Pages of random bytes: the first n_chunks chunks become the other page's, and all else stays.
inline void expect_copies_of_chunks(Backend& backend, Queue& queue, Random& random) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    for (const int64_t n_chunks : {1, 15, 16, 37, 64}) {
      constexpr int kVectors = 3, kDim = 24;
      SCOPED_TRACE(std::string(element_name(type)) + ", chunks " + std::to_string(n_chunks));
      const size_t bytes = backend.representation_page_bytes(kVectors, kDim, type);
      std::vector<std::byte> neutral[2], page(bytes);
      std::unique_ptr<Buffer> pages[2];
      for (const int p : {0, 1}) {
        neutral[p].resize(bytes);
        for (std::byte& byte : neutral[p]) byte = static_cast<std::byte>(random.between(0, 255));
        backend.page_from_neutral(kVectors, kDim, type, neutral[p].data(), page.data());
        pages[p] = take(backend.allocate(bytes, MemoryKind::kDevice));
        ASSERT_TRUE(backend.upload(queue, page.data(), *pages[p], 0, bytes).ok());
        ASSERT_TRUE(finish_queue(backend, queue).ok());
      }
      ASSERT_TRUE(backend.copy_representations(queue, *pages[0], kVectors, kDim, type, n_chunks, *pages[1]).ok());
      ASSERT_TRUE(backend.download(queue, *pages[1], 0, page.data(), bytes).ok());
      ASSERT_TRUE(finish_queue(backend, queue).ok());
      std::vector<std::byte> got(bytes);
      backend.page_to_neutral(kVectors, kDim, type, page.data(), got.data());
      const size_t row = row_bytes(type, kDim), vectors = row * static_cast<size_t>(Representations::kPageChunks);
      for (size_t at = 0; at < bytes; ++at) {
        const bool copied = at % vectors < row * static_cast<size_t>(n_chunks);
        ASSERT_EQ(got[at], neutral[copied ? 0 : 1][at]) << at;
      }
    }
  }
}

}  // namespace quire::test
