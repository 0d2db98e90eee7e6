// Coarse operations, made of the fine ones.
#include "lib/backend/backend.h"

namespace quire {

Status Backend::upload_all(Queue& queue, std::span<const StagedUpload> uploads) {
  for (const StagedUpload& u : uploads) {
    const auto* const from = static_cast<const std::byte*>(u.from->host());
    QUIRE_TRY(upload(queue, from + u.from_offset, *u.to, u.to_offset, u.bytes));
  }
  return {};
}

Status Backend::norm(Exec exec, const NormArgs& args) {
  int64_t row = 0;
  for (const NormArgs::Run& run : args.runs) {
    QUIRE_TRY(rms_norm(exec, args.x.at(row), *run.weight, args.eps, run.n, args.width, args.write, args.out.at(row)));
    row += run.n;
  }
  return {};
}

Status Backend::head_norm(Exec exec, const HeadNormArgs& args) {
  int64_t row = 0;
  for (const NormArgs::Run& run : args.runs) {
    QUIRE_TRY(head_norm(exec, args.x.at(row), *run.weight, args.eps, run.n, args.heads, args.head_dim));
    row += run.n;
  }
  return {};
}

Status Backend::scale_unrotated(Exec exec, const UnrotatedScaleArgs& args) {
  int64_t row = 0;
  for (const UnrotatedScaleArgs::Run& run : args.runs) {
    if (run.by != 1) QUIRE_TRY(scale_unrotated(exec, args.x.at(row), run.n, args.shape, run.by));
    row += run.n;
  }
  return {};
}

Status Backend::linear(Exec exec, const LinearArgs& args) {
  QUIRE_TRY(matmul(exec, args.x, args.n, *args.matrix, args.bias, args.write, args.y));
  for (const LinearArgs::LowRankTerm& term : args.low_rank) {
    QUIRE_TRY(add_low_rank(exec, {.x = args.x.at(term.first_row),
                                  .n = term.n,
                                  .a = term.a,
                                  .b = term.b,
                                  .scale = term.scale,
                                  .work = args.work,
                                  .y = args.y.at(term.first_row).column(term.column)}));
  }
  return {};
}

Status Backend::project_qkv(Exec exec, const PreparedStep& step, const ProjectQkvArgs& args) {
  QUIRE_TRY(norm(exec, args.norm));
  QUIRE_TRY(linear(exec, args.qkv));
  QUIRE_TRY(head_norm(exec, args.query_norm));
  QUIRE_TRY(head_norm(exec, args.key_norm));
  QUIRE_TRY(scale_unrotated(exec, args.query_scale));
  for (const StoreKvArgs& store : args.stores) QUIRE_TRY(store_kv(exec, step, store));
  return {};
}

Status Backend::mlp(Exec exec, const MlpArgs& args) {
  QUIRE_TRY(norm(exec, args.norm));
  QUIRE_TRY(linear(exec, args.gate_up));
  QUIRE_TRY(gated_linear_unit(exec, args.activation, args.gate_up.y, args.gate_up.n, args.width, args.gate_up.y));
  QUIRE_TRY(linear(exec, args.down));
  return norm(exec, args.down_norm);
}

Status Backend::head(Exec exec, const HeadArgs& args) {
  QUIRE_TRY(norm(exec, args.norm));
  return linear(exec, args.head);
}

Status finish_queue(Backend& backend, Queue& queue) {
  QUIRE_ASSIGN(const auto fence, backend.record(queue));
  return fence->wait();
}

}  // namespace quire
