"""Modules with kernels written by hand: right ones, and ones with a fault or a trick, for tests on a GPU."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.module_graph import GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement
from tests.sandbox.modules.small_tasks import node, of, task

OUT = {"tensor": "out", "access": "write"}
REDUCTION = """
__device__ float summed(float value) {
  __shared__ float parts[32];
  for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f;
  for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
"""


@dataclass(frozen=True)
class Example:
    """A task, a right kernel, and wrong ones by name."""

    task: ModuleTask
    right: Candidate
    wrong: dict[str, Candidate] = field(default_factory=dict)


def candidate(source: str, *launches: dict[str, Any], **plan: Any) -> Candidate:
    text = json.dumps({"arch": "sm_90a", "launches": launches, **plan})
    source = f"// cudal2: {text}\n{source}"
    return Candidate(source=source, plan=parse_plan(source), origin=Origin(policy="test"))


def launch(entry: str, ctas: int, *args: dict[str, Any], threads: int = 256, **more: Any) -> dict[str, Any]:
    return {"entry": entry, "grid": [ctas, 1, 1], "block": [threads, 1, 1], "args": list(args), **more}


def scalar(value: float, kind: str = "i32") -> dict[str, Any]:
    return {"scalar": value, "type": kind}


def variants(source: str, faults: dict[str, tuple[str, str]], make: Callable[[str], Candidate]) -> dict[str, Candidate]:
    """Candidates whose source has one text replaced by another."""
    for old, _ in faults.values():
        assert old in source, old
    return {name: make(source.replace(*fault)) for name, fault in faults.items()}


def relu(rows: int = 4096, columns: int = 65536) -> Example:
    made = task([node("relu", "aten.relu.default", [of("x")], (rows, columns))], {"x": (rows, columns)})
    source = """extern "C" __global__ void relu(const float4* x, float4* out, long long count) {
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += stride) {
    const float4 v = x[i];
    out[i] = make_float4(fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f), fmaxf(v.z, 0.0f), fmaxf(v.w, 0.0f));
  }
}
"""

    def write(text: str) -> Candidate:
        args = {"tensor": "x"}, OUT, scalar(rows * columns // 4, "i64")
        return candidate(text, launch("relu", min(rows * columns // 1024, 132 * 16), *args))

    return Example(
        made,
        write(
            source.replace("fmaxf(v.x, 0.0f)", "v.x < 0.0f ? 0.0f : v.x")
            .replace("fmaxf(v.y, 0.0f)", "v.y < 0.0f ? 0.0f : v.y")
            .replace("fmaxf(v.z, 0.0f)", "v.z < 0.0f ? 0.0f : v.z")
            .replace("fmaxf(v.w, 0.0f)", "v.w < 0.0f ? 0.0f : v.w")
        ),
        variants(
            source,
            {
                "identity": ("make_float4(fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f), fmaxf(v.z, 0.0f), fmaxf(v.w, 0.0f))", "v"),
                "zeros": ("make_float4(fmaxf(v.x, 0.0f)", "make_float4(0.0f * fmaxf(v.x, 0.0f)"),
                "last-unwritten": ("i < count", "i < count - 1"),
            },
            write,
        ),
    )


def softmax(rows: int = 4096, columns: int = 8192) -> Example:
    made = task([node("softmax", "aten._softmax.default", [of("x"), -1, False], (rows, columns))], {"x": (rows, columns)})
    source = (
        REDUCTION
        + """
