// A CUDA runtime that runs nothing and writes down what it is asked for, and on which stream.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace {

std::string calls;
bool capturing = false;

cudaError_t note(const char *name) {
  calls += std::string(calls.empty() ? "" : " ") + name;
  return cudaSuccess;
}

cudaError_t note(const char *name, cudaStream_t stream) {
  note(name);
  calls += "@" + std::to_string(reinterpret_cast<uintptr_t>(stream));
  return cudaSuccess;
}

}  // namespace

extern "C" {

#define VISIBLE __attribute__((visibility("default")))

VISIBLE const char *take_calls() {
  static std::string taken;
  taken = calls;
  calls.clear();
  return taken.c_str();
}

VISIBLE void capture(int begins) { capturing = begins != 0; }

cudaError_t cudaMalloc(void **address, size_t size) {
  *address = ::operator new(size);
  return note("malloc");
}
cudaError_t cudaFree(void *) { return note("free"); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3 grid, dim3, void **, size_t, cudaStream_t stream) {
  return grid.x == 0 ? cudaErrorInvalidConfiguration : note("launch", stream);
}
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t stream) { return note("launch", stream); }
cudaError_t cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t stream) {
  return note("cooperative", stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *, void **) { return note("cluster", config->stream); }
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t stream) { return note("fill", stream); }
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t stream) { return note("copy", stream); }
cudaError_t cudaDeviceSynchronize() { return capturing ? cudaErrorStreamCaptureUnsupported : note("wait"); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return note("wait", stream); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return note("wait"); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) { return note("event", stream); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) {
  *ms = 2.0f;
  return note("elapsed");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned) { return note("wait-event", stream); }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return note(mode == cudaStreamCaptureModeRelaxed ? "begin" : "begin-strictly", stream);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *) { return note("end", stream); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) { return note("graph", stream); }
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID, const cudaLaunchAttributeValue *) {
  return note("window", stream);
}
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return note("limit"); }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(99);
  return cudaSuccess;
}

}  // extern "C"
