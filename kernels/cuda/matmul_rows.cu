#include "kernels/cuda/matmul_rows.h"

#include "kernels/cuda/matmul.h"

namespace quire::cuda {
namespace {

unsigned blocks_for(int64_t columns) {
  constexpr int64_t kColumns = kRowsThreads / kWarpSize;
  return static_cast<unsigned>((columns + kColumns - 1) / kColumns);
}

}  // namespace

int matmul_rows(Stream stream, const MatmulArgs& args) {
  return with_type(args.w.type, [&](auto w) {
    return with_type(args.x.type, [&](auto x) {
      return with_rows(args.n_rows, [&](auto rows) {
        return launch(matmul_rows_kernel<decltype(w), decltype(x), decltype(rows)::value>, blocks_for(args.w.n),
                      kRowsThreads, 0, stream, args);
      });
    });
  });
}

int matmul(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
           DeviceRows y) {
  if (w.n == 0 || n_rows == 0) return 0;
  if (n_rows > kFewRows) return matmul_tiles(stream, {x, n_rows, w, bias, add, y});
  const MatmulArgs args{x, n_rows, w, bias, add, y};
  return is_quantized(w.type) ? matmul_rows_quantized(stream, args) : matmul_rows(stream, args);
}

}  // namespace quire::cuda
