// Kernels as the CUDA runtime is given them: an address, and where the parameters lie. nvcc registers each kernel with
// the types of its parameters before main() begins; here known_kernel() does, when the kernel is launched.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace quire::emulation {

struct Kernel {
  struct Parameter {
    size_t bytes, alignment;
  };
  std::vector<Parameter> parameters;
  // Calls the function for one thread; values: where each of the parameters is.
  void (*call)(const void* function, const void* const* values) = nullptr;
};

// Makes it known to the runtime. Any thread.
void register_kernel(const void* function, Kernel kernel);

template <typename... Parameters>
const void* known_kernel(void (*kernel)(Parameters...)) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "parameters go to the device byte by byte");
  static_assert(((alignof(Parameters) <= alignof(std::max_align_t)) && ...));
  const void* const function = reinterpret_cast<const void*>(kernel);
  const auto call = [](const void* address, const void* const* values) {
    const auto typed = reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(address));
    [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
      typed(*static_cast<const Parameters*>(values[kIndices])...);
    }
    (std::index_sequence_for<Parameters...>());
  };
  register_kernel(function, {{{sizeof(Parameters), alignof(Parameters)}...}, call});
  return function;
}

}  // namespace quire::emulation
