#include "lib/support/allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

namespace quire {
namespace {

TEST(Allocator, SystemMemoryIsAlignedAndCounted) {
  Allocator allocator;
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{100'000}, size_t{1} << 21, size_t{5'000'001}}) {
    void* memory = allocator.allocate(size);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % Allocator::kAlignment, 0u);
    EXPECT_GE(allocator.bytes(), static_cast<int64_t>(size));
    std::memset(memory, 0xAB, size);
    allocator.deallocate(memory, size);
    EXPECT_EQ(allocator.bytes(), 0);
  }
}

// A host that keeps books: every block must come back with the size and alignment it was asked for with.
struct Host {
  std::map<void*, std::pair<size_t, size_t>> blocks;
  int n_wrong = 0;
  bool exhausted = false;

  static void* alloc(void* user, size_t size, size_t alignment) {
    auto* host = static_cast<Host*>(user);
    if (host->exhausted) return nullptr;
    void* memory = ::operator new(size, std::align_val_t(alignment));
    host->blocks[memory] = {size, alignment};
    return memory;
  }
  static void free(void* user, void* memory, size_t size, size_t alignment) {
    auto* host = static_cast<Host*>(user);
    const auto at = host->blocks.find(memory);
    if (at == host->blocks.end() || at->second != std::pair(size, alignment)) {
      ++host->n_wrong;
      return;
    }
    host->blocks.erase(at);
    ::operator delete(memory, std::align_val_t(alignment));
  }
};

TEST(Allocator, CallbacksSeeEveryBlockOnce) {
  Host host;
  Allocator allocator(Host::alloc, Host::free, &host);
  {
    HostMemory a(allocator, 100), b(allocator, 0);
    EXPECT_TRUE(a);
    EXPECT_EQ(a.size(), 100u);
    EXPECT_EQ(host.blocks.size(), 2u);
    HostMemory moved(std::move(a));
    EXPECT_FALSE(a);  // NOLINT: what is left after a move is part of the contract
    EXPECT_EQ(a.size(), 0u);
    b = std::move(moved);
    EXPECT_EQ(b.size(), 100u);
    EXPECT_EQ(allocator.bytes(), 101);
  }
  EXPECT_TRUE(host.blocks.empty());
  EXPECT_EQ(host.n_wrong, 0);
  EXPECT_EQ(allocator.bytes(), 0);
}

TEST(Allocator, RefusalLeavesNothingBehind) {
  Host host;
  host.exhausted = true;
  Allocator allocator(Host::alloc, Host::free, &host);
  HostMemory memory(allocator, 1 << 20);
  EXPECT_FALSE(memory);
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_EQ(memory.size(), 0u);
  EXPECT_EQ(allocator.bytes(), 0);
}

}  // namespace
}  // namespace quire
