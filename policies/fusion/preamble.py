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
// One more element of a set of which the count, the mean and the squared distances from it are known. Source: Welford.
__device__ __forceinline__ float share_of(float d, float n) { return __fdividef(d, n); }
__device__ __forceinline__ double share_of(double d, double n) { return d / n; }
template <class T>
__device__ __forceinline__ void take_moments(T& n, T& m, T& q, T x) {
  n += 1;
  const T d = x - m;
  m += share_of(d, n);
  q += d * (x - m);
}
// Count, mean and squared distances of two sets as those of one. Source: Chan, Golub and LeVeque.
template <class T>
__device__ __forceinline__ void merge_moments(T& n, T& m, T& q, T n2, T m2, T q2) {
  if (n2 == 0) return;
  const T all = n + n2, share = n2 / all, d = n > 0 ? m2 - m : T(0);
  m = n > 0 ? m + d * share : m2;
  q += q2 + d * d * n * share;
  n = all;
}
// The largest element m, and the sum s of exp(x - m), in one pass. An infinite or NaN element makes s NaN, as exp(x - x) does.
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax.
template <class T>
__device__ __forceinline__ void take_powers(T& m, T& s, T x) {
  if (x > m || x != x) {
    s = s * exp(m - x) + (1 + (x - x));
    m = x;
  } else if (!(x == -INF_F)) {
    s += exp(x - m);
  }
}
template <class T>
__device__ __forceinline__ void merge_powers(T& m, T& s, T m2, T s2) {
  if (m2 > m || m2 != m2) {
    s = s * exp(m - m2) + s2;
    m = m2;
  } else if (!(m2 == -INF_F)) {
    s += s2 * exp(m2 - m);
  }
}
"""

# Where the CTAs of a cluster share a row.
CLUSTERS = """\
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// The same variable in the shared memory of another CTA.
template <class T>
__device__ __forceinline__ const volatile T* of_rank(const T* own, unsigned rank) {
  unsigned long long there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
  return reinterpret_cast<const volatile T*>(there);
}
"""
