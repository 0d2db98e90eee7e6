// Operations on each element of rows: the gate of the MLP, looking up rows, copying them. A thread per element.
#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

// Rows by index x of the grid, which may be as many as there are; stretches of a row by index y.
dim3 grid_for(int64_t n, int64_t width) {
  return dim3(static_cast<unsigned>(n), static_cast<unsigned>((width + kThreads - 1) / kThreads));
}

__device__ __forceinline__ int64_t column() { return static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; }

template <Activation kActivation>
__device__ __forceinline__ float activate(float z) {
  if constexpr (kActivation == Activation::kSilu) return z / (1.0f + expf(-z));
  return z / (1.0f + expf(-(z * z * 0.0713548163f + 1.5957691216f) * z));  // GELU in its tanh form
}

template <Activation kActivation, typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    glu_kernel(const In* x, int64_t x_stride, int64_t width, Out* out, int64_t out_stride) {
  const int64_t j = column();
  if (j >= width) return;
  const float gate = to_float(x[blockIdx.x * x_stride + j]);
  const float up = to_float(x[blockIdx.x * x_stride + width + j]);
  from_float(activate<kActivation>(gate) * up, out[blockIdx.x * out_stride + j]);
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const In* table, int64_t table_stride, int64_t n_table_rows, const int32_t* ids, int64_t width,
                 float scale, Out* out, int64_t out_stride) {
  const int64_t j = column();
  if (j >= width) return;
  const int32_t id = ids[blockIdx.x];
  const bool known = id >= 0 && id < n_table_rows;
  from_float(known ? to_float(table[id * table_stride + j]) * scale : 0.0f, out[blockIdx.x * out_stride + j]);
}

