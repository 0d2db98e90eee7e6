// The emulated cuBLASLt. It is as strict as the real one is documented to be, and as little is promised of it: an
// algorithm is good for the layouts, the transpositions, the device, the alignment and the workspace that it was looked
// for with, needs all of these, and leaves its workspace as if it were new. Products are plain sums, and are computed
// when the stream's other work is. Where the real one leaves undefined what happens, the program ends with a message.
//
// The plugin opens it as it opens the real one, from a shared library. That one (cublaslt_library.cc) has the names,
// and calls the functions of this table, which are the test program's: what they queue goes to its emulated runtime.
#pragma once

#include <cublasLt.h>

namespace quire::emulation {

struct BlasFunctions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithm = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};
const BlasFunctions& blas_functions();

}  // namespace quire::emulation

// What the shared library exports beside cuBLASLt's names: what is to be called behind them.
extern "C" void quire_connect_cublaslt(const quire::emulation::BlasFunctions* functions);
