#include "tests/gpu/emulation/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIRE_EMULATION_ASAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define QUIRE_EMULATION_ASAN
#endif

#if defined(QUIRE_EMULATION_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace quire::emulation {
namespace {

#if defined(QUIRE_EMULATION_ASAN)
constexpr size_t kStackBytes = size_t{256} << 10;
#else
constexpr size_t kStackBytes = size_t{64} << 10;
#endif

thread_local Fiber* starting = nullptr;  // whose enter() runs next
// Stacks of fibers that are gone, for those to come: a launch has hundreds, and to ask the system for each took longer
// than what many kernels compute.
thread_local std::vector<std::unique_ptr<char[]>> spare_stacks;
constexpr size_t kMostSpareStacks = 512;

std::unique_ptr<char[]> take_stack() {
  if (spare_stacks.empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
  std::unique_ptr<char[]> stack = std::move(spare_stacks.back());
  spare_stacks.pop_back();
  return stack;
}

#if defined(__x86_64__)
// Saves what a call must keep on the present stack, stores its pointer in *save, and takes up what lies on `load`.
extern "C" void quire_emulation_switch(void** save, void* load);
__asm__(R"(
.text
.globl quire_emulation_switch
.hidden quire_emulation_switch
.type quire_emulation_switch,@function
quire_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size quire_emulation_switch,.-quire_emulation_switch
)");
#endif

}  // namespace

Fiber::Fiber() : stack_(take_stack()) {}

Fiber::~Fiber() {
#if defined(QUIRE_EMULATION_ASAN)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);  // of frames that never returned
#endif
  if (spare_stacks.size() < kMostSpareStacks) spare_stacks.push_back(std::move(stack_));
}

void Fiber::start(const std::function<void()>& body) {
  body_ = &body;
  ended_ = false;
#if defined(QUIRE_EMULATION_ASAN)
  __asan_unpoison_memory_region(stack_.get(), kStackBytes);
#endif
#if defined(__x86_64__)
  // As if enter() had been called at the top, with a return address of null, and had been switched away from at once.
  constexpr int kSavedRegisters = 6;
  void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack_.get() + kStackBytes) & ~uintptr_t{15});
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  own_ = top;
#else
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::enter, 0);
#endif
}

void Fiber::enter() {
  Fiber& self = *starting;
#if defined(QUIRE_EMULATION_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &self.caller_stack_, &self.caller_stack_bytes_);
#endif
  (*self.body_)();
  self.ended_ = true;
  self.leave(true);
  std::abort();  // nobody resumes a fiber that has ended
}

void Fiber::resume() {
  starting = this;
#if defined(QUIRE_EMULATION_ASAN)
  __sanitizer_start_switch_fiber(&caller_frames_, stack_.get(), kStackBytes);
#endif
#if defined(__x86_64__)
  quire_emulation_switch(&caller_, own_);
#else
  swapcontext(&caller_, &own_);
#endif
#if defined(QUIRE_EMULATION_ASAN)
  __sanitizer_finish_switch_fiber(caller_frames_, nullptr, nullptr);
#endif
}

void Fiber::yield() { leave(false); }

bool Fiber::has_on_stack(const void* p) const {
  const auto at = reinterpret_cast<uintptr_t>(p), begin = reinterpret_cast<uintptr_t>(stack_.get());
  return at >= begin && at - begin < kStackBytes;
}

void Fiber::leave([[maybe_unused]] bool for_good) {
#if defined(QUIRE_EMULATION_ASAN)
  void* frames = nullptr;
  __sanitizer_start_switch_fiber(for_good ? nullptr : &frames, caller_stack_, caller_stack_bytes_);
#endif
#if defined(__x86_64__)
  quire_emulation_switch(&own_, caller_);
#else
  swapcontext(&own_, &caller_);
#endif
#if defined(QUIRE_EMULATION_ASAN)
  __sanitizer_finish_switch_fiber(frames, &caller_stack_, &caller_stack_bytes_);
#endif
}

}  // namespace quire::emulation
