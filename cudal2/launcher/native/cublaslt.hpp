// An algorithm of cuBLASLt as launches on a stream, beside the kernels of kernel.hpp. The library is found at run time, and the
// one that the process has loaded already is preferred. Types and constants are those of cublasLt.h and library_types.h of CUDA
// 12.4 to 13; no header of CUDA is needed.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver.hpp"
#include "kernel.hpp"

namespace cudal2 {

using LtStatus = int;  // cublasStatus_t
using LtHandle = void*;
using LtDescriptor = void*;  // of an operation, a matrix or a preference

constexpr LtStatus kLtSuccess = 0;
constexpr int kLtReal32 = 0;  // CUDA_R_32F, of alpha and beta
constexpr int kLtReal16 = 2;
constexpr int kLtBrain16 = 14;
constexpr int kLtCompute32 = 68;    // CUBLAS_COMPUTE_32F
constexpr int kLtTransposeA = 3;    // CUBLASLT_MATMUL_DESC_TRANSA
constexpr int kLtTransposeB = 4;    // CUBLASLT_MATMUL_DESC_TRANSB
constexpr int kLtMaxWorkspace = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
// AutoTuning asks with the same workspace and the same number; see sandbox/cuda/baselines.
constexpr std::uint64_t kLtWorkspaceBytes = 64 << 20;
constexpr int kLtSuggestions = 100;

struct LtAlgorithm {  // cublasLtMatmulAlgo_t
  std::uint64_t words[8];
};

struct LtResult {  // cublasLtMatmulHeuristicResult_t
  LtAlgorithm algorithm;
  std::size_t workspace_bytes;
  LtStatus state;
  float waves;
  int reserved[4];
};

// Result, member, symbol and parameters of every function that is used.
#define CUDAL2_CUBLASLT_FUNCTIONS(X)                                                                                    \
  X(std::size_t, version, cublasLtGetVersion, ())                                                                       \
  X(const char*, status_name, cublasLtGetStatusName, (LtStatus status))                                                 \
  X(LtStatus, create, cublasLtCreate, (LtHandle * handle))                                                              \
  X(LtStatus, operation_create, cublasLtMatmulDescCreate, (LtDescriptor * operation, int compute_type, int scale_type)) \
  X(LtStatus, operation_destroy, cublasLtMatmulDescDestroy, (LtDescriptor operation))                                   \
  X(LtStatus, operation_set, cublasLtMatmulDescSetAttribute,                                                            \
    (LtDescriptor operation, int attribute, const void* value, std::size_t bytes))                                      \
  X(LtStatus, matrix_create, cublasLtMatrixLayoutCreate,                                                                \
    (LtDescriptor * matrix, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t lead))                    \
  X(LtStatus, matrix_destroy, cublasLtMatrixLayoutDestroy, (LtDescriptor matrix))                                       \
  X(LtStatus, preference_create, cublasLtMatmulPreferenceCreate, (LtDescriptor * preference))                           \
  X(LtStatus, preference_destroy, cublasLtMatmulPreferenceDestroy, (LtDescriptor preference))                           \
  X(LtStatus, preference_set, cublasLtMatmulPreferenceSetAttribute,                                                     \
    (LtDescriptor preference, int attribute, const void* value, std::size_t bytes))                                     \
  X(LtStatus, suggest, cublasLtMatmulAlgoGetHeuristic,                                                                  \
    (LtHandle handle, LtDescriptor operation, LtDescriptor a, LtDescriptor b, LtDescriptor c, LtDescriptor d,           \
     LtDescriptor preference, int wanted, LtResult* results, int* found))                                               \
  X(LtStatus, configuration, cublasLtMatmulAlgoConfigGetAttribute,                                                      \
    (const LtAlgorithm* algorithm, int attribute, void* value, std::size_t bytes, std::size_t* written))                \
  X(LtStatus, check_algorithm, cublasLtMatmulAlgoCheck,                                                                 \
    (LtHandle handle, LtDescriptor operation, LtDescriptor a, LtDescriptor b, LtDescriptor c, LtDescriptor d,           \
     const LtAlgorithm* algorithm, LtResult* result))                                                                   \
  X(LtStatus, multiply, cublasLtMatmul,                                                                                 \
    (LtHandle handle, LtDescriptor operation, const void* alpha, const void* a, LtDescriptor a_matrix, const void* b,   \
     LtDescriptor b_matrix, const void* beta, const void* c, LtDescriptor c_matrix, void* d, LtDescriptor d_matrix,     \
     const LtAlgorithm* algorithm, void* workspace, std::size_t workspace_bytes, Stream stream))

// The functions of one cuBLASLt library. It stays loaded until the process ends.
class LtLibrary {
 public:
#define CUDAL2_DECLARE(result, member, symbol, parameters) result(*member) parameters = nullptr;
  CUDAL2_CUBLASLT_FUNCTIONS(CUDAL2_DECLARE)
#undef CUDAL2_DECLARE

