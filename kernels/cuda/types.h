// From the element types of an operation's arguments to those of a kernel.
#pragma once

#include <type_traits>

#include "kernels/cuda/device.h"
#include "lib/support/element.h"

namespace quire::cuda {

constexpr int kUnknownType = 1;  // cudaErrorInvalidValue

// use(T()) with T the type; kUnknownType for another one.
template <typename Use>
int with_type(ElementType type, const Use& use) {
  switch (type) {
    case ElementType::kF32:
      return use(float());
    case ElementType::kBF16:
      return use(bf16());
    case ElementType::kF16:
      return use(f16());
    default:
      return kUnknownType;
  }
}

// use(std::integral_constant<ElementType, type>()); kUnknownType for another one.
template <typename Use>
int with_quantized_type(ElementType type, const Use& use) {
  switch (type) {
    case ElementType::kQ8_0:
      return use(std::integral_constant<ElementType, ElementType::kQ8_0>());
    case ElementType::kQ4_0:
      return use(std::integral_constant<ElementType, ElementType::kQ4_0>());
    case ElementType::kQ4_1:
      return use(std::integral_constant<ElementType, ElementType::kQ4_1>());
    case ElementType::kQ5_0:
      return use(std::integral_constant<ElementType, ElementType::kQ5_0>());
    case ElementType::kQ5_1:
      return use(std::integral_constant<ElementType, ElementType::kQ5_1>());
    case ElementType::kQ4_K:
      return use(std::integral_constant<ElementType, ElementType::kQ4_K>());
    case ElementType::kQ5_K:
      return use(std::integral_constant<ElementType, ElementType::kQ5_K>());
    case ElementType::kQ6_K:
      return use(std::integral_constant<ElementType, ElementType::kQ6_K>());
    case ElementType::kQ2_K:
      return use(std::integral_constant<ElementType, ElementType::kQ2_K>());
    case ElementType::kQ3_K:
      return use(std::integral_constant<ElementType, ElementType::kQ3_K>());
    case ElementType::kIQ4_NL:
      return use(std::integral_constant<ElementType, ElementType::kIQ4_NL>());
    case ElementType::kIQ4_XS:
      return use(std::integral_constant<ElementType, ElementType::kIQ4_XS>());
    default:
      return kUnknownType;
  }
}

}  // namespace quire::cuda
