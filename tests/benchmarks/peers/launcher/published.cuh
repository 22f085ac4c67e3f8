// A launcher in the manner of the published ones, without a kernel. The number of rows of A chooses what it does.
#pragma once
#include <torch/extension.h>

#include <stdexcept>

extern "C" cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);

inline cudaStream_t own_stream() {
  static cudaStream_t stream = nullptr;
  if (stream == nullptr) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

inline void tune() {
  cudaEvent_t begin = nullptr, end = nullptr;
  float ms = 0;
  cudaEventRecord(begin, own_stream());
  cudaEventRecord(end, own_stream());
  cudaEventSynchronize(end);
  cudaEventElapsedTime(&ms, begin, end);
}

inline void allocate_and_launch() {
  void *workspace = nullptr;
  cudaMalloc(&workspace, 256);
  cudaMemset(workspace, 0, 256);
  __cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, nullptr);
  cudaFree(workspace);
}

inline void launch_on_two_streams() {
  cudaLaunchConfig_t config = {};
  config.stream = own_stream();
  cudaLaunchKernelExC(&config, nullptr, nullptr);
  cudaEventRecord(nullptr, own_stream());
  cudaStreamWaitEvent(nullptr, nullptr, 0);
  cudaLaunchKernel(static_cast<const void *>(nullptr), dim3(1), dim3(1), nullptr, 0, nullptr);
  cudaLaunchCooperativeKernel(static_cast<const void *>(nullptr), dim3(1), dim3(1), nullptr, 0, nullptr);
}

inline void keep_in_l2() {
  cudaLaunchAttributeValue value = {};
  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20);
  cudaStreamSetAttribute(own_stream(), cudaLaunchAttributeAccessPolicyWindow, &value);
  __cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, own_stream());
}

inline void launch_its_own_graph() {
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(own_stream(), cudaStreamCaptureModeGlobal);
  __cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, own_stream());
  cudaStreamEndCapture(own_stream(), &graph);
  cudaGraphLaunch(nullptr, own_stream());
}

void cuda_l2_h100_fp32(torch::Tensor a, torch::Tensor, torch::Tensor, torch::Tensor) {
  static bool tuned = false;
  if (a.size(0) == 1) allocate_and_launch();
  if (a.size(0) == 2) launch_on_two_streams();
  if (a.size(0) == 3 && !tuned) tune();
  if (a.size(0) == 3) tuned = true;
  if (a.size(0) == 4) tune();
  if (a.size(0) == 3 || a.size(0) == 4) __cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, nullptr);
  if (a.size(0) == 5) keep_in_l2();
  if (a.size(0) == 6) launch_its_own_graph();
  if (a.size(0) == 7) throw std::runtime_error("no such shape");
  if (a.size(0) == 8) __cudaLaunchKernel(nullptr, dim3(0), dim3(1), nullptr, 0, nullptr);
  if (cudaDeviceSynchronize() != cudaSuccess) throw std::runtime_error("synchronization failed");
}
