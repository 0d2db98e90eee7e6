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
  if (w.n == 0) return 0;
  if (n_rows > kFewRows) return matmul_tiles(stream, {x, n_rows, w, bias, add, y});
  const auto at = [](DeviceRows rows, int64_t row) {
    const auto bytes = static_cast<int64_t>(element_bytes(rows.type));
    rows.data = static_cast<char*>(rows.data) + row * rows.stride * bytes;
    return rows;
  };
  for (int64_t row = 0; row < n_rows;) {
    const MatmulArgs args{at(x, row), n_rows - row, w, bias, add, at(y, row)};
    const int error = is_quantized(w.type) ? matmul_rows_quantized(stream, args) : matmul_rows(stream, args);
    if (error != 0) return error;
    row += with_rows(n_rows - row, [](auto rows) { return decltype(rows)::value; });
  }
  return 0;
}

}  // namespace quire::cuda
