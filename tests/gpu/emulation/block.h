// Runs a kernel as CUDA would: a grid of blocks, whose threads meet at barriers and in collectives of their warp.
//
// Each thread of a block is a fiber, and the blocks go over OS threads. It is stricter than a GPU, so that faults show:
// - Shared memory is all ones (NaN) when a block begins.
// - What an asynchronous copy writes is all ones from its issue until it is waited for, and so is what products of
//   warpgroups add to; they read shared memory when they are waited for.
// - Threads run in the order of the schedule. Each order is one that a GPU may take.
// - Lanes of a warp that meet in different collectives, a shuffle from a lane that takes no part, misaligned copies,
//   copies that nobody waits for, and barriers that some threads never reach end the launch with an error.
// - Code that is compiled with -fsanitize=thread may have no races, whether or not an order shows them (races.h), may
//   touch nothing that the launch cannot reach, and no number at an address that is no multiple of its size.
// What it cannot show: missing fences between blocks, wrong text of inline PTX, speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu/emulation/fiber.h"

namespace quire::emulation {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

// In which order the threads of a block run.
enum class Schedule {
  kForward,  // one after the other, each up to where it has to wait
  kReverse,
  kRandom,       // another order in each round; the seed fixes it
  kAhead,        // each warp as far as barriers allow before the next one runs
  kAheadReverse  // the last warp first
};

struct LaunchOptions {
  Schedule schedule = Schedule::kForward;
  uint64_t seed = 1;
  int n_threads = 1;  // of the OS
};
// Of all launches from here on. Not while one runs.
void set_launch_options(const LaunchOptions& options);

// What a kernel did that a GPU does not allow: which, and in which block and thread.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whether a kernel can reach all of this memory, beside that of its blocks and threads. Threads of the OS call it
// together.
using Reach = std::function<bool(const void* memory, size_t bytes)>;

// Runs body once for each thread of the grid. reach: empty: all there is. Throws Fault; what the kernel wrote is
// undefined then.
void launch(Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body, const Reach& reach = {});

// ---- for the thread that runs (of a kernel)

class Block;
struct Thread;
Block& this_block();
const Index3& thread_index();
const Index3& block_index();
const Index3& block_size();
const Index3& grid_size();
unsigned char* shared_memory();
int lane();

// Waits until `count` threads (0: all that have not ended) have come to barrier `id`.
void barrier(int id = 0, int count = 0);

// What each lane of a warp brings to a collective: at most this many bytes.
constexpr size_t kSlotBytes = 64;
struct Slots {
  alignas(64) unsigned char bytes[kWarp][kSlotBytes];
};
// All lanes of `mask` that have not ended bring `bytes` of `value`; the last one to come calls finish(slots, lanes).
// Returns what the slots have then. `name`: which collective this is, a literal.
const Slots& meet(unsigned mask, const void* value, size_t bytes, const char* name,
                  const std::function<void(Slots&, unsigned)>& finish = {});

// Copies into shared memory that are done when they are waited for; zeros if `whole` is false.
void copy_async(void* target, const void* source, int bytes, bool whole);
void commit_copies();
void wait_for_copies(size_t but_the_last);

// Products of warpgroups (kernels/cuda/warpgroup.h). add(what the n sums were before) runs when it is waited for.
void begin_products();
void begin_product(float* sums, size_t n, std::function<void(float*)> add);
void commit_products();
void wait_for_products(size_t but_the_last);
// Has to be called between copies that were waited for and a product.
void show_to_products();

// Ends the launch with a Fault: literals, because what a thread has on its stack then is never destroyed.
[[noreturn]] void fail(const char* what, const char* more = "");

}  // namespace quire::emulation