// A thread per group of 32 elements.
template <ElementType kType, typename Out>
__global__ void __launch_bounds__(kThreads)
    embed_quantized_kernel(DeviceMatrix table, const int32_t* ids, float scale, Out* out, int64_t out_stride) {
  const int64_t group = column();
  if (group >= table.k / kGroup) return;
  const int32_t id = ids[blockIdx.x];
  Out* const to = out + blockIdx.x * out_stride + group * kGroup;
  if (id < 0 || id >= table.n) {
    for (int j = 0; j < kGroup; ++j) from_float(0.0f, to[j]);
    return;
  }
  for_group<kType>(static_cast<const uint8_t*>(table.data) + id * table.row_bytes,
                   static_cast<int>(table.k / block_format(kType).elements), static_cast<int>(group),
                   [&](int j, float v) { from_float(v * scale, to[j]); });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scale_rows_kernel(T* x, int64_t stride, int64_t width, float by) {
  const int64_t j = column();
  if (j < width) from_float(to_float(x[blockIdx.x * stride + j]) * by, x[blockIdx.x * stride + j]);
}

// A thread per element that is not rotated.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    scale_unrotated_kernel(T* x, int64_t stride, int64_t heads, int head_dim, int rotary_dim, float by) {
  const int still = (head_dim - rotary_dim) / 2;  // of a half
  const int64_t j = column();
  if (j >= 2 * heads * still) return;
  T& element = x[blockIdx.x * stride + j / still * (head_dim / 2) + rotary_dim / 2 + j % still];
  from_float(to_float(element) * by, element);
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const In* from, int64_t from_stride, int64_t width, Out* to, int64_t to_stride) {
  const int64_t j = column();
  if (j < width) from_float(to_float(from[blockIdx.x * from_stride + j]), to[blockIdx.x * to_stride + j]);
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    copy_to_turn_kernel(const In* from, int64_t from_stride, int64_t width, Out* to, int64_t to_stride,
                        const int64_t* first, int64_t first_row, int64_t period) {
  const int64_t j = column(), row = (*first + first_row + blockIdx.x) % period;
  if (j < width) from_float(to_float(from[blockIdx.x * from_stride + j]), to[row * to_stride + j]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    write_row_kernel(const float* row, int64_t width, bool add, T* to, int64_t to_stride) {
  const int64_t j = column();
  if (j >= width) return;
  T& element = to[blockIdx.x * to_stride + j];
  from_float(row[j] + (add ? to_float(element) : 0.0f), element);
}

// use(In(), Out()) with the types of both.
template <typename Use>
int with_types(const DeviceRows& in, const DeviceRows& out, const Use& use) {
  return with_type(in.type, [&](auto from) { return with_type(out.type, [&](auto to) { return use(from, to); }); });
}

}  // namespace

int gated_linear_unit(Stream stream, Activation activation, DeviceRows x, int64_t n, int64_t width, DeviceRows out) {
  if (n == 0) return 0;
  return with_types(x, out, [&](auto in, auto to) {
    using In = decltype(in);
    using Out = decltype(to);
    auto* const kernel = activation == Activation::kSilu ? &glu_kernel<Activation::kSilu, In, Out>
                                                         : &glu_kernel<Activation::kGelu, In, Out>;
    return launch(kernel, grid_for(n, width), kThreads, 0, stream, static_cast<const In*>(x.data), x.stride, width,
                  static_cast<Out*>(out.data), out.stride);
  });
}

int embed(Stream stream, const DeviceMatrix& table, const int32_t* ids, int64_t n, float scale, DeviceRows out) {
  if (n == 0) return 0;
  if (is_quantized(table.type)) {
    return with_quantized_type(table.type, [&](auto type) {
      return with_type(out.type, [&](auto to) {
        return launch(embed_quantized_kernel<type.value, decltype(to)>, grid_for(n, table.k / kGroup), kThreads, 0,
                      stream, table, ids, scale, static_cast<decltype(to)*>(out.data), out.stride);
      });
    });
  }
  const auto stride = table.row_bytes / static_cast<int64_t>(element_bytes(table.type));
  const DeviceRows rows{const_cast<void*>(table.data), stride, table.type};
  return with_types(rows, out, [&](auto in, auto to) {
    return launch(embed_kernel<decltype(in), decltype(to)>, grid_for(n, table.k), kThreads, 0, stream,
                  static_cast<const decltype(in)*>(table.data), stride, table.n, ids, table.k, scale,
                  static_cast<decltype(to)*>(out.data), out.stride);
  });
}

int scale_rows(Stream stream, DeviceRows x, int64_t n, int64_t width, float by) {
  if (n == 0) return 0;
  return with_type(x.type, [&](auto type) {
    return launch(scale_rows_kernel<decltype(type)>, grid_for(n, width), kThreads, 0, stream,
                  static_cast<decltype(type)*>(x.data), x.stride, width, by);
  });
}

int scale_unrotated(Stream stream, DeviceRows x, int64_t n, int64_t heads, int64_t head_dim, int64_t rotary_dim,
                    float by) {
  if (n == 0 || rotary_dim == head_dim) return 0;
  return with_type(x.type, [&](auto type) {
    return launch(scale_unrotated_kernel<decltype(type)>, grid_for(n, heads * (head_dim - rotary_dim)), kThreads, 0,
                  stream, static_cast<decltype(type)*>(x.data), x.stride, heads, static_cast<int>(head_dim),
                  static_cast<int>(rotary_dim), by);
  });
}

int copy_rows(Stream stream, DeviceRows from, int64_t n, int64_t width, DeviceRows to) {
  if (n == 0) return 0;
  return with_types(from, to, [&](auto in, auto out) {
    return launch(copy_rows_kernel<decltype(in), decltype(out)>, grid_for(n, width), kThreads, 0, stream,
                  static_cast<const decltype(in)*>(from.data), from.stride, width, static_cast<decltype(out)*>(to.data),
                  to.stride);
  });
}

int copy_to_turn(Stream stream, DeviceRows from, int64_t n, int64_t width, DeviceRows to, const int64_t* first,
                 int64_t first_row, int64_t period) {
  if (n == 0) return 0;
  return with_types(from, to, [&](auto in, auto out) {
    return launch(copy_to_turn_kernel<decltype(in), decltype(out)>, grid_for(n, width), kThreads, 0, stream,
                  static_cast<const decltype(in)*>(from.data), from.stride, width, static_cast<decltype(out)*>(to.data),
                  to.stride, first, first_row, period);
  });
}

int write_row(Stream stream, const float* row, int64_t n, int64_t width, bool add, DeviceRows to) {
  if (n == 0) return 0;
  return with_type(to.type, [&](auto type) {
    return launch(write_row_kernel<decltype(type)>, grid_for(n, width), kThreads, 0, stream, row, width, add,
                  static_cast<decltype(type)*>(to.data), to.stride);
  });
}

}  // namespace quire::cuda
