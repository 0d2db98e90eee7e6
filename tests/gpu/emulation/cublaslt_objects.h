// What the emulated cuBLASLt knows of a product, and the objects that its handles stand for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "tests/gpu/emulation/cublaslt.h"
#include "tests/gpu/emulation/runtime.h"

// As the real header leaves it open.
struct cublasLtContext {
  int device = 0;
};

namespace quire::emulation {

struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t stride;
  bool operator==(const Layout&) const = default;
};

// What a product was said to be.
struct Operation {
  cublasComputeType_t compute;
  cudaDataType scale;
  int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  bool operator==(const Operation&) const = default;
};

// What an algorithm may need.
struct Preference {
  uint64_t workspace_bytes = 0;
  std::array<uint32_t, 4> alignment = {256, 256, 256, 256};  // of A, B, C, D
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

// D = alpha * op(A) * op(B) + beta * C, of matrices that are stored by columns.
struct Problem {
  int device;
  Operation operation;
  Layout a, b, c, d;
  bool operator==(const Problem&) const = default;
};

// Why there is no such product.
cublasStatus_t check(const Problem& problem);
// How many bytes there are from the first element to the last one, and in an element.
size_t extent_of(const Layout& layout);
size_t element_bytes_of(cudaDataType type);
// Sums are of two parts of k; round_parts: each is rounded to the type of D.
void multiply(const Problem& problem, float alpha, const void* a, const void* b, float beta, const void* c, void* d,
              bool round_parts);

// Those of a kind, which are counted. A handle is the address of what the real header calls semi-opaque.
template <typename Opaque, typename Object>
class Objects {
 public:
  Opaque* add(Object object) {
    auto key = std::make_unique<Opaque>();
    Opaque* const handle = key.get();
    objects_.emplace(handle, Entry{std::move(key), std::move(object)});
    ++state().use.n_blas_objects;
    return handle;
  }
  Object& find(Opaque* handle) {
    const auto at = objects_.find(handle);
    if (at == objects_.end()) die("something of cuBLASLt's that does not exist is used");
    return at->second.object;
  }
  void remove(Opaque* handle) {
    (void)find(handle);
    objects_.erase(handle);
    --state().use.n_blas_objects;
  }

 private:
  struct Entry {
    std::unique_ptr<Opaque> key;
    Object object;
  };
  std::map<const Opaque*, Entry> objects_;
};

}  // namespace quire::emulation
