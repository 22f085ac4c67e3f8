// Runs a host launcher against a CUDA runtime that records what it is asked: one line per memset and launch.
// Arguments: fault to inject or "none"; then, for every launch, the sizes of its arguments in bytes, separated by commas.
#include "launch.cu"

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#define ENTRY(name)                                \
  extern "C" void recorded_##name() __asm__(#name); \
  void recorded_##name() {}
ENTRIES
#undef ENTRY

static std::vector<std::vector<int>> sizes;
static size_t launches = 0;
static int smem_allowed = 0, cluster_allowed = 0;
alignas(256) static std::byte workspace_memory[1 << 16];

static std::string name_of(const void* kernel) {
#define ENTRY(name) \
  if (kernel == reinterpret_cast<const void*>(&recorded_##name)) return #name;
  ENTRIES
#undef ENTRY
  return "unknown";
}

static void print_bytes(const void* data, int size) {
  for (int i = 0; i < size; ++i) std::printf("%02x", static_cast<const unsigned char*>(data)[i]);
}

extern "C" {
const char* cudaGetErrorString(cudaError_t) { return "recorded"; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = SMS, cudaSuccess; }
cudaError_t cudaMalloc(void** pointer, size_t size) {
  std::printf("malloc %zu\n", size);
  return *pointer = workspace_memory, cudaSuccess;
}
cudaError_t cudaMemset(void* pointer, int value, size_t size) {
  std::printf("memset %d %zu %d\n", pointer == workspace_memory, size, value);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t size, cudaStream_t stream) {
  std::printf("memset-async %d %zu %d %p\n", pointer == workspace_memory, size, value, static_cast<void*>(stream));
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize ? smem_allowed : cluster_allowed) = value;
  return cudaSuccess;
}
CUresult CUDAAPI record_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                   const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                   const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                   CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  uint64_t words[16] = {static_cast<uint64_t>(type), rank, reinterpret_cast<uint64_t>(address)};
  uint64_t* word = words + 3;
  for (cuuint32_t i = 0; i < rank; ++i) *word++ = dims[i];
  for (cuuint32_t i = 0; i + 1 < rank; ++i) *word++ = strides[i];
  for (cuuint32_t i = 0; i < rank; ++i) *word++ = box[i];
  *word = 1;  // the step of all dimensions
  for (cuuint32_t i = 0; i < rank; ++i) *word = steps[i] == 1 ? *word : 0;
  for (const int mode : {int(interleave), int(swizzle), int(promotion), int(fill)}) *++word = static_cast<uint64_t>(mode);
  std::memcpy(map, words, sizeof(words));
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&record_tensor_map);
  return *result = cudaDriverEntryPointSuccess, cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  dim3 cluster(1, 1, 1);
  int programmatic = 0;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension)
      cluster = dim3(attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z);
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      programmatic = attribute.val.programmaticStreamSerializationAllowed;
  }
  const dim3 grid = config->gridDim, block = config->blockDim;
  std::printf("launch %s %u,%u,%u %u,%u,%u %u,%u,%u %zu %d %d %d %p", name_of(kernel).c_str(), grid.x, grid.y, grid.z, block.x,
              block.y, block.z, cluster.x, cluster.y, cluster.z, config->dynamicSmemBytes, smem_allowed, cluster_allowed,
              programmatic, static_cast<void*>(config->stream));
  for (int size : sizes[launches]) {
    std::printf(" ");
    print_bytes(*arguments++, size);
  }
  std::printf(*arguments == nullptr ? "\n" : " too-many\n");
  ++launches, smem_allowed = cluster_allowed = 0;
  return cudaSuccess;
}
}

using tvm::ffi::TensorView;

int main(int count, char** words) {
  const std::string fault = words[1];
  for (int i = 2; i < count; ++i) {
    sizes.emplace_back();
    for (char* word = std::strtok(words[i], ","); word; word = std::strtok(nullptr, ",")) sizes.back().push_back(atoi(word));
  }
  auto view = [](uint64_t address, int64_t rows, int64_t columns) {
    return TensorView{reinterpret_cast<void*>(address), {rows, columns}, {columns, 1}, {ELEMENT, 16, 1}};
  };
  TensorView a = view(0x10000, A_SHAPE), b = view(0x20000, B_SHAPE), d = view(0x30000, D_SHAPE);
  if (fault == "shape") a.sizes_[0] += 1;
  if (fault == "type") b.dtype_.code = kDLInt;
  if (fault == "stride") d.strides_[0] += 8;
  if (fault == "alignment") d.data_ = reinterpret_cast<void*>(0x30010);
  if (fault == "cpu") b.device_.device_type = kDLCPU;
  if (fault == "device") b.device_.device_id = 1;
  cudal2_launcher::run(a, b, d);
  if (fault == "twice") launches = 0, cudal2_launcher::run(a, b, d);
  return 0;
}
