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
// What a number is divided by, as a factor: within 2 units in the last place, at all magnitudes.
template <class T>
struct Inverse {
  T by, scale;
};
__device__ __forceinline__ Inverse<float> inverse_of(float x) {
  const float scale = fabsf(x) < 0x1p-64f ? 0x1p64f : fabsf(x) > 0x1p64f ? 0x1p-64f : 1.0f;
  return {1 / (x * scale), scale};
}
__device__ __forceinline__ Inverse<double> inverse_of(double x) {
  const double scale = fabs(x) < 0x1p-512 ? 0x1p512 : fabs(x) > 0x1p512 ? 0x1p-512 : 1.0;
  return {1 / (x * scale), scale};
}
template <class T>
__device__ __forceinline__ T divided(T x, const Inverse<T>& by) {
  return x * by.by * by.scale;
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
  const T all = n + n2, share = share_of(n2, all), d = n > 0 ? m2 - m : T(0);
  m = n > 0 ? m + d * share : m2;
  q += q2 + d * d * n * share;
  n = all;
}
// Several more: they are a set of their own, whose mean is corrected by what rounding left of it.
template <class T, int N>
__device__ __forceinline__ void take_moments(T& n, T& m, T& q, const T (&x)[N]) {
  T mean = 0, rest = 0, squares = 0;
  for (int i = 0; i < N; ++i) mean += x[i];
  mean *= T(1) / N;
  for (int i = 0; i < N; ++i) {
    const T d = x[i] - mean;
    rest += d;
    squares += d * d;
  }
  rest *= T(1) / N;
  merge_moments(n, m, q, T(N), mean + rest, squares - rest * rest * N);
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
// Several at once: they share the power of the distance between two maxima. A NaN is looked for where the sum is none.
template <class T, int N>
__device__ __forceinline__ void take_powers(T& m, T& s, const T (&x)[N]) {
  T top = m, sum = 0;
  for (int i = 0; i < N; ++i) top = fmax(top, x[i]);
  const T from = top == -INF_F ? T(0) : top;
  for (int i = 0; i < N; ++i) sum += exp(x[i] - from);
  s = s * exp(m - from) + sum;
  if (__builtin_expect(s != s, 0)) {
    top = max_nan(m, top);
    for (int i = 0; i < N; ++i) top = max_nan(top, x[i]);
  }
  m = top;
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

# Where rows are kept in shared memory.
KEEPING = """\
// A copy into shared memory that the thread itself waits for and reads.
template <int Bytes>
__device__ __forceinline__ void keep_async(void* to, const void* from) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(Bytes) : "memory");
}
__device__ __forceinline__ void wait_for_kept() {
  asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
}
"""
