// Functions of the f32 sums, taken right before these are rounded. z: the sum. f: the value of the function.
// Errors are below 2^-18 |f| + 2^-22 |z|. A NaN stays one. At -inf all but Relu give NaN, as PyTorch's do.
#pragma once

namespace cudal2 {

// 1 / (1 + 2^t). Its ends are right: 2^t overflows to infinity, whose reciprocal is 0.
__device__ __forceinline__ float logistic_of_power(float t) {
  float power, reciprocal;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + power));
  return reciprocal;
}

// It becomes part of the instruction that rounds.
struct Relu {
  __device__ __forceinline__ static float of(float z) {
    float f;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(f) : "f"(z));
    return f;
  }
};

// z / (1 + exp(-z)).
struct Silu {
  __device__ __forceinline__ static float of(float z) { return z * logistic_of_power(-1.44269504f * z); }
};

// z / 2 (1 + tanh(u)), u = sqrt(2 / pi) (z + 0.044715 z^3), which is z / (1 + exp(-2 u)).
struct GeluTanh {
  __device__ __forceinline__ static float of(float z) {
    return z * logistic_of_power(z * fmaf(-0.102943240f, z * z, -2.30220820f));
  }
};

// z Phi(z). Phi(z) is 1 / (1 + 2^t) of an odd t, here a polynomial. Beyond |z| = 5.3, where f is z or 0, t goes on as a line.
struct Gelu {
  __device__ __forceinline__ static float of(float z) {
    const float square = fminf(z * z, 28.09f);
    float slope = -5.41105322e-9f;
    slope = fmaf(slope, square, 3.93615962e-7f);
    slope = fmaf(slope, square, -1.15831210e-5f);
    slope = fmaf(slope, square, 1.60277803e-4f);
    slope = fmaf(slope, square, 9.28626681e-5f);
    slope = fmaf(slope, square, -0.104835197f);
    slope = fmaf(slope, square, -2.30220840f);
    return z * logistic_of_power(z * slope);
  }
};

// An `Activation` of every element.
template <typename Activation>
__device__ __forceinline__ float2 activated(float2 z) {
  return make_float2(Activation::of(z.x), Activation::of(z.y));
}
template <typename Activation>
__device__ __forceinline__ float4 activated(float4 z) {
  return make_float4(Activation::of(z.x), Activation::of(z.y), Activation::of(z.z), Activation::of(z.w));
}

}  // namespace cudal2
