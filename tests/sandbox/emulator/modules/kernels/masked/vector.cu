// Four elements and four bytes of the mask at once; the rest one by one.
extern "C" __global__ void masked(const float* x, const unsigned char* drop, unsigned char* above, float* kept, int count,
                                  float limit) {
  const int at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (at + 4 <= count) {
    const float4 in = *reinterpret_cast<const float4*>(x + at);
    const uchar4 away = *reinterpret_cast<const uchar4*>(drop + at);
    *reinterpret_cast<uchar4*>(above + at) = make_uchar4(in.x > limit, in.y > limit, in.z > limit, in.w > limit);
    *reinterpret_cast<float4*>(kept + at) = {away.x ? 0 : in.x, away.y ? 0 : in.y, away.z ? 0 : in.z, away.w ? 0 : in.w};
    return;
  }
  for (int i = at; i < count; ++i) {
    above[i] = x[i] > limit;
    kept[i] = drop[i] ? 0 : x[i];
  }
}