__device__ float largest(float value) {
  __shared__ float parts[32];
  for (int step = 16; step; step >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : -INFINITY;
  for (int step = 16; step; step >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}
extern "C" __global__ void softmax(const float* x, float* out, int columns) {
  x += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  float most = -INFINITY, sum = 0.0f;
  bool nan = false;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) { most = fmaxf(most, x[i]); nan |= isnan(x[i]); }
  most = largest(most);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(x[i] - most);
  sum = summed(nan ? NAN : sum);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = expf(x[i] - most) / sum;
}
"""
    )

    def write(text: str) -> Candidate:
        return candidate(
            "#include <math_constants.h>\n" + text.replace("INFINITY", "CUDART_INF_F").replace("NAN", "CUDART_NAN_F"),
            launch("softmax", rows, {"tensor": "x"}, OUT, scalar(columns)),
        )

    return Example(
        made,
        write(source),
        variants(
            source,
            {
                "no-maximum": ("most = largest(most);", "most = 0.0f;"),
                "one-left-out": (
                    "i = threadIdx.x; i < columns; i += blockDim.x) sum",
                    "i = threadIdx.x + 1; i < columns; i += blockDim.x) sum",
                ),
                "half-precision": (
                    "out[i] = expf(x[i] - most) / sum",
                    "out[i] = __int_as_float(__float_as_int(expf(x[i] - most) / sum) & 0xFFFFE000)",
                ),
            },
            write,
        ),
    )


NORM = (
    REDUCTION
    + """
extern "C" __global__ void norm_relu(const float* sums, const float* bias, const float* gain, const float* shift, float* out,
                                     int columns, float eps) {
  sums += (long long)blockIdx.x * columns;
  out += (long long)blockIdx.x * columns;
  float sum = 0.0f, squares = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += sums[i] + bias[i];
  const float mean = summed(sum) / columns;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float apart = sums[i] + bias[i] - mean;
    squares += apart * apart;
  }
  const float scale = rsqrtf(summed(squares) / columns + eps);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float value = (sums[i] + bias[i] - mean) * scale * gain[i] + shift[i];
    out[i] = value < 0.0f ? 0.0f : value;
  }
}
"""
)


def linear_norm(rows: int = 1024, k: int = 2048, columns: int = 2048) -> Example:
    """relu(layer_norm(x @ weight.T + bias)): a library's product, then one kernel."""
    norm = GraphNode(
        name="norm",
        op="aten.native_layer_norm.default",
        args=(of("product"), [columns], of("gain"), of("shift"), 1e-5),
        results=tuple(TensorType(shape=shape, element=BufferElement.F32) for shape in ((rows, columns), (rows, 1), (rows, 1))),
    )
    made = task(
        [
            node("turned", "aten.permute.default", [of("weight"), [1, 0]], (k, columns)),
            node("product", "aten.addmm.default", [of("bias"), of("x"), of("turned")], (rows, columns)),
            norm,
            node("normed", "getitem", [of("norm"), 0], (rows, columns)),
            node("relu", "aten.relu.default", [of("normed")], (rows, columns)),
        ],
        {"x": (rows, k)},
        {"weight": (columns, k), "bias": (columns,), "gain": (columns,), "shift": (columns,)},
    )
    product = {
        "call": "mm",
        "inputs": [{"tensor": "x"}, {"tensor": "weight", "permute": [1, 0]}],
        "out": {"tensor": "sums"},
    }
    scratch = [{"name": "sums", "shape": [rows, columns], "element": "f32"}]

    def write(text: str) -> Candidate:
        args = [
            {"tensor": "sums"},
            *({"tensor": name} for name in ("bias", "gain", "shift")),
            OUT,
            scalar(columns),
            scalar(1e-5, "f32"),
        ]
        return candidate(text, product, launch("norm_relu", rows, *args), scratch=scratch)

    wrong = variants(
        NORM,
        {
            "no-relu": ("value < 0.0f ? 0.0f : value", "value"),
            "no-bias": ("sum += sums[i] + bias[i]", "sum += sums[i]"),
            "no-shift": ("* gain[i] + shift[i]", "* gain[i]"),
        },
        write,
    )
    return Example(made, write(NORM), wrong)


