// D = A B by CUTLASS's collective builder: FP16 operands, FP32 accumulation, row-major A, B and D. One library per configuration;
// sizes are arguments. The macros BLOCK_M, BLOCK_N, BLOCK_K, CLUSTER_M, CLUSTER_N, MAINLOOP, EPILOGUE and SCHEDULER choose it.
#include <cuda_runtime.h>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace {

using Element = cutlass::half_t;
using Row = cutlass::layout::RowMajor;
using Tile = cute::Shape<cute::Int<BLOCK_M>, cute::Int<BLOCK_N>, cute::Int<BLOCK_K>>;
using Cluster = cute::Shape<cute::Int<CLUSTER_M>, cute::Int<CLUSTER_N>, cute::_1>;
constexpr int kAlignment = 8;  // elements of a 16-byte access
constexpr int kDeclined = 1, kTooLittleWorkspace = 2, kNotLaunched = 3;

using Store = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float,
    float, void, Row, kAlignment, Element, Row, kAlignment, cutlass::epilogue::EPILOGUE>::CollectiveOp;
using Loop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, Row, kAlignment, Element, Row, kAlignment, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Store::SharedStorage))>,
    cutlass::gemm::MAINLOOP>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Loop, Store, cutlass::gemm::SCHEDULER>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

int count_sms() {
  static const int sms = cutlass::KernelHardwareInfo::query_device_multiprocessor_count(0);
  return sms;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int launch(const void *a, const void *b, void *d, int m, int n, int k,
                                                             void *workspace, size_t bytes, cudaStream_t stream) {
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {m, n, k, 1},
      {static_cast<const Element *>(a), {k, {}, 0}, static_cast<const Element *>(b), {{}, n, 0}},
      {{1.0f, 0.0f}, nullptr, {n, {}, 0}, static_cast<Element *>(d), {n, {}, 0}}};
  arguments.hw_info.sm_count = count_sms();
  Gemm gemm;
  if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return kDeclined;
  if (Gemm::get_workspace_size(arguments) > bytes) return kTooLittleWorkspace;
  if (gemm.initialize(arguments, workspace, stream) != cutlass::Status::kSuccess) return kNotLaunched;
  return gemm.run(stream) == cutlass::Status::kSuccess ? 0 : kNotLaunched;
}
