// Keys and values into records: of new tokens, and out of other records. A thread rotates a pair. A token has as many
// blocks (y) as its pairs need, since one token alone has to keep the device busy.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

template <typename In, typename Kv>
__global__ void __launch_bounds__(kThreads) store_kv_kernel(StoreKv args) {
  const int64_t key = *args.first_key + blockIdx.x, chunk = args.shape.chunk, offset = key % chunk;
  const int d = args.shape.head_dim, half = d / 2;
  const In* const keys = static_cast<const In*>(args.keys.data) + blockIdx.x * args.keys.stride;
  const In* const values = static_cast<const In*>(args.values.data) + blockIdx.x * args.values.stride;
  Kv* const record = static_cast<Kv*>(args.records[key / chunk]);
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= args.shape.n_kv_heads * half) return;
  const int head = i / half, pair = i % half;
  Kv* const to_key = record + (int64_t{2} * head * chunk + offset) * d + pair;
  Kv* const to_value = to_key + chunk * d;
  // All are on their way before the first is written, which might be to the memory of another one.
  const float a = to_float(keys[head * d + pair]), b = to_float(keys[head * d + half + pair]);
  const In value = values[head * d + pair], other_value = values[head * d + half + pair];
  Angle angle{1, 0};
  if (args.stored_div > 0) {
    const int position = stored_position(offset, args.stored_div);
    angle = angle_at(args.turns[pair], split_position(static_cast<double>(position)));
  }
  from_float(a * angle.cosine - b * angle.sine, to_key[0]);
  from_float(b * angle.cosine + a * angle.sine, to_key[half]);
  from_float(to_float(value), to_value[0]);
  from_float(to_float(other_value), to_value[half]);
}

template <typename Kv>
__global__ void __launch_bounds__(kThreads) move_kv_kernel(MoveKv args) {
  const int64_t chunk = args.shape.chunk, to = blockIdx.x, n_first = chunk - args.offset;
  const int64_t from = to < n_first ? to + args.offset : to - n_first;
  const int d = args.shape.head_dim, half = d / 2;
  const Kv* const source = static_cast<const Kv*>(to < n_first ? args.first : args.second);
  Kv* const target = static_cast<Kv*>(args.to);
  const int change = stored_position(to, args.stored_div) - stored_position(from, args.stored_div);
  const Position by = split_position(static_cast<double>(change));
  for (int i = static_cast<int>(threadIdx.x); i < args.shape.n_kv_heads * half; i += kThreads) {
    const int64_t head = int64_t{2} * (i / half) * chunk * d;
    const int pair = i % half;
    const Kv *const key = source + head + from * d + pair, *const value = key + chunk * d;
    Kv *const to_key = target + head + to * d + pair, *const to_value = to_key + chunk * d;
    to_value[0] = value[0];
    to_value[half] = value[half];
    if (args.stored_div == 0) {
      to_key[0] = key[0];
      to_key[half] = key[half];
      continue;
    }
    const Angle angle = angle_at(args.turns[pair], by);
    const float a = to_float(key[0]), b = to_float(key[half]);
    from_float(a * angle.cosine - b * angle.sine, to_key[0]);
    from_float(b * angle.cosine + a * angle.sine, to_key[half]);
  }
}

}  // namespace

int move_kv(Stream stream, const MoveKv& args) {
  return with_type(args.shape.type, [&](auto kv) {
    return launch(move_kv_kernel<decltype(kv)>, static_cast<unsigned>(args.shape.chunk), kThreads, 0, stream, args);
  });
}

int store_kv(Stream stream, const StoreKv& args) {
  if (args.n == 0) return 0;
  if (args.keys.type != args.values.type) return kUnknownType;
  return with_type(args.keys.type, [&](auto in) {
    return with_type(args.shape.type, [&](auto kv) {
      const int pairs = args.shape.n_kv_heads * (args.shape.head_dim / 2);
      return launch(store_kv_kernel<decltype(in), decltype(kv)>,
                    dim3(static_cast<unsigned>(args.n), static_cast<unsigned>((pairs + kThreads - 1) / kThreads)),
                    kThreads, 0, stream, args);
    });
  });
}

}  // namespace quire::cuda
