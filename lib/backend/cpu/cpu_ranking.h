// The most probable tokens of rows of logits, and the sums that make probabilities of them, on the CPU.
#pragma once

#include "lib/backend/backend.h"
#include "lib/backend/cpu/cpu_backend.h"

namespace quire::cpu {

constexpr int64_t kMostRanked = 256;

// As Backend::rank_logits, k at most kMostRanked. The result depends on no number of threads.
Status run_ranking(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, Rows logits, int64_t n,
                   int64_t width, int64_t k, Buffer& out);

}  // namespace quire::cpu
