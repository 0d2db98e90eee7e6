#include "kernels/cuda/blas.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "kernels/cuda/device_api.h"

namespace quire::cuda {
namespace {

// The functions of the library that are used here, under their own names.
struct Functions {
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

// Opened once a process, and never closed: what it holds on a device ends with the process.
class Library {
 public:
  Library() {
    void* const handle = open();
    if (!handle) return;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (!function && obstacle_.empty()) obstacle_ = std::string("cuBLASLt has no function ") + name;
    };
    find("cublasLtCreate", functions_.create);
    find("cublasLtMatmulDescCreate", functions_.create_product);
    find("cublasLtMatmulDescDestroy", functions_.destroy_product);
    find("cublasLtMatmulDescSetAttribute", functions_.set_product);
    find("cublasLtMatrixLayoutCreate", functions_.create_layout);
    find("cublasLtMatrixLayoutDestroy", functions_.destroy_layout);
    find("cublasLtMatmulPreferenceCreate", functions_.create_preference);
    find("cublasLtMatmulPreferenceDestroy", functions_.destroy_preference);
    find("cublasLtMatmulPreferenceSetAttribute", functions_.set_preference);
    find("cublasLtMatmulAlgoGetHeuristic", functions_.find_algorithm);
    find("cublasLtMatmul", functions_.multiply);
  }

  // Why it cannot be used; empty: it can.
  const std::string& obstacle() const { return obstacle_; }
  const Functions& functions() const { return functions_; }

 private:
  void* open() {
    const std::string name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
    const char* const wanted = std::getenv("QUIRE_CUBLASLT");
    const std::string path = wanted && *wanted ? wanted : name;
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle) return handle;
    const char* const why = dlerror();
    obstacle_ = why ? why : path + " cannot be opened";
    return nullptr;
  }

  Functions functions_;
  std::string obstacle_;
};

const Library& library() {
  static const Library& only = *new Library;  // never destroyed: threads may outlive main()
  return only;
}

// What a product is chosen by.
struct Shape {
  int device;
  int64_t n_rows, n, k;
  int64_t x_stride, w_stride, y_stride;
  uint32_t x_alignment, w_alignment, y_alignment;
  ElementType type, y_type;
  bool accumulate;
  auto operator<=>(const Shape&) const = default;
};

// By how many bytes an address can be divided: a power of two, and at most what cuBLASLt takes for granted unless it is
// told otherwise.
uint32_t alignment_of(const void* address) {
  constexpr uintptr_t kMost = 256;
  const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | kMost;
  return static_cast<uint32_t>(bits & -bits);
}

cudaDataType_t data_type(ElementType type) {
  return type == ElementType::kF32 ? CUDA_R_32F : type == ElementType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// Descriptors and the algorithm of products of one shape. cuBLASLt stores by columns, where y^T = W x^T.
class Product {
 public:
  explicit Product(const Functions& functions) : f_(functions) {}
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    if (product_) f_.destroy_product(product_);
    for (const cublasLtMatrixLayout_t layout : {w_, x_, y_}) {
      if (layout) f_.destroy_layout(layout);
    }
  }

  cublasStatus_t prepare(cublasLtHandle_t handle, const Shape& shape) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t status = f_.create_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto then = [&](auto&& step) {
      if (status == CUBLAS_STATUS_SUCCESS) status = step();
    };
    const auto layout = [&](cublasLtMatrixLayout_t& out, ElementType type, int64_t rows, int64_t columns,
                            int64_t stride) {
      then([&] {
        return f_.create_layout(&out, data_type(type), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                stride);
      });
    };
    then([&] { return f_.set_product(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed); });
    layout(w_, shape.type, shape.k, shape.n, shape.w_stride);
    layout(x_, shape.type, shape.k, shape.n_rows, shape.x_stride);
    layout(y_, shape.y_type, shape.n, shape.n_rows, shape.y_stride);
    cublasLtMatmulPreference_t preference = nullptr;
    then([&] { return f_.create_preference(&preference); });
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      then([&] { return f_.set_preference(preference, attribute, &value, sizeof value); });
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kBlasWorkspace});
    // Else an algorithm that splits k may round the sum of each part to the type of y.
    if (shape.y_type != ElementType::kF32) {
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    }
    // Else an algorithm may be found whose loads these matrices are not aligned for.
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.w_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.y_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.y_alignment);
    cublasLtMatmulHeuristicResult_t found{};
    int n_found = 0;
    then([&] { return f_.find_algorithm(handle, product_, w_, x_, y_, y_, preference, 1, &found, &n_found); });
    if (preference) f_.destroy_preference(preference);
    then([&] { return n_found == 1 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED; });
    algorithm_ = found.algo;
    return status;
  }

  cublasStatus_t run(cublasLtHandle_t handle, Stream stream, const void* x, const void* w, bool accumulate, void* y,
                     void* workspace) const {
    const float one = 1, kept = accumulate ? 1.0f : 0.0f;
    return f_.multiply(handle, product_, &one, w, w_, x, x_, &kept, y, y_, y, y_, &algorithm_, workspace,
                       kBlasWorkspace, stream);
  }

 private:
  const Functions& f_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

