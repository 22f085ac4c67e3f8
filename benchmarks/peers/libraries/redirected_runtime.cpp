// The linker's --wrap sends each runtime call of a published launcher, unchanged, to the function here with the prefix __wrap_.
// So launches can be captured in a graph of the caller's stream: no stream of their own, no synchronisation, no new memory.
//
// Covered: launches, copies, fills and events on any stream, which follow one another on the caller's stream in the order of
// the calls; synchronisation, which is left out during capture; allocations, which are kept and used again; graphs.
// Not covered: launches through the driver's interface. Kernels that a launcher runs side by side on several streams run one
// after another here.
#include "redirected_runtime.h"

#include <cstddef>
#include <map>
#include <unordered_map>

namespace {

struct Redirection {
  cudaStream_t stream = nullptr;
  cudaStream_t recorded = nullptr;  // a stream that the launcher captures into a graph of its own
  bool active = false, capturing = false, times_itself = false, has_window = false;
  cudaError_t last_launch = cudaErrorNotReady;
};

Redirection redirection;

// A stream orders the users of a block, so that a block can be used again as soon as it is freed.
struct Blocks {
  std::unordered_map<void *, size_t> sizes;
  std::multimap<size_t, void *> free;
};

// It outlives every static object, because destructors of launchers free memory.
Blocks &blocks() {
  static auto *const kept = new Blocks;
  return *kept;
}

cudaStream_t redirected(cudaStream_t asked) {
  const bool own = redirection.recorded != nullptr && asked == redirection.recorded;
  return redirection.active && !own ? redirection.stream : asked;
}

cudaError_t noted(cudaError_t launch) { return redirection.last_launch = launch; }

bool left_out() { return redirection.active && redirection.capturing; }

}  // namespace

extern "C" {

cudaError_t __real_cudaMalloc(void **, size_t);
cudaError_t __real___cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t __real_cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t __real_cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **);
cudaError_t __real_cudaMemsetAsync(void *, int, size_t, cudaStream_t);
cudaError_t __real_cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t __real_cudaDeviceSynchronize();
cudaError_t __real_cudaStreamSynchronize(cudaStream_t);
cudaError_t __real_cudaEventSynchronize(cudaEvent_t);
cudaError_t __real_cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t __real_cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t);
cudaError_t __real_cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t __real_cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t __real_cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t __real_cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t __real_cudaStreamSetAttribute(cudaStream_t, cudaLaunchAttributeID, const cudaLaunchAttributeValue *);
cudaError_t __real_cudaDeviceSetLimit(cudaLimit, size_t);

cudaError_t __wrap_cudaMalloc(void **address, size_t size) {
  Blocks &all = blocks();
  if (const auto found = all.free.find(size); found != all.free.end()) {
    *address = found->second;
    all.free.erase(found);
    return cudaSuccess;
  }
  const cudaError_t status = __real_cudaMalloc(address, size);
  if (status == cudaSuccess && *address != nullptr) all.sizes[*address] = size;
  return status;
}

cudaError_t __wrap_cudaFree(void *address) {
  const auto found = blocks().sizes.find(address);
  if (found != blocks().sizes.end()) blocks().free.emplace(found->second, address);
  return cudaSuccess;
}

cudaError_t __wrap_cudaMallocAsync(void **address, size_t size, cudaStream_t) { return __wrap_cudaMalloc(address, size); }

cudaError_t __wrap_cudaFreeAsync(void *address, cudaStream_t) { return __wrap_cudaFree(address); }

// What the compiler makes of <<<>>>.
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t smem,
                                      cudaStream_t stream) {
  return noted(__real___cudaLaunchKernel(kernel, grid, block, arguments, smem, redirected(stream)));
}

cudaError_t __wrap_cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t smem,
                                    cudaStream_t stream) {
  return noted(__real_cudaLaunchKernel(kernel, grid, block, arguments, smem, redirected(stream)));
}

cudaError_t __wrap_cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t smem,
                                               cudaStream_t stream) {
  return noted(__real_cudaLaunchCooperativeKernel(kernel, grid, block, arguments, smem, redirected(stream)));
}

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *asked, const void *kernel, void **arguments) {
  cudaLaunchConfig_t config = *asked;
  config.stream = redirected(asked->stream);
  return noted(__real_cudaLaunchKernelExC(&config, kernel, arguments));
}

cudaError_t __wrap_cudaMemsetAsync(void *address, int value, size_t size, cudaStream_t stream) {
  return __real_cudaMemsetAsync(address, value, size, redirected(stream));
}

cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  return __real_cudaMemcpyAsync(to, from, size, kind, redirected(stream));
}

cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  return left_out() ? cudaSuccess : __real_cudaStreamSynchronize(redirected(stream));
}

cudaError_t __wrap_cudaDeviceSynchronize() { return left_out() ? cudaSuccess : __real_cudaDeviceSynchronize(); }

cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  return left_out() ? cudaSuccess : __real_cudaEventSynchronize(event);
}

cudaError_t __wrap_cudaMemset(void *address, int value, size_t size) {
  const cudaError_t status = __wrap_cudaMemsetAsync(address, value, size, nullptr);
  return status == cudaSuccess ? __wrap_cudaStreamSynchronize(nullptr) : status;
}

cudaError_t __wrap_cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  const cudaError_t status = __wrap_cudaMemcpyAsync(to, from, size, kind, nullptr);
  return status == cudaSuccess ? __wrap_cudaStreamSynchronize(nullptr) : status;
}

cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return left_out() ? cudaSuccess : __real_cudaEventRecord(event, redirected(stream));
}

cudaError_t __wrap_cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  if (!left_out()) return __real_cudaEventElapsedTime(ms, begin, end);
  redirection.times_itself = true;
  *ms = 1.0f;
  return cudaSuccess;
}

// Whatever an event marks is ahead on the same stream.
cudaError_t __wrap_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return redirection.active ? cudaSuccess : __real_cudaStreamWaitEvent(stream, event, flags);
}

cudaError_t __wrap_cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  redirection.recorded = stream;
  return __real_cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
}

cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  redirection.recorded = nullptr;
  return __real_cudaStreamEndCapture(stream, graph);
}

cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return noted(__real_cudaGraphLaunch(graph, redirected(stream)));
}

// A window of L2 persistence holds for the launches of one call; the caller's stream has none afterwards.
cudaError_t __wrap_cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID name, const cudaLaunchAttributeValue *value) {
  redirection.has_window |= redirection.active && name == cudaLaunchAttributeAccessPolicyWindow;
  return __real_cudaStreamSetAttribute(redirected(stream), name, value);
}

// L2 that is set aside would be missing for all others; so none is.
cudaError_t __wrap_cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return limit == cudaLimitPersistingL2CacheSize ? cudaSuccess : __real_cudaDeviceSetLimit(limit, value);
}

}  // extern "C"

void begin_redirection(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &status);
  redirection = Redirection{};
  redirection.stream = stream;
  redirection.active = true;
  redirection.capturing = status == cudaStreamCaptureStatusActive;
}

Redirected end_redirection() {
  if (redirection.has_window) {
    const cudaLaunchAttributeValue none = {};
    __real_cudaStreamSetAttribute(redirection.stream, cudaLaunchAttributeAccessPolicyWindow, &none);
  }
  redirection.active = false;
  if (redirection.times_itself) return Redirected::kTimesItself;
  return redirection.last_launch == cudaSuccess ? Redirected::kWhole : Redirected::kNotLaunched;
}
