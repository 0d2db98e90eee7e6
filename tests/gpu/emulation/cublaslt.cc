// The functions of the emulated cuBLASLt.
#include "tests/gpu/emulation/cublaslt.h"

#include <cstring>
#include <vector>

#include "tests/gpu/emulation/cublaslt_objects.h"

namespace quire::emulation {
namespace {

// The values of the stand-in's header are those of the real one, with which this is compiled as well.
static_assert(CUDA_R_32F == 0 && CUDA_R_16F == 2 && CUDA_R_16BF == 14);
static_assert(CUBLAS_STATUS_SUCCESS == 0 && CUBLAS_STATUS_NOT_INITIALIZED == 1 && CUBLAS_STATUS_ALLOC_FAILED == 3 &&
              CUBLAS_STATUS_INVALID_VALUE == 7 && CUBLAS_STATUS_ARCH_MISMATCH == 8 &&
              CUBLAS_STATUS_EXECUTION_FAILED == 13 && CUBLAS_STATUS_INTERNAL_ERROR == 14 &&
              CUBLAS_STATUS_NOT_SUPPORTED == 15);
static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1 && CUBLAS_COMPUTE_32F == 68);
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLASLT_MATMUL_DESC_TRANSB == 4 &&
              CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1 && CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK == 3 &&
              CUBLASLT_REDUCTION_SCHEME_INPLACE == 1 && CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == 2 &&
              CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE == 4 && CUBLASLT_REDUCTION_SCHEME_MASK == 7 &&
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == 5 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES == 6 &&
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == 7 && CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == 8);
static_assert(sizeof(cublasLtMatmulAlgo_t) == 64 && sizeof(cublasLtMatmulHeuristicResult_t) == 96);

// What an algorithm was looked for with.
struct Algorithm {
  Problem problem;
  Preference preference;
};

// Under the runtime's mutex.
struct Known {
  std::map<cublasLtHandle_t, std::unique_ptr<cublasLtContext>> handles;
  Objects<cublasLtMatmulDescOpaque_t, Operation> operations;
  Objects<cublasLtMatrixLayoutOpaque_t, Layout> layouts;
  Objects<cublasLtMatmulPreferenceOpaque_t, Preference> preferences;
  std::vector<Algorithm> algorithms;  // they are never given back
};
Known& known() {
  static Known& one = *new Known;
  return one;
}

// Counts the call, and says whether it is the one that is to fail. It is not the runtime's: that keeps no error of it.
cublasStatus_t planned_status(const char* name) {
  ++state().use.n_blas_calls;
  if (!strikes(state().faults.blas_call)) return CUBLAS_STATUS_SUCCESS;
  state().failed_call = name;
  return static_cast<cublasStatus_t>(state().faults.blas_status);
}

template <typename Do>
cublasStatus_t answer_blas(const char* name, const Do& what) {
  const std::lock_guard lock(state().mutex);
  const cublasStatus_t failure = planned_status(name);
  return failure != CUBLAS_STATUS_SUCCESS ? failure : what();
}

// What it ends is ended also where it says that something failed.
template <typename Do>
cublasStatus_t end_blas(const char* name, const Do& what) {
  const std::lock_guard lock(state().mutex);
  what();
  return planned_status(name);
}

