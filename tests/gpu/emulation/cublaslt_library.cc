// The shared library that stands in for cuBLASLt: its names, with the functions behind them that it is connected with.
//
// QUIRE_LACKS_MATMUL: it is one that lacks a function.
#include "tests/gpu/emulation/cublaslt.h"

#define QUIRE_EXPORTED __attribute__((visibility("default")))

namespace {

// Set before the plugin opens the library, and never changed.
const quire::emulation::BlasFunctions* behind = nullptr;

}  // namespace

extern "C" {

QUIRE_EXPORTED void quire_connect_cublaslt(const quire::emulation::BlasFunctions* functions) { behind = functions; }

QUIRE_EXPORTED cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return behind->create(handle); }

QUIRE_EXPORTED cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                                       cudaDataType_t scale) {
  return behind->create_product(product, compute, scale);
}
QUIRE_EXPORTED cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return behind->destroy_product(product);
}
QUIRE_EXPORTED cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                             cublasLtMatmulDescAttributes_t attribute,
                                                             const void* value, size_t bytes) {
  return behind->set_product(product, attribute, value, bytes);
}

QUIRE_EXPORTED cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                                         uint64_t rows, uint64_t columns, int64_t stride) {
  return behind->create_layout(layout, type, rows, columns, stride);
}
QUIRE_EXPORTED cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return behind->destroy_layout(layout);
}

QUIRE_EXPORTED cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return behind->create_preference(preference);
}
QUIRE_EXPORTED cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return behind->destroy_preference(preference);
}
QUIRE_EXPORTED cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                                   cublasLtMatmulPreferenceAttributes_t attribute,
                                                                   const void* value, size_t bytes) {
  return behind->set_preference(preference, attribute, value, bytes);
}

QUIRE_EXPORTED cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                                             cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                             cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                             cublasLtMatmulPreference_t preference, int n_wanted,
                                                             cublasLtMatmulHeuristicResult_t found[], int* n_found) {
  return behind->find_algorithm(handle, product, a, b, c, d, preference, n_wanted, found, n_found);
}

#ifndef QUIRE_LACKS_MATMUL
QUIRE_EXPORTED cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha,
                                             const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                             cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                             cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                             const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                                             size_t workspace_bytes, cudaStream_t stream) {
  return behind->multiply(handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                          workspace, workspace_bytes, stream);
}
#endif

}  // extern "C"
