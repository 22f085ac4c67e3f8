// cudal2: {"arch": "sm_90a", "requires": ["M%64==0", "N%128==0", "K%64==0"], "launches": [
//   {"entry": "cute_sm90", "grid": ["M/64", "N/128", 1], "block": [256, 1, 1], "dynamic_smem": 74752,
//   "args": [{"tensor_map": {"of": "A", "box": [64, 64], "swizzle": 128}},
//   {"tensor_map": {"of": "B", "box": [64, 128], "swizzle": 128}}, {"tensor": "D", "access": "write"},
//   {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]}
// D = A B, B column-major, with CuTe and CUTLASS for sm_90a: a producer warpgroup brings tiles with TMA through CUTLASS's
// pipeline of three stages, a consumer warpgroup multiplies them with wgmma.
#include <cute/tensor.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/pipeline/sm90_pipeline.hpp>

using namespace cute;
using Element = half_t;

constexpr int BLOCK_M = 64, BLOCK_N = 128, BLOCK_K = 64;
constexpr int kStages = 3;
using StagesA = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_64, _64, Int<kStages>>{}));
using StagesB = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<_128, _64, Int<kStages>>{}));
using Pipeline = cutlass::PipelineTmaAsync<kStages>;

struct Storage {
  alignas(1024) Element a[cosize_v<StagesA>];
  alignas(1024) Element b[cosize_v<StagesB>];
  Pipeline::SharedStorage pipeline;
};
static_assert(sizeof(Storage) == 74752, "what the plan asks for");

__device__ __forceinline__ void produce(Pipeline& pipeline, Storage& storage, const TmaDescriptor& map_a,
                                        const TmaDescriptor& map_b, int k_tiles) {
  auto state = cutlass::make_producer_start_state<Pipeline>();
  constexpr auto kHint = static_cast<uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
  for (int tile = 0; tile < k_tiles; ++tile, ++state) {
    pipeline.producer_acquire(state);
    uint64_t* const barrier = reinterpret_cast<uint64_t*>(pipeline.producer_get_barrier(state));
    SM90_TMA_LOAD_2D::copy(&map_a, barrier, kHint, storage.a + state.index() * BLOCK_M * BLOCK_K, tile * BLOCK_K,
                           blockIdx.x * BLOCK_M);
    SM90_TMA_LOAD_2D::copy(&map_b, barrier, kHint, storage.b + state.index() * BLOCK_N * BLOCK_K, tile * BLOCK_K,
                           blockIdx.y * BLOCK_N);
  }
  pipeline.producer_tail(state);  // the barriers outlive whoever still arrives at them
}

__device__ __forceinline__ void consume(Pipeline& pipeline, Storage& storage, Element* d, int m, int n, int k_tiles) {
  const auto mma = make_tiled_mma(SM90_64x128x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
  const auto my_mma = mma.get_slice(threadIdx.x - cutlass::NumThreadsPerWarpGroup);
  const Tensor stages_a = make_tensor(make_smem_ptr(storage.a), StagesA{});
  const Tensor stages_b = make_tensor(make_smem_ptr(storage.b), StagesB{});
  const Tensor operands_a = my_mma.make_fragment_A(my_mma.partition_A(stages_a));  // descriptors, not elements
  const Tensor operands_b = my_mma.make_fragment_B(my_mma.partition_B(stages_b));
  Tensor sums = partition_fragment_C(mma, Shape<_64, _128>{});
  clear(sums);
  cutlass::PipelineState<kStages> reading, releasing;
  for (int tile = 0; tile < k_tiles; ++tile, ++reading) {
    pipeline.consumer_wait(reading);
    warpgroup_fence_operand(sums);
    warpgroup_arrive();
    gemm(mma, operands_a(_, _, _, reading.index()), operands_b(_, _, _, reading.index()), sums);
    warpgroup_commit_batch();
    warpgroup_wait<1>();
    warpgroup_fence_operand(sums);
    if (tile > 0) pipeline.consumer_release(releasing);
    releasing = reading;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
  pipeline.consumer_release(releasing);
  Tensor all_d = make_tensor(make_gmem_ptr(d), make_shape(m, n), make_stride(n, _1{}));
  Tensor out = my_mma.partition_C(local_tile(all_d, Shape<_64, _128>{}, make_coord(blockIdx.x, blockIdx.y)));
  for (int i = 0; i < size(sums); ++i) out(i) = static_cast<Element>(sums(i));
}

extern "C" __global__ void __launch_bounds__(256)
    cute_sm90(const __grid_constant__ TmaDescriptor map_a, const __grid_constant__ TmaDescriptor map_b, Element* d, int m,
              int n, int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Storage& storage = *reinterpret_cast<Storage*>(memory);
  const bool producer = cutlass::canonical_warp_group_idx() == 0;
  const bool leader = cutlass::canonical_warp_idx_sync() == 0 && elect_one_sync();
  Pipeline::Params params;
  params.transaction_bytes = (BLOCK_M + BLOCK_N) * BLOCK_K * sizeof(Element);
  params.role = producer ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
  params.is_leader = leader;
  params.num_consumers = cutlass::NumThreadsPerWarpGroup;
  Pipeline pipeline(storage.pipeline, params, Shape<_1, _1, _1>{});
  __syncthreads();  // the barriers of the pipeline are initialised
  if (producer) {
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (leader) produce(pipeline, storage, map_a, map_b, k / BLOCK_K);
  } else {
    cutlass::arch::warpgroup_reg_alloc<208>();
    consume(pipeline, storage, d, m, n, k / BLOCK_K);
  }
}
