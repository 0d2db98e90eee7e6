// The operations of the CUDA backend that are more than a kernel.
#pragma once

#include "lib/backend/cuda/cuda_step.h"

namespace quire::cuda {

// Attention of one sequence: cuda_attention.cc.
Status run_attention(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const AttentionArgs& args);
// Representations and the choice by them: cuda_selection.cc.
Status run_represent(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const RepresentArgs& args);
Status run_select(CudaQueue& queue, const CancelToken* cancel, const CudaStep& step, const SelectArgs& args);

// Bytes of working memory of these for a call of n_queries, as Backend::attention_workspace_bytes.
size_t attention_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                       const ChunkSelection& selection, int n_processors);
// Bytes of scores that run_select() holds at most, one row's apart.
constexpr int64_t kMostScoreBytes = int64_t{64} << 20;

}  // namespace quire::cuda
