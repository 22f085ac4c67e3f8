// The part of the CUDA driver that launches need: its types, laid out as its ABI has them, and its functions, found at run
// time. Neither a CUDA header nor a CUDA library is needed to build this. Every type has the layout of cuda.h of CUDA 12.4 and
// later.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace cudal2 {

using Result = int;  // CUresult
using Context = struct OpaqueContext*;
using Stream = struct OpaqueStream*;
using Library = struct OpaqueLibrary*;
using LibraryKernel = struct OpaqueKernel*;
using Function = struct OpaqueFunction*;
using Address = std::uint64_t;  // CUdeviceptr

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr int kSmCount = 16;          // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kNonPortableCluster = 14;
constexpr int kAttributeCluster = 4;       // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kAttributeProgrammatic = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureActive = 1;
constexpr unsigned kNonBlocking = 1;  // of a stream

struct alignas(128) TensorMap {  // CUtensorMap
  std::uint64_t words[16];
};

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  char padding[4];
  union alignas(8) {
    char bytes[64];
    unsigned cluster[3];
    int programmatic;
  } value;
};

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// Member, symbol and parameters of every function that is used. The symbols name one version of a function each.
#define CUDAL2_DRIVER_FUNCTIONS(X)                                                                                           \
  X(init, cuInit, (unsigned flags))                                                                                          \
  X(driver_version, cuDriverGetVersion, (int* version))                                                                      \
  X(error_name, cuGetErrorName, (Result status, const char** name))                                                          \
  X(error_text, cuGetErrorString, (Result status, const char** text))                                                        \
  X(device_count, cuDeviceGetCount, (int* count))                                                                            \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, int device))                                         \
  X(device_name, cuDeviceGetName, (char* name, int length, int device))                                                      \
  X(retain_context, cuDevicePrimaryCtxRetain, (Context * context, int device))                                               \
  X(current_context, cuCtxGetCurrent, (Context * context))                                                                   \
  X(push_context, cuCtxPushCurrent_v2, (Context context))                                                                    \
  X(pop_context, cuCtxPopCurrent_v2, (Context * context))                                                                    \
  X(load_library, cuLibraryLoadData,                                                                                         \
    (Library * library, const void* code, int* jit_options, void** jit_values, unsigned jit_count, int* options,             \
     void** values, unsigned count))                                                                                         \
  X(library_kernel, cuLibraryGetKernel, (LibraryKernel * kernel, Library library, const char* name))                         \
  X(kernel_function, cuKernelGetFunction, (Function * function, LibraryKernel kernel))                                       \
  X(load_function, cuFuncLoad, (Function function))                                                                          \
  X(parameter_info, cuFuncGetParamInfo, (Function function, std::size_t index, std::size_t* offset, std::size_t* bytes))     \
  X(set_function_attribute, cuFuncSetAttribute, (Function function, int attribute, int value))                               \
  X(launch, cuLaunchKernelEx, (const LaunchConfig* config, Function function, void** parameters, void** extra))              \
  X(encode_tiled, cuTensorMapEncodeTiled,                                                                                    \
    (TensorMap * map, int type, std::uint32_t rank, void* address, const std::uint64_t* sizes, const std::uint64_t* strides, \
     const std::uint32_t* box, const std::uint32_t* steps, int interleave, int swizzle, int promotion, int fill))            \
  X(allocate, cuMemAlloc_v2, (Address * address, std::size_t bytes))                                                         \
  X(free, cuMemFree_v2, (Address address))                                                                                   \
  X(set_bytes, cuMemsetD8Async, (Address address, unsigned char value, std::size_t bytes, Stream stream))                    \
  X(create_stream, cuStreamCreate, (Stream * stream, unsigned flags))                                                        \
  X(synchronize, cuStreamSynchronize, (Stream stream))                                                                       \
  X(stream_id, cuStreamGetId, (Stream stream, unsigned long long* id))                                                       \
  X(capture_info, cuStreamGetCaptureInfo_v2,                                                                                 \
    (Stream stream, int* status, std::uint64_t* id, void** graph, const void*** nodes, std::size_t* count))                  \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))

// There is no driver, it is too old, or it shows no such device.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A call of the driver failed, or a kernel was asked for what it was not made for. `status`: the driver's name of the error.
class Error : public std::runtime_error {
 public:
  Error(const std::string& message, std::string status) : std::runtime_error(message), status(std::move(status)) {}
  const std::string status;
};

