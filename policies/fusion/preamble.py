"""What every source of the fuser begins with."""

from cudal2_agent.contract.records.named_buffer import BufferElement

HEADERS = {BufferElement.F16: "cuda_fp16.h", BufferElement.BF16: "cuda_bf16.h"}

PREAMBLE = """\
#define INF_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fffffff)
#define HIGHEST_I64 0x7fffffffffffffffll
#define LOWEST_I64 (-HIGHEST_I64 - 1)

// Neighbours in memory that are loaded and stored at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// NaN wins, as in ATen.
template <class T>
__device__ __forceinline__ T max_nan(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T min_nan(T a, T b) {
  return a < b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T clamp01(T x) {
  return x < 0 ? T(0) : x > 1 ? T(1) : x;
}
// Count, mean and squared distances of two sets as those of one. Source: Chan, Golub and LeVeque.
template <class T>
__device__ __forceinline__ void merge_moments(T& n, T& m, T& q, T n2, T m2, T q2) {
  const T all = n + n2, share = all > 0 ? n2 / all : T(0), d = m2 - m;
  m += d * share;
  q += q2 + d * d * n * share;
  n = all;
}
"""