// Errors of cuBLASLt's own calls are kept by its runtime, and may be unknown to this one.
cudaError_t error_of(cublasStatus_t status) {
  const cudaError_t error = cudaGetLastError();
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return cudaErrorMemoryAllocation;
  return error != cudaSuccess ? error : cudaErrorUnknown;
}

// The products of the process. They are forgotten all at once when there are too many, for a text's last block may have
// any number of rows, and begin anywhere in what it is multiplied with.
class Products {
 public:
  // Makes the handle of the device, which is the current one, where it has none.
  cublasStatus_t open(int device) {
    const std::lock_guard lock(mutex_);
    if (handles_.contains(device)) return CUBLAS_STATUS_SUCCESS;
    cublasLtHandle_t made = nullptr;
    const cublasStatus_t status = library().functions().create(&made);
    if (status == CUBLAS_STATUS_SUCCESS) handles_.emplace(device, made);
    return status;
  }

  // *product: null: cuBLASLt has no algorithm for such matrices. cudaErrorNotSupported: the device has no handle.
  cudaError_t find(const Shape& shape, cublasLtHandle_t* handle, std::shared_ptr<const Product>* product) {
    constexpr size_t kMost = 4096;
    const Functions& f = library().functions();
    const std::lock_guard lock(mutex_);
    const auto own = handles_.find(shape.device);
    if (own == handles_.end()) return cudaErrorNotSupported;
    *handle = own->second;
    const auto known = products_.find(shape);
    if (known != products_.end()) {
      *product = known->second;
      return cudaSuccess;
    }
    auto made = std::make_shared<Product>(f);
    const cublasStatus_t status = made->prepare(own->second, shape);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
      made.reset();
    } else if (status != CUBLAS_STATUS_SUCCESS) {
      return error_of(status);
    }
    if (products_.size() >= kMost) products_.clear();
    products_.emplace(shape, made);
    *product = std::move(made);
    return cudaSuccess;
  }

  // The algorithm that was found does not serve after all.
  void give_up(const Shape& shape) {
    const std::lock_guard lock(mutex_);
    products_[shape] = nullptr;
  }

 private:
  std::mutex mutex_;  // of both; held while an algorithm is looked for
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Shape, std::shared_ptr<const Product>> products_;  // null: there is no algorithm
};

Products& products() {
  static Products& only = *new Products;  // never destroyed: threads may outlive main()
  return only;
}

// Why the current device cannot use it; empty: it can.
std::string open_for_device() {
  if (!library().obstacle().empty()) return library().obstacle();
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return cudaGetErrorString(error);
  const cublasStatus_t status = products().open(device);
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  cudaGetLastError();  // cuBLASLt's
  return "cublasLtCreate fails with status " + std::to_string(status);
}

}  // namespace

bool open_blas(char* why, size_t size) {
  const std::string obstacle = open_for_device();
  if (why && size > 0) std::snprintf(why, size, "%s", obstacle.c_str());
  return obstacle.empty();
}

int blas_matmul(Stream stream, DeviceRows x, int64_t n_rows, const DeviceMatrix& w, const float* bias, bool add,
                DeviceRows y, void* workspace) {
  const bool narrow = w.type == ElementType::kBF16 || w.type == ElementType::kF16;
  if (!library().obstacle().empty() || !narrow || x.type != w.type ||
      (y.type != w.type && y.type != ElementType::kF32)) {
    return cudaErrorNotSupported;
  }
  if (n_rows == 0) return 0;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const Shape shape{.device = device,
                    .n_rows = n_rows,
                    .n = w.n,
                    .k = w.k,
                    .x_stride = x.stride,
                    .w_stride = w.row_bytes / 2,
                    .y_stride = y.stride,
                    .x_alignment = alignment_of(x.data),
                    .w_alignment = alignment_of(w.data),
                    .y_alignment = alignment_of(y.data),
                    .type = w.type,
                    .y_type = y.type,
                    .accumulate = add || bias != nullptr};
  cublasLtHandle_t handle = nullptr;
  std::shared_ptr<const Product> product;
  if (const cudaError_t error = products().find(shape, &handle, &product); error != cudaSuccess) return error;
  if (!product) return matmul(stream, x, n_rows, w, bias, add, y);
  if (bias) {
    if (const int error = write_row(stream, bias, n_rows, w.n, add, y); error != 0) return error;
  }
  const cublasStatus_t status = product->run(handle, stream, x.data, w.data, shape.accumulate, y.data, workspace);
  if (status == CUBLAS_STATUS_SUCCESS) return 0;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) return error_of(status);
  cudaGetLastError();  // cuBLASLt's
  products().give_up(shape);
  return matmul(stream, x, n_rows, w, nullptr, shape.accumulate, y);  // y holds the bias
}

}  // namespace quire::cuda
