// Compares the variables of a candidate's module with the images that its cubin gives them, one CTA for each variable.
// `layout`: addresses of all variables, then their sizes in bytes, then where in `images` each one's image starts.

typedef unsigned char u8;
typedef unsigned long long u64;

extern "C" __global__ void compare_variables(const u64* layout, const u8* images, u8* altered) {
  const u64 count = gridDim.x, own = blockIdx.x;
  const volatile u8* held = (const volatile u8*)layout[own];
  const u8* image = images + layout[2 * count + own];
  bool differs = false;
  for (u64 i = threadIdx.x; i < layout[count + own]; i += blockDim.x) differs |= held[i] != image[i];
  if (__syncthreads_or(differs) && threadIdx.x == 0) altered[own] = 1;
}
