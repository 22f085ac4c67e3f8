// Trusted kernels that compare memory with its expected contents.

typedef unsigned char u8;
typedef unsigned long long u64;

// Sets `differs` where the arrays differ. `words` of 8 bytes, then `tail` bytes.
extern "C" __global__ void compare_arrays(const u8* one, const u8* other, u64 words, u64 tail, u8* differs) {
  const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, stride = gridDim.x * (u64)blockDim.x;
  bool found = false;
#pragma unroll 4
  for (u64 i = first; i < words; i += stride) found |= ((const u64*)one)[i] != ((const u64*)other)[i];
  for (u64 i = 8 * words + first; i < 8 * words + tail; i += stride) found |= one[i] != other[i];
  if (found) *differs = 1;
}

// Compares the variables of a candidate's module with the images that its cubin gives them, one CTA for each variable.
// `layout`: addresses of all variables, then their sizes in bytes, then where in `images` each one's image starts.
extern "C" __global__ void compare_variables(const u64* layout, const u8* images, u8* altered) {
  const u64 count = gridDim.x, own = blockIdx.x;
  const volatile u8* held = (const volatile u8*)layout[own];
  const u8* image = images + layout[2 * count + own];
  bool differs = false;
  for (u64 i = threadIdx.x; i < layout[count + own]; i += blockDim.x) differs |= held[i] != image[i];
  if (__syncthreads_or(differs) && threadIdx.x == 0) altered[own] = 1;
}
