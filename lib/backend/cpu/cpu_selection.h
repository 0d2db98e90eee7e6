// Chunk representations and the choice of chunks by them, on the CPU.
#pragma once

#include "lib/backend/backend.h"
#include "lib/backend/cpu/cpu_backend.h"

namespace quire::cpu {

// A page of representations is [n_vectors] runs of kPageChunks vectors that are laid out as keys
// (kernels/cpu/kernels.h), so that scoring chunks is scoring keys. The vector-th vectors of a page's chunks:
inline std::byte* page_vectors(const Buffer& page, ElementType type, int64_t vector, int64_t d) {
  return static_cast<std::byte*>(page.host()) +
         static_cast<size_t>(vector * Representations::kPageChunks) * row_bytes(type, d);
}

// Floats that a thread needs to make representations, of whichever kind.
size_t represent_floats(const KvGeometry& geometry);
// Floats that all threads together need to choose in a text of n_chunks chunks.
size_t select_floats(int n_threads, const KvGeometry& geometry, int n_query_heads, int64_t n_chunks);

Status run_represent(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                     const RepresentArgs& args);
Status run_select(ThreadPool& pool, Workspace& workspace, const CancelToken* cancel, const CpuStep& step,
                  const SelectArgs& args);

}  // namespace quire::cpu
