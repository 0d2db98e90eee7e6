// What parsing costs, counted in allocations and comparisons of names: for n names about n log n, never n * n.
//
// The counts come from this program's own operator new and memcmp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <new>
#include <string>

#include "lib/format/safetensors.h"

namespace {

int64_t n_allocations = 0;
int64_t n_comparisons = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++n_allocations;
  void* memory = std::malloc(size ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" int memcmp(const void* a, const void* b, std::size_t n) noexcept {
  ++n_comparisons;
  const auto* x = static_cast<const volatile unsigned char*>(a);  // volatile: or this loop would become memcmp
  const auto* y = static_cast<const volatile unsigned char*>(b);
  for (std::size_t i = 0; i < n; ++i) {
    const int difference = x[i] - y[i];
    if (difference != 0) return difference;
  }
  return 0;
}

namespace quire {
namespace {

struct Work {
  double allocations, comparisons;
};

// Of parsing a text of n names.
template <typename Parse>
Work work(const Parse& parse, const std::string& text) {
  n_allocations = n_comparisons = 0;
  const bool parsed = parse(text);
  const Work done{static_cast<double>(n_allocations), static_cast<double>(n_comparisons)};
  EXPECT_TRUE(parsed);
  return done;
}

std::string name(int64_t i) {
  const std::string digits = std::to_string(i * 7919 % 1'000'003);  // not in order
  return "layers." + std::string(7 - digits.size(), '0') + digits;
}

std::string header(int64_t n) {
  std::string text = "{";
  for (int64_t i = 0; i < n; ++i) {
    text += (i ? ",\"" : "\"") + name(i) + R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(4 * i) +
            "," + std::to_string(4 * i + 4) + "]}";
  }
  return text + "}";
}

std::string index(int64_t n) {
  std::string text = R"({"weight_map":{)";
  for (int64_t i = 0; i < n; ++i) {
    text += (i ? ",\"" : "\"") + name(i) + R"(":"model-)" + std::to_string(i % 4096) + R"(.safetensors")";
  }
  return text + "}}";
}

constexpr int64_t kFew = 1000, kMany = 32 * kFew;

// 32 times the names: 32 times the allocations, and comparisons that grow with the logarithm beside that.
void expect_nearly_linear(const Work& few, const Work& many) {
  const double times = static_cast<double>(kMany) / kFew;
  const double deeper = std::log2(static_cast<double>(kMany)) / std::log2(static_cast<double>(kFew));
  EXPECT_GT(few.comparisons, kFew);  // they are counted
  EXPECT_GT(few.allocations, kFew);
  EXPECT_LT(many.allocations, few.allocations * times * 1.1);
  EXPECT_LT(many.comparisons, few.comparisons * times * deeper * 1.2);
}

TEST(ParsingWork, OfAHeader) {
  const auto parse = [](int64_t n) {
    return [n](const std::string& text) { return parse_safetensors_header(text, 0, 4 * n).ok(); };
  };
  expect_nearly_linear(work(parse(kFew), header(kFew)), work(parse(kMany), header(kMany)));
}

TEST(ParsingWork, OfAShardIndex) {
  const auto parse = [](const std::string& text) { return parse_shard_index(text, "index.json").ok(); };
  expect_nearly_linear(work(parse, index(kFew)), work(parse, index(kMany)));
}

}  // namespace
}  // namespace quire
