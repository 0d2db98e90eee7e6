// The program's operator new, which replaces the standard one for the libraries that it uses, too: it counts its calls
// and fails at those that a test wants. A program that calls one of these functions has it.
#pragma once

#include <cstdint>

namespace quire::test {

// While one of these lives, calls are counted from 1 on, of all threads together, and the calls first..last fail. One
// at a time.
class FailingNew {
 public:
  FailingNew() : FailingNew(0, 0) {}  // none fails
  FailingNew(int64_t first, int64_t last);
  ~FailingNew();
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;
};

// Of the FailingNew that lives, or the last one that lived.
int64_t n_new_calls();
int64_t n_new_failures();
// Blocks that operator new gave and that have not come back, counted or not.
int64_t n_new_blocks();

// Of `total` calls in turn each that many-th is to fail, so that about `most` do, or as many as QUIRE_FAULT_RUNS says;
// 0: each call.
int64_t step_between_failures(int64_t total, int64_t most);

}  // namespace quire::test
