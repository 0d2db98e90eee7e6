// The kernel that copies many records in one launch: bytes, where they go, and that nothing else is touched.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/seed.h"

namespace quire::test {
namespace {

using Bytes = Shared<unsigned char>;

class Gather : public OnEverySchedule {
 protected:
  std::mt19937 random_ = seeded_random();
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << seed_trace();
  }
  Bytes random_bytes(int64_t n) {
    Bytes bytes(static_cast<size_t>(n));
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random_());
    return bytes;
  }
  // Copies pieces of these sizes from one page to another, in which they lie in another order, each behind a gap of 16
  // to 31 bytes. All of the second page is compared.
  void copy_pieces(const std::vector<int64_t>& sizes) {
    std::vector<size_t> order(sizes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<int64_t> from_place(sizes.size()), to_place(sizes.size());
    int64_t from_end = 0, to_end = 16;
    for (size_t i = 0; i < sizes.size(); ++i) {
      from_place[i] = from_end;
      from_end += (sizes[i] + 15) / 16 * 16;
      to_place[order[i]] = to_end;
      to_end += (sizes[order[i]] + 15) / 16 * 16 + 16;
    }
    const Bytes from = random_bytes(from_end + 16);
    Bytes to = random_bytes(to_end), expected = to;
    auto list = std::make_unique<cuda::GatherList>();
    for (size_t i = 0; i < sizes.size(); ++i) {
      list->copies[list->n++] = {from.data() + from_place[i], to.data() + to_place[i], sizes[i]};
      std::copy_n(from.begin() + from_place[i], sizes[i], expected.begin() + to_place[i]);
    }
    ASSERT_EQ(run(&cuda::DeviceApi::gather, *list), 0);
    EXPECT_TRUE(to == expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, Gather, kSchedules, schedule_name);

TEST_P(Gather, CopiesPiecesOfAnySize) {
  // A block copies 16384 bytes at a time, and there are 16 blocks.
  for (const int64_t bytes : {1, 15, 16, 17, 31, 4096, 16383, 16384, 16385, 32768 + 48, 16 * 16384 + 7, 300001}) {
    SCOPED_TRACE(bytes);
    copy_pieces({bytes});
  }
}

TEST_P(Gather, CopiesManyPiecesAtOnce) {
  std::vector<int64_t> sizes;
  for (int i = 0; i < cuda::kMostGathered; ++i) sizes.push_back(static_cast<int64_t>(random_() % 3000));
  sizes[5] = 0;
  sizes[7] = 70000;
  sizes.back() = 16384;
  copy_pieces(sizes);
  copy_pieces({0, 33, 0, 16, 0});
}

TEST_P(Gather, NothingToCopyIsNoLaunch) {
  copy_pieces({});
  copy_pieces({0, 0});
}

// What was copied is there for the launch behind it.
TEST_P(Gather, LaunchesComeInOrder) {
  const Bytes from = random_bytes(40000);
  Bytes first(40000), second(40000);
  const auto list = [](const Bytes& source, Bytes& target) {
    cuda::GatherList all;
    for (int64_t begin = 0; begin < 40000; begin += 8000) {
      all.copies[all.n++] = {source.data() + begin, target.data() + begin, 8000};
    }
    return all;
  };
  ASSERT_EQ(test_device().gather(test_stream(), list(from, first)), 0);
  ASSERT_EQ(test_device().gather(test_stream(), list(first, second)), 0);
  ASSERT_EQ(test_device().finish_stream(test_stream()), 0);
  EXPECT_TRUE(second == from);
}

}  // namespace
}  // namespace quire::test
