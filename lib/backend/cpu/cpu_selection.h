// Chunk representations and the choice of chunks by them, on the CPU.
#pragma once

#include "lib/backend/backend.h"
#include "lib/backend/cpu/cpu_backend.h"

namespace quire::cpu {

// A page of representations is [n_vectors] runs of kPageChunks vectors that are laid out as keys
// (kernels/cpu/kernels.h), so that scoring chunks is scoring keys.

// Workspace of both for a text of n_chunks chunks.
size_t selection_floats(int n_threads, const KvGeometry& geometry, int64_t n_chunks);

Status run_represent(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                     const RepresentArgs& args);
Status run_select(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                  const SelectArgs& args);

}  // namespace quire::cpu