  // `files`: names or paths in the order of preference. One that is loaded already comes before one that is not.
  explicit LtLibrary(const std::vector<std::string>& files) {
    void* handle = nullptr;
    for (const int loaded : {RTLD_NOLOAD, 0}) {
      for (const std::string& file : files) {
        if (!handle) handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | loaded);
      }
    }
    if (!handle)
      throw Unavailable("no cuBLASLt: none of " + joined(files) + " loads; install a PyTorch that is built with CUDA");
#define CUDAL2_FIND(result, member, symbol, parameters)                                                \
  if (!(member = reinterpret_cast<result(*) parameters>(dlsym(handle, #symbol)))) {                    \
    throw Unavailable("cuBLASLt is too old: it lacks " #symbol "; install one of CUDA 12.4 or later"); \
  }
    CUDAL2_CUBLASLT_FUNCTIONS(CUDAL2_FIND)
#undef CUDAL2_FIND
  }

  void check(LtStatus status, const char* function) const {
    if (status == kLtSuccess) return;
    const char* const name = status_name(status);
    throw Error(std::string(function) + ": " + (name ? name : "unknown error"), name ? name : "CUBLAS_STATUS_UNKNOWN");
  }

 private:
  static std::string joined(const std::vector<std::string>& files) {
    std::string text;
    for (const std::string& file : files) text += (text.empty() ? "" : ", ") + file;
    return text;
  }
};

// cuBLASLt on one GPU. Any number of threads may use it.
class Lt {
 public:
  const std::shared_ptr<const Gpu> gpu;
  const LtLibrary library;

  Lt(std::shared_ptr<const Gpu> gpu, const std::vector<std::string>& files) : gpu(std::move(gpu)), library(files) {
    const Current current(this->gpu->driver, this->gpu->context());
    const RelaxedCapture relaxed(this->gpu->driver);
    library.check(library.create(&handle_), "cublasLtCreate");
  }
  Lt(const Lt&) = delete;
  Lt& operator=(const Lt&) = delete;

  LtHandle handle() const { return handle_; }

 private:
  LtHandle handle_ = nullptr;  // held until the process ends
};

// Algorithm, tile, stages, split K, reduction, cluster, as cuBLASLt numbers them.
using LtConfiguration = std::array<std::int64_t, 6>;

// A row-major product D = A B and the algorithm that is to compute it. A lies as K x M where it is transposed, B as N x K.
// `opaque`: the library's own record of the algorithm, of the same version, or nothing.
struct LtProduct {
  std::uint64_t m, n, k;
  bool transposes_a, transposes_b, bfloat16;
  LtConfiguration configuration;
  std::string opaque;
};

struct LtDestroy {
  LtStatus (*destroy)(LtDescriptor) = nullptr;
  void operator()(LtDescriptor descriptor) const { destroy(descriptor); }
};

// One algorithm for one product on one GPU, with f32 sums. What it holds stays until the process ends, because CUDA graphs may
// still use its workspaces.
class LtKernel {
 public:
  // Throws Error where cuBLASLt neither takes the record nor suggests the configuration, or where it needs too much workspace.
  LtKernel(std::shared_ptr<const Lt> lt, const LtProduct& product)
      : lt_(std::move(lt)), driver_(lt_->gpu->driver), library_(lt_->library) {
    const Current current(driver_, lt_->gpu->context());
    const RelaxedCapture relaxed(driver_);
    describe(product);
    if (!restored(product) && !suggested(product)) {
      throw Error("cuBLASLt does not suggest the stored algorithm for this product here", "CUBLAS_STATUS_NOT_SUPPORTED");
    }
  }

  // Enqueues D = A B, as Kernel::launch. cuBLASLt may load code at its first use, which a capture on another stream forbids.
  void launch(Address a, Address b, Address d, Stream stream, Address third = 0) {
    if (third) throw Error("a stored algorithm reads no third operand", "CUDA_ERROR_INVALID_VALUE");
    if ((a | b | d) % kAlignment) {
      throw Error("operands must be aligned to 256 bytes, as they were when the algorithm was timed",
                  "CUBLAS_STATUS_INVALID_VALUE");
    }
    const Current current(driver_, lt_->gpu->context());
    std::unique_lock lock(mutex_);  // launches that share a workspace must not interleave with those of another thread
    const Address scratch = workspace_bytes_ ? workspaces_.of(*lt_->gpu, stream, workspace_bytes_, 0) : 0;
    if (!workspace_bytes_) lock.unlock();
    const float one = 1, zero = 0;
    const RelaxedCapture relaxed(driver_);
    library_.check(library_.multiply(lt_->handle(), operation_.get(), &one, pointer(b), left_.get(), pointer(a), right_.get(),
                                     &zero, pointer(d), out_.get(), pointer(d), out_.get(), &algorithm_, pointer(scratch),
                                     workspace_bytes_, stream),
                   "cublasLtMatmul");
  }

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  std::size_t workspaces() const {
    const std::lock_guard lock(mutex_);
    return workspaces_.size();
  }

 private:
  using Owned = std::unique_ptr<void, LtDestroy>;

  static void* pointer(Address address) { return reinterpret_cast<void*>(address); }

  // The column-major D' = B' A', whose operands lie in memory as those of D = A B: B is on the left.
  void describe(const LtProduct& product) {
    const auto [m, n, k] = std::array{product.m, product.n, product.k};
    LtDescriptor made = nullptr;
    library_.check(library_.operation_create(&made, kLtCompute32, kLtReal32), "cublasLtMatmulDescCreate");
    operation_ = Owned(made, {library_.operation_destroy});
    transpose(kLtTransposeA, product.transposes_b);
    transpose(kLtTransposeB, product.transposes_a);
    const int type = product.bfloat16 ? kLtBrain16 : kLtReal16;
    left_ = product.transposes_b ? matrix(type, k, n) : matrix(type, n, k);
    right_ = product.transposes_a ? matrix(type, m, k) : matrix(type, k, m);
    out_ = matrix(type, n, m);
  }

  void transpose(int attribute, bool transposed) {
    const std::int32_t value = transposed;  // CUBLAS_OP_N, CUBLAS_OP_T
    library_.check(library_.operation_set(operation_.get(), attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }

  // Without gaps between its columns.
  Owned matrix(int type, std::uint64_t rows, std::uint64_t columns) const {
    LtDescriptor made = nullptr;
    library_.check(library_.matrix_create(&made, type, rows, columns, static_cast<std::int64_t>(rows)),
                   "cublasLtMatrixLayoutCreate");
    return Owned(made, {library_.matrix_destroy});
  }

  bool restored(const LtProduct& product) {
    if (product.opaque.size() != sizeof(LtAlgorithm)) return false;
    LtAlgorithm algorithm;
    std::memcpy(&algorithm, product.opaque.data(), sizeof algorithm);
    return taken(algorithm, product.configuration);
  }

  bool suggested(const LtProduct& product) {
    LtDescriptor made = nullptr;
    library_.check(library_.preference_create(&made), "cublasLtMatmulPreferenceCreate");
    const Owned preference(made, {library_.preference_destroy});
    library_.check(library_.preference_set(preference.get(), kLtMaxWorkspace, &kLtWorkspaceBytes, sizeof kLtWorkspaceBytes),
                   "cublasLtMatmulPreferenceSetAttribute");
    std::vector<LtResult> results(kLtSuggestions);
    int found = 0;
    library_.check(library_.suggest(lt_->handle(), operation_.get(), left_.get(), right_.get(), out_.get(), out_.get(),
                                    preference.get(), kLtSuggestions, results.data(), &found),
                   "cublasLtMatmulAlgoGetHeuristic");
    for (int index = 0; index < found; ++index) {
      if (results[index].state == kLtSuccess && taken(results[index].algorithm, product.configuration)) return true;
    }
    return false;
  }

  // Takes an algorithm if it is the one that is wanted, and cuBLASLt can run it in the workspace that it may have.
  bool taken(const LtAlgorithm& algorithm, const LtConfiguration& wanted) {
    LtResult result = {};
    if (configuration_of(algorithm) != wanted ||
        library_.check_algorithm(lt_->handle(), operation_.get(), left_.get(), right_.get(), out_.get(), out_.get(), &algorithm,
                                 &result) != kLtSuccess ||
        result.state != kLtSuccess || result.workspace_bytes > kLtWorkspaceBytes) {
      return false;
    }
    algorithm_ = algorithm;
    workspace_bytes_ = result.workspace_bytes;
    return true;
  }

  // Nothing where cuBLASLt does not know the algorithm.
  std::optional<LtConfiguration> configuration_of(const LtAlgorithm& algorithm) const {
    // CUBLASLT_ALGO_CONFIG_ID, TILE_ID, STAGES_ID, SPLITK_NUM, REDUCTION_SCHEME, CLUSTER_SHAPE_ID: attribute and bytes.
    static constexpr std::array<std::pair<int, std::size_t>, 6> kAttributes = {
        {{0, 4}, {1, 4}, {6, 4}, {2, 4}, {3, 4}, {8, 2}}};
    LtConfiguration values = {};
    for (std::size_t at = 0; at < values.size(); ++at) {
      const auto [attribute, bytes] = kAttributes[at];
      std::uint32_t value = 0;  // of little-endian machines
      std::size_t written = 0;
      if (library_.configuration(&algorithm, attribute, &value, bytes, &written) != kLtSuccess) return std::nullopt;
      values[at] = static_cast<std::int32_t>(value);
    }
    return values;
  }

  const std::shared_ptr<const Lt> lt_;
  const Driver& driver_;
  const LtLibrary& library_;
  Owned operation_, left_, right_, out_;
  LtAlgorithm algorithm_ = {};
  std::size_t workspace_bytes_ = 0;
  mutable std::mutex mutex_;
  Workspaces workspaces_;
};

}  // namespace cudal2
