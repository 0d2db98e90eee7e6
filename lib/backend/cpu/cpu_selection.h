// Chunk representations and the choice of chunks by them, on the CPU.
#pragma once

#include "lib/backend/backend.h"
#include "lib/backend/cpu/cpu_backend.h"

namespace quire::cpu {

// A page is [n_vectors][kPageChunks / kKeyBlock][head_dim][kKeyBlock] f32: the representations of each query head, or
// the least and the greatest channels of each KV head in turn, are laid out as keys, so that scoring them is scoring
// keys.
size_t representation_page_floats(int n_vectors, int head_dim);

// Workspace of both for a text of n_chunks chunks.
size_t selection_floats(int n_threads, const KvGeometry& geometry, int64_t n_chunks);

Status run_represent(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                     const RepresentArgs& args);
Status run_select(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                  const SelectArgs& args);

}  // namespace quire::cpu
