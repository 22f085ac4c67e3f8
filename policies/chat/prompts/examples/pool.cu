/* cudal2: {
 "arch": "{{ task.arch }}",
 "launches": [{"entry": "max_pool", "grid": ["ceil(planes*((height-1)//2+1)*((width-1)//2+1)/256)", 1, 1], "block": [256, 1, 1], "args": [
   {"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "planes"}, {"scalar": "height"}, {"scalar": "width"},
   {"scalar": "(height-1)//2+1"}, {"scalar": "(width-1)//2+1"}]}]
} */
// Module: out = max_pool2d(x, window 3, stride 2, padding 1) of planes (batch * channels). Dims: planes, height, width.
// A thread for each output; a warp reads neighbours along the width. The maximum keeps NaN, as PyTorch's does.
extern "C" __global__ void __launch_bounds__(256)
max_pool(const float* __restrict__ x, float* __restrict__ out, int planes, int height, int width, int down, int across) {
  const long long at = blockIdx.x * 256LL + threadIdx.x;
  if (at >= static_cast<long long>(planes) * down * across) return;
  const int column = at % across, row = at / across % down;
  const float* plane = x + at / across / down * height * width;
  float most = __int_as_float(0xff800000);  // -inf: padding is never the maximum
  for (int i = max(2 * row - 1, 0); i < min(2 * row + 2, height); ++i) {
    for (int j = max(2 * column - 1, 0); j < min(2 * column + 2, width); ++j) {
      const float value = plane[i * width + j];
      if (value > most || value != value) most = value;
    }
  }
  out[at] = most;
}
