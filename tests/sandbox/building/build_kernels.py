"""Sources and records that the build tests share."""

from typing import Any

from cudal2_agent.contract.plan.plan import Launch, LaunchPlan
from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.task import GemmTask

ORIGIN = Origin(policy="test")
TASK = GemmTask(m=128, n=128, k=64)
TENSORS = ({"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"})

NAIVE = """
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(256) gemm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  d[row * n + column] = __float2half(sum);
}
"""

MMA_F32 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
MMA_F16 = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"


def tensor_core(*accumulators: str) -> str:
    """A kernel with one tensor-core instruction per accumulator type; its result has no meaning."""
    steps = {
        "f32": f'asm volatile("{MMA_F32} {{%0,%1,%2,%3}},{{%4,%4,%4,%4}},{{%4,%4}},{{%0,%1,%2,%3}};"'
        ' : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(x));',
        "f16": f'asm volatile("{MMA_F16} {{%0,%1}},{{%2,%2,%2,%2}},{{%2,%2}},{{%0,%1}};" : "+r"(h[0]), "+r"(h[1]) : "r"(x));',
    }
    return body(
        "float c[4] = {}; unsigned h[2] = {}, x = m;" + "".join(steps[kind] for kind in accumulators) + "d[0] = c[0] + h[0];"
    )


def body(text: str, before: str = "", bounds: str = "") -> str:
    """The smallest kernel around a body."""
    head = f'extern "C" __global__ void {bounds} gemm(const half* a, const half* b, half* d, int m, int n, int k)'
    return f"#include <cuda_fp16.h>\n{before}\n{head} {{\n{text}\n}}\n"


def plan(**changes: Any) -> LaunchPlan:
    """The plan of `gemm`; keywords change its launch."""
    scalars = tuple({"scalar": name} for name in "MNK")
    launch = {"entry": "gemm", "grid": ("ceil(N/16)", "ceil(M/16)", 1), "block": (256, 1, 1), "args": TENSORS + scalars}
    return LaunchPlan(arch="sm_80", launches=(Launch.model_validate(launch | changes),))


def candidate(source: str, *, flags: tuple[str, ...] = (), launch_plan: LaunchPlan | None = None, **changes: Any) -> Candidate:
    return Candidate(source=source, flags=flags, plan=launch_plan or plan(), origin=ORIGIN, **changes)


def host(source: str, **changes: Any) -> HostCandidate:
    return HostCandidate(source=source, origin=ORIGIN, **changes)


HOST = """
#include <cuda_runtime.h>
#include <vector>
__global__ void fill(float* d) { d[threadIdx.x] = 1; }
extern "C" int launch(const void* a, const void* b, void* d, int m, int n, int k, void* workspace, size_t bytes,
                      cudaStream_t stream) {
  fill<<<1, 32, 0, stream>>>(static_cast<float*>(d));
  return cudaGetLastError();
}
"""
