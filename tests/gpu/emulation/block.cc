#include "tests/gpu/emulation/block.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <thread>

#include "tests/gpu/emulation/races.h"

namespace quire::emulation {

namespace {

struct Copy {
  void* target;
  const void* source;
  int bytes;
  bool whole;
};

struct Product {
  float* sums;
  std::function<void(float*)> add;
};

// Where lanes of a warp meet. Two sets of slots in turn, so that a lane may read those of the last meeting while
// another one is at the next.
struct Meeting {
  unsigned generation = 0;
  unsigned lanes = 0;  // that have come
  const char* name = nullptr;
  Slots slots[2];
};

struct Barrier {
  unsigned generation = 0;
  int n_waiting = 0;
};

constexpr int kBarriers = 16;
constexpr int kWarpgroup = 4 * kWarp;
constexpr std::align_val_t kSharedAlignment{1024};
LaunchOptions launch_options;
thread_local Block* running = nullptr;

}  // namespace

struct Thread {
  Index3 index;
  int number = 0;  // in the block
  Fiber fiber;
  std::vector<std::vector<Copy>> committed;
  std::vector<Copy> open;
  std::vector<std::vector<Product>> committed_products;
  std::vector<Product> open_products;
  std::map<float*, std::vector<float>> sums;  // what products that are not done add to
  bool may_begin = false;                     // products: since begin_products(), until some are waited for
  bool shown = true;                          // to products: what it copied
  int n_products = 0;
  unsigned barriers = 0, meetings = 0;  // of Moment
};

class Block {
 public:
  Block(Index3 grid, Index3 size, size_t shared_bytes, const std::function<void()>& body, const Reach& reach,
        LaunchHistory& history);
  // Throws Fault.
  void run(Index3 index, std::mt19937_64& random);

  Thread& thread() { return *current_; }
  const Index3& index() const { return index_; }
  const Index3& size() const { return size_; }
  const Index3& grid() const { return grid_; }
  unsigned char* shared() { return shared_.get(); }

  void barrier(int id, int count);
  const Slots& meet(unsigned mask, const void* value, size_t bytes, const char* name,
                    const std::function<void(Slots&, unsigned)>& finish);
  [[noreturn]] void fail(const char* what, const char* more = "");
  // as_one: by one instruction.
  void accessed(const void* memory, size_t bytes, Access access, bool as_one);
  // The first products of a launch. Their operands are kept in memory that is not the device's.
  void begin_products() { has_products_ = true; }

 private:
  int warp() const { return current_->number / kWarp; }
  void resume(Thread& thread);
  void round(std::mt19937_64& random);
  void run_ahead();
  void thread_body();

