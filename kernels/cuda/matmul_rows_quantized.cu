#include "kernels/cuda/matmul_rows.h"

namespace quire::cuda {
namespace {

template <ElementType kType>
int launch_quantized(Stream stream, const MatmulArgs& args) {
  constexpr int64_t kColumns = kRowsThreads / kWarpSize;
  return with_type(args.x.type, [&](auto x) {
    return with_rows(args.n_rows, [&](auto rows) {
      return launch(matmul_rows_quantized_kernel<kType, decltype(x), decltype(rows)::value>,
                    static_cast<unsigned>((args.w.n + kColumns - 1) / kColumns), kRowsThreads, 0, stream, args);
    });
  });
}

}  // namespace

int matmul_rows_quantized(Stream stream, const MatmulArgs& args) {
  switch (args.w.type) {
    case ElementType::kQ8_0:
      return launch_quantized<ElementType::kQ8_0>(stream, args);
    case ElementType::kQ4_0:
      return launch_quantized<ElementType::kQ4_0>(stream, args);
    case ElementType::kQ4_1:
      return launch_quantized<ElementType::kQ4_1>(stream, args);
    case ElementType::kQ5_0:
      return launch_quantized<ElementType::kQ5_0>(stream, args);
    case ElementType::kQ5_1:
      return launch_quantized<ElementType::kQ5_1>(stream, args);
    case ElementType::kQ4_K:
      return launch_quantized<ElementType::kQ4_K>(stream, args);
    case ElementType::kQ5_K:
      return launch_quantized<ElementType::kQ5_K>(stream, args);
    case ElementType::kQ6_K:
      return launch_quantized<ElementType::kQ6_K>(stream, args);
    default:
      return kUnknownType;
  }
}

}  // namespace quire::cuda
