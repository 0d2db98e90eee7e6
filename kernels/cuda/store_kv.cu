// Keys and values of new tokens into the records of their chunks. A block per token; a thread rotates a pair.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

template <typename In, typename Kv>
__global__ void __launch_bounds__(kThreads) store_kv_kernel(StoreKv args) {
  const int64_t key = args.first_key + blockIdx.x, chunk = args.shape.chunk, offset = key % chunk;
  const int d = args.shape.head_dim, half = d / 2;
  const In* const keys = static_cast<const In*>(args.keys.data) + blockIdx.x * args.keys.stride;
  const In* const values = static_cast<const In*>(args.values.data) + blockIdx.x * args.values.stride;
  Kv* const record = static_cast<Kv*>(args.records[key / chunk]);
  for (int i = static_cast<int>(threadIdx.x); i < args.shape.n_kv_heads * half; i += kThreads) {
    const int head = i / half, pair = i % half;
    Kv* const to_key = record + (int64_t{2} * head * chunk + offset) * d + pair;
    Kv* const to_value = to_key + chunk * d;
    const float a = to_float(keys[head * d + pair]), b = to_float(keys[head * d + half + pair]);
    Angle angle{1, 0};
    if (!args.raw) angle = angle_at(args.turns[pair], split_position(static_cast<double>(offset)));
    from_float(a * angle.cosine - b * angle.sine, to_key[0]);
    from_float(b * angle.cosine + a * angle.sine, to_key[half]);
    from_float(to_float(values[head * d + pair]), to_value[0]);
    from_float(to_float(values[head * d + half + pair]), to_value[half]);
  }
}

}  // namespace

int store_kv(Stream stream, const StoreKv& args) {
  if (args.n == 0) return 0;
  if (args.keys.type != args.values.type) return kUnknownType;
  return with_type(args.keys.type, [&](auto in) {
    return with_type(args.shape.type, [&](auto kv) {
      return launch(store_kv_kernel<decltype(in), decltype(kv)>, static_cast<unsigned>(args.n), kThreads, 0, stream,
                    args);
    });
  });
}

}  // namespace quire::cuda