  const Index3 grid_, size_;
  const std::function<void()>& kernel_;
  const Reach& reach_;
  const std::function<void()> body_;
  Index3 index_;
  std::vector<Thread> threads_;
  std::vector<int> order_;
  std::vector<Meeting> meetings_;  // [warp][lowest lane of the mask]
  std::vector<unsigned> ended_;    // lanes, by warp
  Barrier barriers_[kBarriers];
  struct Release {
    void operator()(unsigned char* memory) const { ::operator delete[](memory, kSharedAlignment); }
  };
  const size_t shared_bytes_;
  std::unique_ptr<unsigned char[], Release> shared_;  // not a byte more, so that tools see what lies beyond
  Thread* current_ = nullptr;
  int n_live_ = 0;
  uint64_t progress_ = 0;  // grows with all that lets some thread go on
  std::string fault_;
  std::vector<ByteHistory> shared_history_;  // by byte, where accesses are told
  LaunchHistory& launch_history_;
  bool has_products_ = false;
  bool is_no_kernel_ = false;  // what runs now and may tell of accesses, too
};

Block::Block(Index3 grid, Index3 size, size_t shared_bytes, const std::function<void()>& body, const Reach& reach,
             LaunchHistory& history)
    : grid_(grid),
      size_(size),
      kernel_(body),
      reach_(reach),
      body_([this] { thread_body(); }),
      threads_(size.x * size.y * size.z),
      order_(threads_.size()),
      shared_bytes_(shared_bytes),
      shared_(new (kSharedAlignment) unsigned char[shared_bytes]),
      shared_history_(accesses_are_told() ? shared_bytes : 0),
      launch_history_(history) {
  const size_t n_warps = (threads_.size() + kWarp - 1) / kWarp;
  meetings_.resize(n_warps * kWarp);
  ended_.resize(n_warps);
  for (size_t i = 0; i < threads_.size(); ++i) {
    const auto n = static_cast<unsigned>(i);
    threads_[i].number = static_cast<int>(i);
    threads_[i].index = {n % size.x, n / size.x % size.y, n / (size.x * size.y)};
    order_[i] = static_cast<int>(i);
  }
  if (launch_options.schedule == Schedule::kReverse) std::ranges::reverse(order_);
}

void Block::thread_body() {
  kernel_();
  Thread& self = *current_;
  if (!self.open.empty() || !self.committed.empty()) fail("a thread ends with copies that it did not wait for");
  if (!self.sums.empty()) fail("a thread ends with products that it did not wait for");
  const Thread& first = threads_[static_cast<size_t>(self.number / kWarpgroup * kWarpgroup)];
  if (first.fiber.ended() && first.n_products != self.n_products) {
    fail("threads of a warpgroup take part in different products");
  }
  ended_[static_cast<size_t>(warp())] |= 1u << (self.number % kWarp);
  --n_live_;
  ++progress_;
}

// The threads stop where they are: run() sees the fault.
void Block::fail(const char* what, const char* more) {
  is_no_kernel_ = true;
  const auto text = [](const Index3& i) {
    return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
  };
  fault_ = std::string(what) + more + "; block " + text(index_) + ", thread " + text(current_->index);
  for (;;) current_->fiber.yield();
}

void Block::resume(Thread& thread) {
  if (thread.fiber.ended()) return;
  current_ = &thread;
  thread.fiber.resume();
  if (!fault_.empty()) throw Fault(fault_);
}

void Block::round(std::mt19937_64& random) {
  if (launch_options.schedule == Schedule::kRandom) std::ranges::shuffle(order_, random);
  for (const int i : order_) resume(threads_[static_cast<size_t>(i)]);
}

// Each warp in turn, until none of its threads gets further.
void Block::run_ahead() {
  const size_t n_warps = ended_.size();
  for (size_t w = 0; w < n_warps; ++w) {
    const size_t warp = launch_options.schedule == Schedule::kAheadReverse ? n_warps - 1 - w : w;
    const size_t begin = warp * kWarp, end = std::min(begin + kWarp, threads_.size());
    for (uint64_t before = progress_ - 1; before != progress_;) {
      before = progress_;
      for (size_t i = begin; i < end; ++i) resume(threads_[i]);
    }
  }
}

void Block::run(Index3 index, std::mt19937_64& random) {
  running = this;
  is_no_kernel_ = false;
  index_ = index;
  n_live_ = static_cast<int>(threads_.size());
  std::ranges::fill(ended_, 0u);
  for (Barrier& b : barriers_) b.n_waiting = 0;
  for (Meeting& m : meetings_) m.lanes = 0;
  std::memset(shared_.get(), 0xff, shared_bytes_);
  std::ranges::fill(shared_history_, ByteHistory());
  for (Thread& thread : threads_) {
    thread.open.clear();
    thread.committed.clear();
    thread.open_products.clear();
    thread.committed_products.clear();
    thread.sums.clear();
    thread.may_begin = false;
    thread.shown = true;
    thread.n_products = 0;
    thread.barriers = thread.meetings = 0;
    thread.fiber.start(body_);
  }
  const bool ahead = launch_options.schedule == Schedule::kAhead || launch_options.schedule == Schedule::kAheadReverse;
  while (n_live_ > 0) {
    const uint64_t before = progress_;
    if (ahead) {
      run_ahead();
    } else {
      round(random);
    }
    if (n_live_ == 0 || progress_ != before) continue;
    const auto waiting = std::ranges::find_if(threads_, [](const Thread& t) { return !t.fiber.ended(); });
    throw Fault("threads wait at barriers or in collectives that the others never reach; the first is thread " +
                std::to_string(waiting->number) + " of block " + std::to_string(index_.x));
  }
  running = nullptr;
}

void Block::barrier(int id, int count) {
  Barrier& b = barriers_[id];
  const unsigned generation = b.generation;
  ++b.n_waiting;
  ++progress_;
  if (count == 0) ++current_->barriers;
  while (b.generation == generation) {
    if (b.n_waiting >= (count > 0 ? count : n_live_)) {  // threads that have ended are not waited for
      b.n_waiting = 0;
      ++b.generation;
      ++progress_;
      return;
    }
    current_->fiber.yield();
  }
}

const Slots& Block::meet(unsigned mask, const void* value, size_t bytes, const char* name,
                         const std::function<void(Slots&, unsigned)>& finish) {
  Thread& self = *current_;
  const auto own_warp = static_cast<size_t>(warp());
  const int own_lane = self.number % kWarp;
  if ((mask >> own_lane & 1) == 0) fail(name, " by a lane that is not in its mask");
  Meeting& m = meetings_[own_warp * kWarp + static_cast<size_t>(std::countr_zero(mask))];
  if (m.lanes != 0 && m.name != name && std::strcmp(m.name, name) != 0) {
    fail("lanes of a warp meet in another collective than ", name);
  }
  m.name = name;
  const unsigned generation = m.generation;
  Slots& slots = m.slots[generation & 1];
  if (bytes > 0) std::memcpy(slots.bytes[own_lane], value, bytes);
  m.lanes |= 1u << own_lane;
  ++progress_;
  if (mask == kAllLanes && bytes == 0 && std::strcmp(name, "__syncwarp") == 0) ++self.meetings;
  while (m.generation == generation) {
    if (((m.lanes | ended_[own_warp]) & mask) == mask) {
      if (finish) finish(slots, m.lanes);
      m.lanes = 0;
      ++m.generation;
      ++progress_;
      break;
    }
    self.fiber.yield();
  }
  return slots;
}

void Block::accessed(const void* memory, size_t bytes, Access access, bool as_one) {
  const auto is_in = [&](const void* begin, size_t n) {
    return reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(begin) < n;
  };
  const bool is_shared = is_in(shared_.get(), shared_bytes_);
  const bool is_own = current_->fiber.has_on_stack(memory) ||
                      is_in(meetings_.data(), meetings_.size() * sizeof(Meeting)) ||
                      is_in(threads_.data(), threads_.size() * sizeof(Thread)) || is_in(this, sizeof *this);
  if (is_no_kernel_ || (!is_shared && is_own)) return;
  if (as_one && reinterpret_cast<uintptr_t>(memory) % bytes != 0) fail("a misaligned access");
  if (!is_shared && has_products_) return;
  if (!is_shared && reach_) {
    is_no_kernel_ = true;
    const bool reached = reach_(memory, bytes);
    is_no_kernel_ = false;
    if (!reached) fail("memory that the device cannot reach");
  }
  const auto* const first = static_cast<const unsigned char*>(memory);
  const Moment now{index_.x + grid_.x * (index_.y + grid_.y * index_.z), current_->number, current_->barriers,
                   current_->meetings};
  for (size_t i = 0; i < bytes; ++i) {
    const auto at = static_cast<size_t>(first + i - shared_.get());
    Moment other;
    if (!(is_shared ? shared_history_[at].races(now, access, other)
                    : launch_history_.races(first + i, now, access, other))) {
      continue;
    }
    static thread_local char text[128];
    if (is_shared) {
      std::snprintf(text, sizeof text, "a race with thread %d: byte %zu of shared memory", other.thread, at);
    } else {
      std::snprintf(text, sizeof text, "a race with thread %d of block %u", other.thread, other.block);
    }
    fail(text);
  }
}

// ---- launches

void set_launch_options(const LaunchOptions& options) { launch_options = options; }

void launch(Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body, const Reach& reach) {
  const unsigned total = grid.x * grid.y * grid.z;
  std::atomic<unsigned> next = 0;
  std::mutex mutex;
  std::exception_ptr fault;
  LaunchHistory history;
  const auto work = [&] {
    try {
      Block runner(grid, block, shared_bytes, body, reach, history);
      std::mt19937_64 random(launch_options.seed);
      for (unsigned i; (i = next++) < total;) {
        runner.run({i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)}, random);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      fault = std::current_exception();
      next = total;
    }
    running = nullptr;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < launch_options.n_threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (fault) std::rethrow_exception(fault);
}

// ---- for the thread that runs

Block& this_block() { return *running; }
const Index3& thread_index() { return running->thread().index; }
const Index3& block_index() { return running->index(); }
const Index3& block_size() { return running->size(); }
const Index3& grid_size() { return running->grid(); }
unsigned char* shared_memory() { return running->shared(); }
int lane() { return running->thread().number % kWarp; }
void barrier(int id, int count) { running->barrier(id, count); }
void fail(const char* what, const char* more) { running->fail(what, more); }

const Slots& meet(unsigned mask, const void* value, size_t bytes, const char* name,
                  const std::function<void(Slots&, unsigned)>& finish) {
  return running->meet(mask, value, bytes, name, finish);
}

void accessed(const void* memory, size_t bytes, Access access) {
  if (running != nullptr && accesses_are_told()) running->accessed(memory, bytes, access, false);
}

void accessed_as_one(const void* memory, size_t bytes, Access access) {
  if (running != nullptr && accesses_are_told()) running->accessed(memory, bytes, access, true);
}

void copy_async(void* target, const void* source, int bytes, bool whole) {
  const auto misaligned = [&](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) != 0;
  };
  if (misaligned(target) || (whole && misaligned(source))) fail("a misaligned asynchronous copy");
  accessed(target, static_cast<size_t>(bytes), Access::kWrite);
  if (whole) accessed(source, static_cast<size_t>(bytes), Access::kRead);
  std::memset(target, 0xff, static_cast<size_t>(bytes));
  running->thread().open.push_back({target, source, bytes, whole});
}

void commit_copies() {
  Thread& self = running->thread();
  self.committed.push_back(std::move(self.open));
  self.open.clear();
}

void wait_for_copies(size_t but_the_last) {
  Thread& self = running->thread();
  while (self.committed.size() > but_the_last) {
    if (!self.committed.front().empty()) self.shown = false;
    for (const Copy& copy : self.committed.front()) {
      accessed(copy.target, static_cast<size_t>(copy.bytes), Access::kWrite);
      if (copy.whole) {
        std::memcpy(copy.target, copy.source, static_cast<size_t>(copy.bytes));
      } else {
        std::memset(copy.target, 0, static_cast<size_t>(copy.bytes));
      }
    }
    self.committed.erase(self.committed.begin());
  }
}

void begin_products() {
  running->begin_products();
  running->thread().may_begin = true;
}

void begin_product(float* sums, size_t n, std::function<void(float*)> add) {
  Thread& self = running->thread();
  if (!self.may_begin) fail("a product that begin_products() does not precede");
  if (!self.shown) fail("a product of what was not shown to products");
  if (!self.sums.contains(sums)) {
    self.sums[sums].assign(sums, sums + n);
    std::memset(sums, 0xff, n * sizeof *sums);
  }
  self.open_products.push_back({sums, std::move(add)});
  ++self.n_products;
}

void commit_products() {
  Thread& self = running->thread();
  self.committed_products.push_back(std::move(self.open_products));
  self.open_products.clear();
}

void wait_for_products(size_t but_the_last) {
  Thread& self = running->thread();
  self.may_begin = false;
  if (!self.open_products.empty()) fail("products that are waited for and were not committed");
  std::vector<std::vector<Product>>& groups = self.committed_products;
  const size_t n_done = groups.size() - std::min(groups.size(), but_the_last);
  for (size_t g = 0; g < n_done; ++g) {
    for (const Product& product : groups[g]) product.add(self.sums[product.sums].data());
  }
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(n_done));
  std::erase_if(self.sums, [&](const auto& held) {
    const auto adds_to_it = [&](const Product& product) { return product.sums == held.first; };
    if (std::ranges::any_of(groups, [&](const auto& g) { return std::ranges::any_of(g, adds_to_it); })) return false;
    std::ranges::copy(held.second, held.first);
    return true;
  });
}

void show_to_products() { running->thread().shown = true; }

}  // namespace quire::emulation
