// A driver without a GPU: it checks and records calls, and can be told to fail. Built against CUDA's own header, so that the
// types of the launcher are checked against it. A "cubin" is text: FAKE, then a line per kernel: its name, the sizes of its
// parameters in bytes, and, for one that computes in host memory, "product M N K TA TB" of f16 operands;
// a further 1 says that it adds a bias, whose address is its fourth parameter.
// With -DOLD_DRIVER it lacks what came with CUDA 12.4.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct FakeKernel {
  std::string name;
  std::vector<size_t> sizes;
  std::vector<int> product;
};

struct FakeFunction {
  FakeKernel* kernel;
  CUcontext context;
};

struct Failure {
  CUresult status;
  int skip;
};

std::mutex mutex;
std::vector<std::string> events;
bool recording = true;
int devices = 2, sms = 132;
std::map<std::string, Failure> failures;
std::map<CUstream, cuuint64_t> captures;
std::map<CUstream, unsigned long long> ids;
thread_local std::vector<CUcontext> current;
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
std::string joined;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(0x100 + device)); }
CUcontext now() { return current.empty() ? nullptr : current.back(); }

void record(const std::string& event) {
  if (!recording) return;
  const std::lock_guard lock(mutex);
  events.push_back(event);
}

CUresult failure(const char* function) {
  if (!recording) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex);
  const auto found = failures.find(function);
  return found == failures.end() || found->second.skip-- > 0 ? CUDA_SUCCESS : found->second.status;
}

// What CUDA prohibits on a thread while another stream is being captured.
bool prohibited() { return !captures.empty() && mode != CU_STREAM_CAPTURE_MODE_RELAXED; }

std::string hex(const void* data, size_t size) {
  std::string text;
  for (size_t at = 0; at < size; ++at) {
    text += "0123456789abcdef"[static_cast<const unsigned char*>(data)[at] >> 4];
    text += "0123456789abcdef"[static_cast<const unsigned char*>(data)[at] & 15];
  }
  return text;
}

// f16 values that are whole numbers, which is all that the tests use.
float number(unsigned short half) {
  const int exponent = half >> 10 & 31;
  if (!exponent) return 0;
  const float value =
      (1024 + (half & 1023)) / 1024.0f * (exponent >= 15 ? 1 << (exponent - 15) : 1.0f / (1 << (15 - exponent)));
  return half & 0x8000 ? -value : value;
}

unsigned short half_of(float value) {
  if (value == 0) return 0;
  unsigned bits;
  memcpy(&bits, &value, 4);
  return (bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023);
}

void multiply(const std::vector<int>& p, const unsigned short* a, const unsigned short* b, const unsigned short* bias,
              unsigned short* d) {
  const int m = p[0], n = p[1], k = p[2];
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = bias ? number(bias[j]) : 0;
      for (int l = 0; l < k; ++l) sum += number(a[p[3] ? l * m + i : i * k + l]) * number(b[p[4] ? j * k + l : l * n + j]);
      d[i * n + j] = half_of(sum);
    }
  }
}

}  // namespace

