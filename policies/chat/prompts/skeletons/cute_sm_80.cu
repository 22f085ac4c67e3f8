/* cudal2: {
 "arch": "{{ task.arch }}", "compiler": "nvcc",
 "launches": [{"entry": "gemm", "grid": ["M/64", "N/64", 1], "block": [128, 1, 1], "dynamic_smem": 24576, "args": [
   {"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "{{ task.accumulate }}",
 "requires": ["M%64==0", "N%64==0", "K%32==0"]
} */
#include <cute/tensor.hpp>

using namespace cute;
using Element = {{ "half_t" if task.element == "f16" else "bfloat16_t" }};
constexpr int kStages = 3;
{% macro operand(of, rows, major) %}
{% if major %}
// {{ of }}, whose {{ rows }} are contiguous in memory: swizzled columns of 64, and ldmatrix transposes.
using Stages{{ of }} = decltype(tile_to_shape(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_64, _8>>{}), Shape<_64, _32, Int<kStages>>{}));
using Copy{{ of }} = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, Element>{}, Layout<Shape<_8, _16>>{},
                                   Layout<Shape<_8, _1>>{}));
using Load{{ of }} = Copy_Atom<SM75_U16x8_LDSM_T, Element>;
{% else %}
// {{ of }}, whose K is contiguous in memory: swizzled rows of 32.
using Stages{{ of }} = decltype(tile_to_shape(composition(Swizzle<2, 3, 3>{}, Layout<Shape<_8, _32>, Stride<_32, _1>>{}),
                                       Shape<_64, _32, Int<kStages>>{}));
using Copy{{ of }} = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, Element>{},
                                   Layout<Shape<_32, _4>, Stride<_4, _1>>{}, Layout<Shape<_1, _8>>{}));
using Load{{ of }} = Copy_Atom<SM75_U32x4_LDSM_N, Element>;
{% endif %}
{% endmacro %}
{{ operand("A", "rows", task.layout.transposes_a) }}
{{- operand("B", "columns", not task.layout.transposes_b) }}
extern "C" __global__ void __launch_bounds__(128) gemm(const Element* a, const Element* b, Element* d, int m, int n, int k) {
  extern __shared__ __align__(128) unsigned char memory[];
  Element* const shared = reinterpret_cast<Element*>(memory);
  // A is M x K and B is N x K, whichever of the two is contiguous.
  const Tensor all_a = make_tensor(make_gmem_ptr(a), make_shape(m, k), {{ "make_stride(_1{}, m)" if task.layout.transposes_a else "make_stride(k, _1{})" }});
  const Tensor all_b = make_tensor(make_gmem_ptr(b), make_shape(n, k), {{ "make_stride(k, _1{})" if task.layout.transposes_b else "make_stride(_1{}, n)" }});
  Tensor all_d = make_tensor(make_gmem_ptr(d), make_shape(m, n), make_stride(n, _1{}));
  const Tensor tiles_a = local_tile(all_a, Shape<_64, _32>{}, make_coord(blockIdx.x, _));  // (64, 32, tile of K)
  const Tensor tiles_b = local_tile(all_b, Shape<_64, _32>{}, make_coord(blockIdx.y, _));
  Tensor stages_a = make_tensor(make_smem_ptr(shared), StagesA{});  // (64, 32, stage)
  Tensor stages_b = make_tensor(make_smem_ptr(shared + cosize_v<StagesA>), StagesB{});
  const auto copy_a = CopyA{}.get_slice(threadIdx.x);
  const auto copy_b = CopyB{}.get_slice(threadIdx.x);
  const Tensor from_a = copy_a.partition_S(tiles_a);
  const Tensor from_b = copy_b.partition_S(tiles_b);
  Tensor to_a = copy_a.partition_D(stages_a);
  Tensor to_b = copy_b.partition_D(stages_b);

  const auto mma = make_tiled_mma(SM80_16x8x16_{{ {"f16f32": "F32F16F16F32", "f16f16": "F16F16F16F16", "bf16f32": "F32BF16BF16F32"}[task.element ~ task.accumulate] }}_TN{}, Layout<Shape<_2, _2, _1>>{}, Tile<_32, _32, _16>{});
  const auto mine = mma.get_slice(threadIdx.x);
  Tensor fragments_a = mine.partition_fragment_A(stages_a(_, _, 0));
  Tensor fragments_b = mine.partition_fragment_B(stages_b(_, _, 0));
  Tensor sums = partition_fragment_C(mma, Shape<_64, _64>{});
  clear(sums);
  const auto load_a = make_tiled_copy_A(LoadA{}, mma);
  const auto load_b = make_tiled_copy_B(LoadB{}, mma);
  const auto my_load_a = load_a.get_slice(threadIdx.x);
  const auto my_load_b = load_b.get_slice(threadIdx.x);

  const int k_tiles = size<2>(tiles_a);
  int next = 0;
  const auto bring = [&](int stage) {
    if (next < k_tiles) {
      copy(CopyA{}, from_a(_, _, _, next), to_a(_, _, _, stage));
      copy(CopyB{}, from_b(_, _, _, next), to_b(_, _, _, stage));
      ++next;
    }
    cp_async_fence();  // an empty group too, so that counting groups counts tiles
  };
  for (int stage = 0; stage < kStages - 1; ++stage) bring(stage);
  int reading = 0, writing = kStages - 1;
  for (int tile = 0; tile < k_tiles; ++tile) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // every thread's copies are there, and nobody reads the stage that is filled next
    bring(writing);
    copy(load_a, my_load_a.partition_S(stages_a(_, _, reading)), my_load_a.retile_D(fragments_a));
    copy(load_b, my_load_b.partition_S(stages_b(_, _, reading)), my_load_b.retile_D(fragments_b));
    gemm(mma, fragments_a, fragments_b, sums);
    reading = (reading + 1) % kStages;
    writing = (writing + 1) % kStages;
  }
  Tensor out = mine.partition_C(local_tile(all_d, Shape<_64, _64>{}, make_coord(blockIdx.x, blockIdx.y)));
  for (int i = 0; i < size(sums); ++i) out(i) = static_cast<Element>(sums(i));
}
