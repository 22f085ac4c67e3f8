// $title
// Written by cudal2-agent from the kernel's launch plan. kernel.cuh holds the kernel as it was verified.
// The workspace is shared by all calls on a device: do not call this on two streams of a device at the same time.
#include <cuda.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

$entries

namespace cudal2_launcher {
namespace {

using tvm::ffi::TensorView;

constexpr uint8_t kElementCode = $element_code;  // of DLPack
constexpr uint64_t kAlignment = 256;  // of operands, in bytes; the kernel was verified with it
constexpr int kSms = $sms;  // of the chip that the launches were planned for; 0 where they do not depend on it
constexpr size_t kWorkspaceBytes = $workspace_bytes;
constexpr size_t kZeroBytes = $zero_bytes;  // at the start of the workspace
constexpr bool kZeroEveryRun = $zero_every_run;
constexpr int kMaxDevices = 64;

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(status);
}

void check_operand(const TensorView& tensor, const char* name, int64_t rows, int64_t columns, DLDevice device) {
  const DLDataType type = tensor.dtype();
  if (type.code != kElementCode || type.bits != 16 || type.lanes != 1)
    TVM_FFI_THROW(TypeError) << name << " must hold $element elements";
  if (tensor.ndim() != 2 || tensor.size(0) != rows || tensor.size(1) != columns)
    TVM_FFI_THROW(ValueError) << name << " must be " << rows << " x " << columns << "; this kernel was verified for one shape";
  if ((columns > 1 && tensor.stride(1) != 1) || (rows > 1 && tensor.stride(0) != columns))
    TVM_FFI_THROW(ValueError) << name << " must be contiguous";
  if (tensor.device().device_type != kDLCUDA || tensor.device().device_id != device.device_id)
    TVM_FFI_THROW(ValueError) << name << " must be on the CUDA device of A";
  if (reinterpret_cast<uint64_t>(tensor.data_ptr()) % kAlignment)
    TVM_FFI_THROW(ValueError) << name << " must be aligned to " << kAlignment << " bytes";
}

// Makes a device current for the time of a call.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device != previous_) check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~CurrentDevice() { cudaSetDevice(previous_); }

 private:
  int previous_ = 0;
};

void check_device(int device) {
  if (kSms == 0) return;
  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  if (sms != kSms) TVM_FFI_THROW(RuntimeError) << "planned for a GPU of " << kSms << " SMs; this one has " << sms;
}

// The workspace of a device, allocated and zeroed at the first call and kept.
std::byte* workspace_of(int device) {
  static std::mutex mutex;
  static std::byte* workspaces[kMaxDevices] = {};
  if (kWorkspaceBytes == 0) return nullptr;
  if (device >= kMaxDevices) TVM_FFI_THROW(RuntimeError) << "device " << device << ": at most " << kMaxDevices << " are supported";
  std::lock_guard<std::mutex> lock(mutex);
  if (workspaces[device] == nullptr) {
    void* allocated = nullptr;
    check(cudaMalloc(&allocated, kWorkspaceBytes), "cudaMalloc");
    check(cudaMemset(allocated, 0, kWorkspaceBytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    workspaces[device] = static_cast<std::byte*>(allocated);
  }
  return workspaces[device];
}

// The driver's encoder of TMA descriptors, found without linking the driver's library.
decltype(&cuTensorMapEncodeTiled) encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result), "cudaGetDriverEntryPoint");
#endif
  if (result != cudaDriverEntryPointSuccess || found == nullptr)
    TVM_FFI_THROW(RuntimeError) << "this driver has no cuTensorMapEncodeTiled";
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

// A TMA descriptor over memory: elements with the contiguous dimension first, strides in bytes of the others.
template <uint32_t rank>
[[maybe_unused]] CUtensorMap tensor_map(CUtensorMapDataType type, void* memory, const cuuint64_t (&sizes)[rank],
                                        const cuuint64_t (&strides)[rank], const cuuint32_t (&box)[rank],
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) {
  static const auto encode = encoder();
  cuuint32_t steps[rank];
  for (cuuint32_t& step : steps) step = 1;
  alignas(64) CUtensorMap map;
  const CUresult status = encode(&map, type, rank, memory, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                 promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) TVM_FFI_THROW(RuntimeError) << "cuTensorMapEncodeTiled failed with " << static_cast<int>(status);
  return map;
}

void launch(void (*entry)(), dim3 grid, dim3 block, dim3 cluster, int smem_bytes, bool programmatic, void** arguments,
            cudaStream_t stream) {
  const void* kernel = reinterpret_cast<const void*>(entry);
  const unsigned cluster_size = cluster.x * cluster.y * cluster.z;
  if (smem_bytes > 0)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes), "dynamic shared memory");
  if (cluster_size > $portable_cluster)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cluster size");
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (cluster_size > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster.x;
    attributes[count].val.clusterDim.y = cluster.y;
    attributes[count++].val.clusterDim.z = cluster.z;
  }
  if (programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelExC(&config, kernel, arguments), "cudaLaunchKernelExC");
}

// D = A B, in destination-passing style, on the caller's current stream.
void run(TensorView A, TensorView B, TensorView D) {
  const DLDevice device = A.device();
  check_operand(A, "A", $a_shape, device);
  check_operand(B, "B", $b_shape, device);
  check_operand(D, "$output", $d_shape, device);
  const CurrentDevice current(device.device_id);
  check_device(device.device_id);
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  std::byte* const workspace = workspace_of(device.device_id);
  if (kZeroEveryRun) check(cudaMemsetAsync(workspace, 0, kZeroBytes, stream), "cudaMemsetAsync");
$launches
}

}  // namespace
}  // namespace cudal2_launcher

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, cudal2_launcher::run);