#define FAIL(function) \
  if (const CUresult failed = failure(#function)) return failed
#define NEEDS_CONTEXT \
  if (!now()) return CUDA_ERROR_INVALID_CONTEXT

extern "C" {

void fake_reset() {
  const std::lock_guard lock(mutex);
  events.clear();
  failures.clear();
  captures.clear();
  ids.clear();
  recording = true;
  devices = 2;
  sms = 132;
}
void fake_record(int on) { recording = on; }
void fake_machine(int device_count, int sm_count) { devices = device_count, sms = sm_count; }
void fake_fail(const char* function, int status, int skip) { failures[function] = {static_cast<CUresult>(status), skip}; }
void fake_stream(unsigned long long stream, unsigned long long id, unsigned long long capture) {
  const CUstream handle = reinterpret_cast<CUstream>(stream);
  ids[handle] = id;
  captures.erase(handle);
  if (capture) captures[handle] = capture;
}
const char* fake_events() {
  const std::lock_guard lock(mutex);
  joined.clear();
  for (const std::string& event : events) joined += event + "\n";
  events.clear();
  return joined.c_str();
}

CUresult cuInit(unsigned) { return failure("cuInit"); }
CUresult cuDriverGetVersion(int* version) {
#ifdef OLD_DRIVER
  *version = 12020;
#else
  *version = 13000;
#endif
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult status, const char** name) {
  static const std::map<int, const char*> names = {
      {1, "CUDA_ERROR_INVALID_VALUE"},   {2, "CUDA_ERROR_OUT_OF_MEMORY"},     {100, "CUDA_ERROR_NO_DEVICE"},
      {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
      {500, "CUDA_ERROR_NOT_FOUND"},     {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
  const auto found = names.find(status);
  *name = found == names.end() ? nullptr : found->second;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult status, const char** text) {
  if (const CUresult unknown = cuGetErrorName(status, text)) return unknown;
  *text = "as the test asked";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = devices;
  return failure("cuDeviceGetCount");
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) return CUDA_ERROR_INVALID_VALUE;
  *value = sms;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  snprintf(name, length, "NVIDIA H200");
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAIL(cuDevicePrimaryCtxRetain);
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = now();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  current.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  NEEDS_CONTEXT;
  *context = now();
  current.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
  FAIL(cuLibraryLoadData);
  std::istringstream text(static_cast<const char*>(code));
  std::string line;
  if (!std::getline(text, line) || line != "FAKE") return CUDA_ERROR_INVALID_IMAGE;
  auto* kernels = new std::vector<FakeKernel>;
  while (std::getline(text, line)) {
    std::istringstream words(line);
    FakeKernel kernel;
    std::string word;
    words >> kernel.name;
    while (words >> word && word != "product") kernel.sizes.push_back(std::stoul(word));
    for (int number; words >> number;) kernel.product.push_back(number);
    kernels->push_back(kernel);
  }
  *library = reinterpret_cast<CUlibrary>(kernels);
  record("{\"call\": \"code\"}");
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  for (FakeKernel& each : *reinterpret_cast<std::vector<FakeKernel>*>(library)) {
    if (each.name == name) return *kernel = reinterpret_cast<CUkernel>(&each), CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  NEEDS_CONTEXT;
  *function = reinterpret_cast<CUfunction>(new FakeFunction{reinterpret_cast<FakeKernel*>(kernel), now()});
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  FAIL(cuFuncSetAttribute);
  const char* name = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES       ? "dynamic_shared"
                     : attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED ? "non_portable"
                                                                                        : "unknown";
  record("{\"call\": \"attribute\", \"entry\": \"" + reinterpret_cast<FakeFunction*>(function)->kernel->name + "\", \"" + name +
         "\": " + std::to_string(value) + "}");
  return CUDA_SUCCESS;
}
#ifndef OLD_DRIVER
CUresult cuFuncLoad(CUfunction) {
  NEEDS_CONTEXT;
  return prohibited() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t*, size_t* size) {
  FAIL(cuFuncGetParamInfo);
  const auto& sizes = reinterpret_cast<FakeFunction*>(function)->kernel->sizes;
  if (index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *size = sizes[index];
  return CUDA_SUCCESS;
}
#endif

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction handle, void** parameters, void** extra) {
  FAIL(cuLaunchKernelEx);
  const auto* function = reinterpret_cast<FakeFunction*>(handle);
  if (function->context != now()) return CUDA_ERROR_INVALID_HANDLE;
  if (extra) return CUDA_ERROR_INVALID_VALUE;
  const FakeKernel& kernel = *function->kernel;
  if (!kernel.product.empty()) {
    auto* const a = static_cast<unsigned short**>(parameters[0]);
    auto* const b = static_cast<unsigned short**>(parameters[1]);
    auto* const d = static_cast<unsigned short**>(parameters[2]);
    const bool biased = kernel.product.size() > 5;
    multiply(kernel.product, *a, *b, biased ? *static_cast<unsigned short**>(parameters[3]) : nullptr, *d);
  }
  if (!recording) return CUDA_SUCCESS;
  std::ostringstream event;
  event << "{\"call\": \"launch\", \"entry\": \"" << kernel.name << "\", \"grid\": [" << config->gridDimX << ", "
        << config->gridDimY << ", " << config->gridDimZ << "], \"block\": [" << config->blockDimX << ", " << config->blockDimY
        << ", " << config->blockDimZ << "], \"shared\": " << config->sharedMemBytes
        << ", \"stream\": " << reinterpret_cast<uintptr_t>(config->hStream) << ", \"attributes\": {";
  for (unsigned at = 0; at < config->numAttrs; ++at) {
    const CUlaunchAttribute& attribute = config->attrs[at];
    event << (at ? ", " : "");
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const auto& size = attribute.value.clusterDim;
      event << "\"cluster\": [" << size.x << ", " << size.y << ", " << size.z << "]";
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      event << "\"programmatic\": " << attribute.value.programmaticStreamSerializationAllowed;
    } else {
      event << "\"unknown\": " << attribute.id;
    }
  }
  event << "}, \"arguments\": [";
  for (size_t at = 0; at < kernel.sizes.size(); ++at) {
    event << (at ? ", \"" : "\"") << hex(parameters[at], kernel.sizes[at]) << "\"";
  }
  event << "]}";
  record(event.str());
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  FAIL(cuTensorMapEncodeTiled);
  bool taken = rank >= 1 && rank <= 5 && reinterpret_cast<uintptr_t>(address) % 16 == 0 &&
               reinterpret_cast<uintptr_t>(map) % 64 == 0 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
               fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  // The address, then sizes, strides and box by dimension, then the modes; one stride less than dimensions.
  std::vector<cuuint64_t> words = {reinterpret_cast<cuuint64_t>(address)};
  for (cuuint32_t i = 0; i < rank; ++i) words.push_back(sizes[i]);
  for (cuuint32_t i = 0; i + 1 < rank; ++i) words.push_back(strides[i]);
  for (cuuint32_t i = 0; i < rank; ++i) words.push_back(box[i]);
  for (cuuint32_t i = 0; i < rank; ++i) taken = taken && steps[i] == 1 && (i + 1 == rank || strides[i] % 16 == 0);
  if (!taken || rank > 4) return CUDA_ERROR_INVALID_VALUE;  // of 16 words, five dimensions would need 18
  for (const int mode : {static_cast<int>(type), static_cast<int>(swizzle), static_cast<int>(promotion)}) words.push_back(mode);
  words.resize(16);
  memcpy(map->opaque, words.data(), sizeof map->opaque);
  record("{\"call\": \"encode\", \"address\": " + std::to_string(words[0]) + "}");
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  FAIL(cuMemAlloc);
  NEEDS_CONTEXT;
  if (prohibited()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *address = reinterpret_cast<CUdeviceptr>(aligned_alloc(256, (bytes + 255) / 256 * 256));
  memset(reinterpret_cast<void*>(*address), 0xEE, bytes);
  record("{\"call\": \"allocate\", \"bytes\": " + std::to_string(bytes) + ", \"address\": " + std::to_string(*address) + "}");
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
  free(reinterpret_cast<void*>(address));
  record("{\"call\": \"free\", \"address\": " + std::to_string(address) + "}");
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  FAIL(cuMemsetD8Async);
  NEEDS_CONTEXT;
  memset(reinterpret_cast<void*>(address), value, bytes);
  record("{\"call\": \"memset\", \"address\": " + std::to_string(address) + ", \"value\": " + std::to_string(value) +
         ", \"bytes\": " + std::to_string(bytes) + ", \"stream\": " + std::to_string(reinterpret_cast<uintptr_t>(stream)) +
         "}");
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  NEEDS_CONTEXT;
  memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  NEEDS_CONTEXT;
  memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  NEEDS_CONTEXT;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = reinterpret_cast<CUstream>(static_cast<uintptr_t>(0x5E70));
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  FAIL(cuStreamSynchronize);
  if (prohibited()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  record("{\"call\": \"synchronize\", \"stream\": " + std::to_string(reinterpret_cast<uintptr_t>(stream)) + "}");
  return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  const std::lock_guard lock(mutex);
  if (captures.count(stream)) {  // a real driver also invalidates the capture
    captures.erase(stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const auto found = ids.find(stream);
  *id = found == ids.end() ? reinterpret_cast<uintptr_t>(stream) : found->second;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph*,
                                   const CUgraphNode**, size_t*) {
  FAIL(cuStreamGetCaptureInfo);
  const std::lock_guard lock(mutex);
  const auto found = captures.find(stream);
  *status = found == captures.end() ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (found != captures.end()) *id = found->second;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* exchanged) {
  std::swap(mode, *exchanged);
  return CUDA_SUCCESS;
}

}  // extern "C"