def max_pool(batch: int = 16, channels: int = 64, size: int = 256) -> Example:
    half = size // 2
    results = ((batch, channels, half, half), "f32"), ((batch, channels, half, half), "i64")
    pool = GraphNode(
        name="pool",
        op="aten.max_pool2d_with_indices.default",
        args=(of("x"), [2, 2], [2, 2]),
        results=tuple(TensorType(shape=shape, element=BufferElement(element)) for shape, element in results),
    )
    made = task(
        [pool, node("values", "getitem", [of("pool"), 0], (batch, channels, half, half))],
        {"x": (batch, channels, size, size)},
    )
    source = """
__device__ float more(float a, float b) { return a != a || a > b ? a : b; }
extern "C" __global__ void max_pool(const float* x, float* out, int size, long long count) {
  const int half = size / 2;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    const long long row = i / half;
    const float2* from = (const float2*)(x + 2 * row * size) + i % half;
    const float2 a = from[0], b = from[size / 2];
    out[i] = more(more(a.x, a.y), more(b.x, b.y));
  }
}
"""

    def write(text: str) -> Candidate:
        count = batch * channels * half * half
        return candidate(text, launch("max_pool", -(-count // 1024), {"tensor": "x"}, OUT, scalar(size), scalar(count, "i64")))

    return Example(
        made,
        write(source),
        variants(
            source,
            {"first-row-only": ("more(b.x, b.y)", "-1e30f"), "one-of-four": ("more(more(a.x, a.y), more(b.x, b.y))", "a.x")},
            write,
        ),
    )


def column_sum(batch: int = 64, rows: int = 1024, columns: int = 1024) -> Example:
    """sum over the middle dimension."""
    made = task([node("sum", "aten.sum.dim_IntList", [of("x"), [1], False], (batch, columns))], {"x": (batch, rows, columns)})
    source = """extern "C" __global__ void column_sum(const float* x, float* out, int rows, int columns) {
  __shared__ float parts[8][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = columns / 32;
  const int column = blockIdx.x % groups * 32 + lane;
  x += (long long)(blockIdx.x / groups) * rows * columns + column;
  float sum = 0.0f;
  for (int row = warp; row < rows; row += 8) sum += x[(long long)row * columns];
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp) return;
  for (int i = 1; i < 8; ++i) sum += parts[i][lane];
  out[(blockIdx.x / groups) * columns + column] = sum;
}
"""

    def write(text: str) -> Candidate:
        return candidate(text, launch("column_sum", batch * columns // 32, {"tensor": "x"}, OUT, scalar(rows), scalar(columns)))

    return Example(
        made,
        write(source),
        variants(source, {"a-warp-missing": ("i < 8", "i < 7"), "a-row-missing": ("row < rows", "row < rows - 1")}, write),
    )


def scaled_gelu(rows: int = 64, columns: int = 1024) -> Example:
    """gelu(x * gain + shift), a few microseconds, in two launches through scratch."""
    shape = (rows, columns)
    made = task(
        [
            node("scaled", "aten.mul.Tensor", [of("x"), of("gain")], shape),
            node("shifted", "aten.add.Tensor", [of("scaled"), of("shift")], shape),
            node("gelu", "aten.gelu.default", [of("shifted")], shape),
        ],
        {"x": shape},
        {"gain": (columns,), "shift": (columns,)},
    )
    source = """
extern "C" __global__ void scaled_gelu(const float* x, const float* gain, const float* shift, float* out, int columns,
                                       int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float value = x[i] * gain[i % columns] + shift[i % columns];
  out[i] = value * normcdff(value);
}
"""

    def write(text: str, **more: Any) -> Candidate:
        args = [{"tensor": name} for name in ("x", "gain", "shift")]
        count = rows * columns
        return candidate(text, launch("scaled_gelu", -(-count // 256), *args, OUT, scalar(columns), scalar(count), **more))

    wrong = variants(
        source,
        {
            "no-shift": (" + shift[i % columns]", ""),
            "tanh": ("normcdff(value)", "(0.5f * (1.0f + tanhf(0.79788456f * (value + 0.044715f * value * value * value))))"),
        },
        write,
    )
    wrong["no-wait"] = write(
        source.replace(
            "  if (i >= count) return;", '  if (i >= count) return;\n  asm volatile("griddepcontrol.launch_dependents;");'
        ),
        programmatic=True,
    )
    return Example(made, write(source), wrong)


EXAMPLES: dict[str, Callable[..., Example]] = {
    "relu": relu,
    "softmax": softmax,
    "linear_norm": linear_norm,
    "max_pool": max_pool,
    "column_sum": column_sum,
    "scaled_gelu": scaled_gelu,
}
SMALL: dict[str, dict[str, int]] = {
    "relu": {"rows": 64, "columns": 1024},
    "softmax": {"rows": 64, "columns": 500},
    "linear_norm": {"rows": 64, "k": 96, "columns": 128},
    "max_pool": {"batch": 2, "channels": 3, "size": 32},
    "column_sum": {"batch": 2, "rows": 100, "columns": 64},
    "scaled_gelu": {"rows": 9, "columns": 100},
}
