/* cudal2: {
 "arch": "{{ task.arch }}", "compiler": "nvcc",
 "launches": [{"entry": "gemm", "grid": ["ceil(M/64)", "ceil(N/128)", 1], "block": [256, 1, 1], "dynamic_smem": 99328, "args": [
   {"tensor_map": {"of": "A", "box": [64, 64], "swizzle": 128}},
   {"tensor_map": {"of": "B", "box": [64, {{ 128 if task.layout.transposes_b else 64 }}], "swizzle": 128}},
   {"tensor": "D", "access": "write"}, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}],
 "accumulate": "{{ task.accumulate }}",
 "requires": ["{{ "M" if task.layout.transposes_a else "K" }}%8==0", "{{ "K" if task.layout.transposes_b else "N" }}%8==0"]
} */
#include <cute/tensor.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/pipeline/sm90_pipeline.hpp>

using namespace cute;
using Element = {{ "half_t" if task.element == "f16" else "bfloat16_t" }};
using Sum = {{ "float" if task.accumulate == "f32" else "half_t" }};
using Block = Shape<_64, _128, _64>;  // M, N, K of a CTA
constexpr int kStages = 4;
// A tile lies in shared memory as its TMA boxes write it: rows of 64 elements, swizzled, one box behind the other.
{% if task.layout.transposes_a %}
constexpr auto kMajorA = GMMA::Major::MN;
using StagesA = decltype(tile_to_shape(GMMA::Layout_MN_SW128_Atom<Element>{}, Shape<_64, _64, Int<kStages>>{}));
{% else %}
constexpr auto kMajorA = GMMA::Major::K;
using StagesA = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_64, _64, Int<kStages>>{}));
{% endif %}
{% if task.layout.transposes_b %}
constexpr auto kMajorB = GMMA::Major::K;
using StagesB = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_128, _64, Int<kStages>>{}));
{% else %}
constexpr auto kMajorB = GMMA::Major::MN;
using StagesB = decltype(tile_to_shape(GMMA::Layout_MN_SW128_Atom<Element>{}, Shape<_128, _64, Int<kStages>>{},
                                       Step<_2, _1, _3>{}));  // all of K before the next 64 columns of N
{% endif %}
using Pipeline = cutlass::PipelineTmaAsync<kStages>;

struct Storage {
  alignas(1024) Element a[cosize_v<StagesA>];
  alignas(1024) Element b[cosize_v<StagesB>];
  Pipeline::SharedStorage pipeline;
};
static_assert(sizeof(Storage) == 99328, "what the plan asks for");

// Maps are made by the launcher from the plan, so a copy is issued by its instruction and not by make_tma_copy.
__device__ __forceinline__ void produce(Pipeline& pipeline, Storage& storage, const TmaDescriptor& map_a,
                                        const TmaDescriptor& map_b, int k_tiles) {
  auto state = cutlass::make_producer_start_state<Pipeline>();
  constexpr auto kHint = static_cast<uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
  const int row = blockIdx.x * size<0>(Block{}), column = blockIdx.y * size<1>(Block{});
  for (int tile = 0; tile < k_tiles; ++tile, ++state) {
    pipeline.producer_acquire(state);
    uint64_t* const barrier = reinterpret_cast<uint64_t*>(pipeline.producer_get_barrier(state));
    const int k = tile * size<2>(Block{});
    Element* const a = storage.a + state.index() * 64 * 64;
    Element* const b = storage.b + state.index() * 128 * 64;
{% if task.layout.transposes_a %}
    SM90_TMA_LOAD_2D::copy(&map_a, barrier, kHint, a, row, k);
{% else %}
    SM90_TMA_LOAD_2D::copy(&map_a, barrier, kHint, a, k, row);
{% endif %}
{% if task.layout.transposes_b %}
    SM90_TMA_LOAD_2D::copy(&map_b, barrier, kHint, b, k, column);
{% else %}
    for (int half = 0; half < 2; ++half)
      SM90_TMA_LOAD_2D::copy(&map_b, barrier, kHint, b + half * 64 * 64, column + half * 64, k);
{% endif %}
  }
  pipeline.producer_tail(state);  // the barriers outlive whoever still arrives at them
}

__device__ __forceinline__ void consume(Pipeline& pipeline, Storage& storage, Element* d, int m, int n, int k_tiles) {
  const auto mma = make_tiled_mma(GMMA::ss_op_selector<Element, Element, Sum, Block, kMajorA, kMajorB>());
  const auto mine = mma.get_slice(threadIdx.x - cutlass::NumThreadsPerWarpGroup);
  const Tensor operands_a = mine.make_fragment_A(mine.partition_A(make_tensor(make_smem_ptr(storage.a), StagesA{})));
  const Tensor operands_b = mine.make_fragment_B(mine.partition_B(make_tensor(make_smem_ptr(storage.b), StagesB{})));
  Tensor sums = partition_fragment_C(mma, take<0, 2>(Block{}));
  clear(sums);
  cutlass::PipelineState<kStages> reading, releasing;
  for (int tile = 0; tile < k_tiles; ++tile, ++reading) {
    pipeline.consumer_wait(reading);
    warpgroup_fence_operand(sums);
    warpgroup_arrive();
    gemm(mma, operands_a(_, _, _, reading.index()), operands_b(_, _, _, reading.index()), sums);
    warpgroup_commit_batch();
    warpgroup_wait<1>();  // the product before this one has read its stage
    warpgroup_fence_operand(sums);
    if (tile > 0) pipeline.consumer_release(releasing);
    releasing = reading;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
  pipeline.consumer_release(releasing);
  const auto place = make_coord(blockIdx.x, blockIdx.y);
  Tensor all = make_tensor(make_gmem_ptr(d), make_shape(m, n), make_stride(n, _1{}));
  Tensor out = mine.partition_C(local_tile(all, take<0, 2>(Block{}), place));
  const Tensor at = mine.partition_C(local_tile(make_identity_tensor(shape(all)), take<0, 2>(Block{}), place));
  for (int i = 0; i < size(sums); ++i)
    if (elem_less(at(i), shape(all))) out(i) = static_cast<Element>(sums(i));
}

extern "C" __global__ void __launch_bounds__(256)
    gemm(const __grid_constant__ TmaDescriptor map_a, const __grid_constant__ TmaDescriptor map_b, Element* d, int m, int n,
         int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Storage& storage = *reinterpret_cast<Storage*>(memory);
  const bool producer = cutlass::canonical_warp_group_idx() == 0;
  const bool leader = cutlass::canonical_warp_idx_sync() == 0 && elect_one_sync();
  Pipeline::Params params;
  params.transaction_bytes = (64 + 128) * 64 * sizeof(Element);
  params.role = producer ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
  params.is_leader = leader;
  params.num_consumers = cutlass::NumThreadsPerWarpGroup;
  Pipeline pipeline(storage.pipeline, params, Shape<_1, _1, _1>{});
  __syncthreads();  // the barriers of the pipeline are initialised
  const int k_tiles = ceil_div(k, size<2>(Block{}));
  if (producer) {
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (leader) produce(pipeline, storage, map_a, map_b, k_tiles);
  } else {
    cutlass::arch::warpgroup_reg_alloc<208>();
    consume(pipeline, storage, d, m, n, k_tiles);
  }
}