// Handles are never given back by the plugin, so they hold none of the memory that is counted; but without free memory
// none is made, of which the real one says no more than that it is not initialised.
cublasStatus_t create(cublasLtHandle_t* handle) {
  return answer_blas("cublasLtCreate", [&] {
    constexpr int64_t kOfHandle = int64_t{16} << 20;
    if (missing_device() != cudaSuccess || state().failure != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (captured_elsewhere() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (memory_bytes() - state().use.bytes < kOfHandle) return CUBLAS_STATUS_NOT_INITIALIZED;
    auto made = std::make_unique<cublasLtContext>();
    made->device = this_thread().device;
    *handle = made.get();
    known().handles[*handle] = std::move(made);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t create_product(cublasLtMatmulDesc_t* product, cublasComputeType_t compute, cudaDataType_t scale) {
  return answer_blas("cublasLtMatmulDescCreate", [&] {
    *product = known().operations.add({.compute = compute, .scale = scale});
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t destroy_product(cublasLtMatmulDesc_t product) {
  return end_blas("cublasLtMatmulDescDestroy", [&] { known().operations.remove(product); });
}

template <typename Attribute>
cublasStatus_t set(Attribute& attribute, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof attribute) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_product(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void* value,
                           size_t bytes) {
  return answer_blas("cublasLtMatmulDescSetAttribute", [&] {
    Operation& operation = known().operations.find(product);
    const bool of_a = attribute == CUBLASLT_MATMUL_DESC_TRANSA;
    if (!of_a && attribute != CUBLASLT_MATMUL_DESC_TRANSB) die("an attribute of a product is not emulated");
    int32_t transposed = CUBLAS_OP_N;
    if (const cublasStatus_t status = set(transposed, value, bytes); status != CUBLAS_STATUS_SUCCESS) return status;
    if (transposed != CUBLAS_OP_N && transposed != CUBLAS_OP_T) die("a transposition is not emulated");
    (of_a ? operation.transposed_a : operation.transposed_b) = transposed;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t create_layout(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns,
                             int64_t stride) {
  return answer_blas("cublasLtMatrixLayoutCreate", [&] {
    *layout = known().layouts.add({.type = type, .rows = rows, .columns = columns, .stride = stride});
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t destroy_layout(cublasLtMatrixLayout_t layout) {
  return end_blas("cublasLtMatrixLayoutDestroy", [&] { known().layouts.remove(layout); });
}

cublasStatus_t create_preference(cublasLtMatmulPreference_t* preference) {
  return answer_blas("cublasLtMatmulPreferenceCreate", [&] {
    *preference = known().preferences.add({});
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t destroy_preference(cublasLtMatmulPreference_t preference) {
  return end_blas("cublasLtMatmulPreferenceDestroy", [&] { known().preferences.remove(preference); });
}

cublasStatus_t set_preference(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                              const void* value, size_t bytes) {
  return answer_blas("cublasLtMatmulPreferenceSetAttribute", [&] {
    Preference& changed = known().preferences.find(preference);
    switch (attribute) {
      case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(changed.workspace_bytes, value, bytes);
      case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(changed.reduction_schemes, value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(changed.alignment[0], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(changed.alignment[1], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(changed.alignment[2], value, bytes);
      case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(changed.alignment[3], value, bytes);
      default:
        die("an attribute of a preference is not emulated");
    }
  });
}

// Of the calling thread's device, which has to be the handle's.
Problem problem_of(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  const auto own = known().handles.find(handle);
  if (own == known().handles.end()) die("a handle of cuBLASLt that does not exist is used");
  const int device = own->second->device;
  if (device != this_thread().device) die("a thread that has chosen another device uses a handle of cuBLASLt");
  auto& layouts = known().layouts;
  return {device, known().operations.find(product), layouts.find(a), layouts.find(b), layouts.find(c), layouts.find(d)};
}

// Whether an algorithm could load as much as an element.
bool is_possible(uint32_t alignment, const Layout& layout) {
  return alignment > 0 && (alignment & (alignment - 1)) == 0 && alignment >= element_bytes_of(layout.type);
}

cublasStatus_t find_algorithm(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                              cublasLtMatmulPreference_t preference, int n_wanted,
                              cublasLtMatmulHeuristicResult_t found[], int* n_found) {
  return answer_blas("cublasLtMatmulAlgoGetHeuristic", [&] {
    ++state().use.n_blas_searches;
    if (n_wanted <= 0 || found == nullptr || n_found == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    *n_found = 0;
    const Problem problem = problem_of(handle, product, a, b, c, d);
    const Preference& preferred = known().preferences.find(preference);
    if (const cublasStatus_t status = check(problem); status != CUBLAS_STATUS_SUCCESS) return status;
    const Layout layouts[] = {problem.a, problem.b, problem.c, problem.d};
    for (size_t i = 0; i < std::size(layouts); ++i) {
      if (!is_possible(preferred.alignment[i], layouts[i])) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    known().algorithms.push_back({problem, preferred});
    found[0] = {};
    found[0].algo.data[0] = known().algorithms.size();
    found[0].workspaceSize = preferred.workspace_bytes;
    found[0].state = CUBLAS_STATUS_SUCCESS;
    found[0].wavesCount = 1;
    *n_found = 1;
    return CUBLAS_STATUS_SUCCESS;
  });
}

struct Range {
  const void* begin;
  size_t bytes;
};
bool overlap(const Range& one, const Range& other) {
  const auto *const first = static_cast<const char*>(one.begin), *const second = static_cast<const char*>(other.begin);
  return first < second + other.bytes && second < first + one.bytes;
}

// What a product may do with memory. c: may be null.
void expect_memory(int device, const std::vector<Range>& read, const Range& c, const Range& d, const Range& workspace) {
  std::vector<Range> all = read;
  all.push_back(d);
  if (workspace.bytes > 0) all.push_back(workspace);
  if (c.begin != nullptr) all.push_back(c);
  for (const Range& range : all) {
    if (!lies_in(state().device[device], range.begin, range.bytes)) die("a product of what is not device memory");
  }
  for (const Range& range : read) {
    if (overlap(range, d) || overlap(range, workspace)) die("a product is written over what it is made of");
  }
  if (overlap(d, workspace)) die("a product is written over its working memory");
  if (c.begin != nullptr && c.begin != d.begin && overlap(c, d)) die("a product is added to a part of itself");
}

cublasStatus_t multiply_matrices(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                                 const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                 cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                 cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                 const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                                 cudaStream_t stream) {
  return answer_blas("cublasLtMatmul", [&] {
    constexpr uintptr_t kWorkspaceAlignment = 256;
    expect_queueable(stream);
    const Problem problem = problem_of(handle, product, a_layout, b_layout, c_layout, d_layout);
    if (algorithm == nullptr) die("cuBLASLt is to choose the algorithm itself, which is not emulated");
    if (alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr || d == nullptr) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    const float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
    if ((c == nullptr && kept != 0) || (c == d && problem.c != problem.d)) return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t number = algorithm->data[0];
    if (number == 0 || number > known().algorithms.size()) return CUBLAS_STATUS_INVALID_VALUE;
    const Algorithm& chosen = known().algorithms[number - 1];
    const uint64_t needed = chosen.preference.workspace_bytes;
    if (chosen.problem != problem || workspace_bytes < needed) return CUBLAS_STATUS_INVALID_VALUE;
    const void* const matrices[] = {a, b, c, d};
    for (size_t i = 0; i < std::size(matrices); ++i) {
      if (reinterpret_cast<uintptr_t>(matrices[i]) % chosen.preference.alignment[i] != 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
      }
    }
    if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) return CUBLAS_STATUS_INVALID_VALUE;
    expect_memory(problem.device, {{a, extent_of(problem.a)}, {b, extent_of(problem.b)}}, {c, extent_of(problem.c)},
                  {d, extent_of(problem.d)}, {workspace, workspace_bytes});
    ++state().use.n_blas_products;
    ++state().use.n_launches;
    if (missing_device() != cudaSuccess || state().failure != cudaSuccess || strikes(state().faults.launch)) {
      return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    constexpr uint32_t kInTypeOfD = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    const bool round_parts = (chosen.preference.reduction_schemes & kInTypeOfD) != 0;
    const cudaError_t queued = queue_kernel_work(stream, [=] {
      std::memset(workspace, 0xFF, needed);
      return multiply(problem, scale, a, b, kept, c, d, round_parts), cudaSuccess;
    });
    return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}

}  // namespace

const BlasFunctions& blas_functions() {
  static constexpr BlasFunctions functions = {.create = create,
                                              .create_product = create_product,
                                              .destroy_product = destroy_product,
                                              .set_product = set_product,
                                              .create_layout = create_layout,
                                              .destroy_layout = destroy_layout,
                                              .create_preference = create_preference,
                                              .destroy_preference = destroy_preference,
                                              .set_preference = set_preference,
                                              .find_algorithm = find_algorithm,
                                              .multiply = multiply_matrices};
  return functions;
}

}  // namespace quire::emulation
