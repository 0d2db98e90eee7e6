// The order of a head's dimensions where a part of them is rotated.
#pragma once

#include <cstdint>

namespace quire {

// A checkpoint rotates the first rotary_dim dimensions of a head, a with a + rotary_dim / 2. The library rotates a with
// a + head_dim / 2: in queries and keys the dimensions that turn become the first of each half of a head, and those
// that stand still the last. Values stay as they are.
struct HeadOrder {
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;  // head_dim: all stay where they are

  bool moves() const { return rotary_dim != head_dim; }
  // Where in the checkpoint's order the dimension lies that is at `place` here.
  int64_t source(int64_t place) const {
    const int64_t half = head_dim / 2, turning = rotary_dim / 2, second = place / half, a = place % half;
    return a < turning ? second * turning + a : rotary_dim + second * (half - turning) + a - turning;
  }
};

}  // namespace quire