// The functions of one driver library. It stays loaded until the process ends.
class Driver {
 public:
#define CUDAL2_DECLARE(member, symbol, parameters) Result(*member) parameters = nullptr;
  CUDAL2_DRIVER_FUNCTIONS(CUDAL2_DECLARE)
#undef CUDAL2_DECLARE

  explicit Driver(const std::string& file = "libcuda.so.1") {
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) throw Unavailable("no NVIDIA driver: " + file + " does not load; install the driver");
#define CUDAL2_FIND(member, symbol, parameters) \
  if (!(member = reinterpret_cast<Result(*) parameters>(dlsym(handle, #symbol)))) throw too_old(#symbol);
    CUDAL2_DRIVER_FUNCTIONS(CUDAL2_FIND)
#undef CUDAL2_FIND
    const Result status = init(0);
    if (status != kSuccess) throw Unavailable("the NVIDIA driver does not start: cuInit: " + name_of(status));
  }

  void check(Result status, const char* function) const {
    if (status == kSuccess) return;
    const char* text = nullptr;
    error_text(status, &text);
    throw Error(std::string(function) + ": " + name_of(status) + ": " + (text ? text : "no description"), name_of(status));
  }

  std::string name_of(Result status) const {
    const char* name = nullptr;
    error_name(status, &name);
    return name ? name : "CUDA_ERROR_UNKNOWN";
  }

 private:
  Unavailable too_old(const std::string& symbol) const {
    int version = 0;
    std::string supported = "an unknown version";
    if (driver_version && driver_version(&version) == kSuccess) {
      supported = "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }
    return Unavailable("the NVIDIA driver is too old: it supports " + supported + " and lacks " + symbol +
                       "; install one for CUDA 12.4 or later");
  }
};

// Makes a context current for the time of a scope.
class Current {
 public:
  Current(const Driver& driver, Context context) : driver_(driver) {
    Context current = nullptr;
    driver.check(driver.current_context(&current), "cuCtxGetCurrent");
    if (current == context) return;
    driver.check(driver.push_context(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~Current() {
    Context popped = nullptr;
    if (pushed_) driver_.pop_context(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// Lets this thread allocate while a stream is being captured, for the time of a scope. What it does is not captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver.check(driver.exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { driver_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
};

// One GPU: its primary context, which CUDA's runtime and PyTorch use too. It is held until the process ends.
class Gpu {
 public:
  const Driver driver;
  const int device;

  explicit Gpu(int device, const std::string& file = "libcuda.so.1") : driver(file), device(device) {
    int count = 0;
    driver.check(driver.device_count(&count), "cuDeviceGetCount");
    if (device < 0 || device >= count) {
      throw Unavailable("cuda:" + std::to_string(device) + " does not exist; the driver shows " + std::to_string(count) +
                        " GPU(s)");
    }
    driver.check(driver.device_attribute(&sms_, kSmCount, device), "cuDeviceGetAttribute");
    driver.check(driver.retain_context(&context_, device), "cuDevicePrimaryCtxRetain");
    const Current current(driver, context_);
    driver.check(driver.create_stream(&setup_, kNonBlocking), "cuStreamCreate");
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Context context() const { return context_; }
  int sms() const { return sms_; }

  std::string name() const {
    char name[256] = {};
    driver.check(driver.device_name(name, sizeof name, device), "cuDeviceGetName");
    return name;
  }

  // The code of a cubin, loaded anew, or once for all that share it. The context must be current. It stays until the process
  // ends.
  Library code(const std::string& cubin, bool shared) const {
    const std::lock_guard lock(mutex_);
    if (const auto found = shared_.find(cubin); shared && found != shared_.end()) return found->second;
    Library library = nullptr;
    driver.check(driver.load_library(&library, cubin.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    if (shared) shared_.emplace(cubin, library);
    return library;
  }

  // New memory, with its first bytes zero once this returns. The context must be current. It stays until the process ends.
  Address allocate(std::size_t bytes, std::size_t zero_bytes) const {
    const RelaxedCapture relaxed(driver);
    Address address = 0;
    driver.check(driver.allocate(&address, bytes), "cuMemAlloc");
    Result status = zero_bytes ? driver.set_bytes(address, 0, zero_bytes, setup_) : kSuccess;
    if (status == kSuccess && zero_bytes) status = driver.synchronize(setup_);
    if (status != kSuccess) driver.free(address);
    driver.check(status, "clearing a workspace");
    return address;
  }

 private:
  Context context_ = nullptr;
  Stream setup_ = nullptr;  // clears new memory, beside whatever the caller's streams do
  int sms_ = 0;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, Library> shared_;  // by cubin
};

}  // namespace cudal2
