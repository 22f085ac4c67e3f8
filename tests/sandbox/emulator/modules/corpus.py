"""Twelve kinds of general kernels: right ones, and each with faults planted in it. All are data; `planted.py` proves them.

A fault replaces text of the source, or fields of the plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask
from tests.sandbox.building.build_kernels import ORIGIN
from tests.sandbox.emulator.modules import graphs

KERNELS = Path(__file__).parent / "kernels"
Launch = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in the source, everywhere; `launches`: of the plan instead of the right ones; `scratch`: more."""

    name: str
    old: str = ""
    new: str = ""
    launches: tuple[Launch, ...] | None = None
    scratch: tuple[dict[str, Any], ...] = ()
    edits: tuple[tuple[str, str], ...] = ()  # more of the source


@dataclass(frozen=True)
class Kind:
    """One right kernel. `files`: of its source. `sizes`: of tasks that it is right for, the first for its faults too."""

    name: str
    task: Callable[..., ModuleTask]
    sizes: tuple[tuple[int, ...], ...]
    files: tuple[str, ...]
    launches: tuple[Launch, ...]
    faults: tuple[Fault, ...]
    plan: Mapping[str, Any] = field(default_factory=dict)

    def candidate(self, fault: Fault | None = None) -> Candidate:
        """The right kernel, or the one with a fault."""
        source = "\n".join((KERNELS / f"{name}.cu").read_text() for name in self.files)
        plan = {"arch": "sm_90a", "launches": self.launches, **self.plan}
        if fault is not None:
            for old, new in (*([(fault.old, fault.new)] if fault.old else []), *fault.edits):
                assert old in source, (self.name, fault.name, old)
                source = source.replace(old, new)
            plan["launches"] = fault.launches or self.launches
            plan["scratch"] = (*plan.get("scratch", ()), *fault.scratch)
        return Candidate(source=ROUNDINGS + source, plan=plan_from_json(plan), origin=ORIGIN)


# Numbers with the mantissa of f16 and of tf32, by integers: no instruction shows it, so that only a result can.
ROUNDINGS = """
__device__ float half_of(float x) { return __int_as_float((__float_as_int(x) + 0x1000) & 0xffffe000); }
__device__ float tf32_of(float x) { return __int_as_float(__float_as_int(x) & 0xffffe000); }
"""


def launch(entry: str, grid: Any, block: Any, *args: Any, **fields: Any) -> Launch:
    """Arguments: `name` is read, `name=` is written, `dims:name` and `1e-5f` are scalars."""
    grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
    block = block if isinstance(block, tuple) else (block, 1, 1)
    return {"entry": entry, "grid": grid, "block": block, "args": [_argument(each) for each in args], **fields}


def _argument(text: Any) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    if text.endswith("="):
        return {"tensor": text[:-1], "access": "write"}
    if text.startswith("."):
        return {"scalar": text[1:]}
    return {"scalar": text[:-1], "type": "f32"} if text[0].isdigit() else {"tensor": text}


INDEX, READ = "i < columns; i += blockDim.x)", "  __syncthreads();\n  value = "
RETURN = "  __syncthreads();\n  return value;\n"
UNSAFE = "  return value;\n"

SOFTMAX = Kind(
    "softmax",
    graphs.row_softmax,
    ((6, 301), (3, 64), (5, 1), (2, 1000), (9, 33)),
    ("row_softmax",),
    (launch("row_softmax", "rows", 128, "x", "out=", ".columns"),),
    (
        Fault("leaves-out-the-last", f"{INDEX} sum", "i < columns - 1; i += blockDim.x) sum"),
        Fault("missing-barrier", READ, "  value = "),
        Fault("parts-used-again-early", RETURN, UNSAFE),
        Fault("no-maximum", "most = reduce(most, true, parts);", "most = 0;"),
        Fault("f16-result", "out[i] = expf(x[i] - most) / sum", "out[i] = half_of(expf(x[i] - most) / sum)"),
        Fault("unwritten-tail", f"{INDEX} out", "i < columns / 4 * 4; i += blockDim.x) out"),
        Fault("reads-beyond", f"{INDEX} most", "i <= columns; i += blockDim.x) most"),
    ),
)
LAYER_NORM = Kind(
    "layer-norm",
    graphs.layer_norm,
    ((5, 200), (3, 32), (4, 7), (2, 768), (11, 100)),
    ("layer_norm",),
    (launch("layer_norm", "rows", 64, "x", "weight", "bias", "out=", ".columns", "1e-5f"),),
    (
        Fault("missing-eps", "/ columns + eps", "/ columns"),
        Fault("ignores-weight", " * weight[i]", ""),
        Fault("weight-of-the-row", "weight[i]", "weight[blockIdx.x % columns]"),
        Fault("unbiased-variance", "/ columns + eps", "/ (columns - 1) + eps"),
        Fault("missing-barrier", READ, "  value = "),
        Fault("tf32-inputs", "sum += x[i]", "sum += tf32_of(x[i])"),
        Fault("reads-beyond", f"{INDEX} sum", "i <= columns; i += blockDim.x) sum"),
    ),
)
GELU = Kind(
    "gelu",
    graphs.gelu,
    ((1003,), (4,), (3,), (512,), (2050,)),
    ("gelu",),
    (launch("gelu_relu", "ceil(count/512)", 128, "x", "out=", ".count"),),
    (
        Fault("unwritten-tail", "i < count; ++i", "i < count - 1; ++i"),
        Fault("vector-beyond-the-end", "if (at + 4 <= count)", "if (at < count)"),
        Fault("one-of-four-without-relu", "gelu(relu(in.y))", "gelu(in.y)"),
        Fault(
            "by-tanh", "(1.0f + erff(x * 0.70710678118654752f))", "(1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))"
        ),
        Fault("f16-result", "return 0.5f * x", "return half_of(0.5f) * half_of(x)"),
        Fault("overlapping-threads", "const int at = 4 * (", "const int at = 3 * ("),
    ),
)
PRODUCT = {"name": "product", "shape": ["rows", "columns"], "element": "f32"}
MEMO = {"name": "memo", "shape": ["rows*columns + 1"], "element": "f32"}
CALL = {
    "call": "mm",
    "inputs": [{"tensor": "x"}, {"tensor": "linear_weight", "permute": [1, 0]}],
    "out": {"tensor": "product"},
}
_AFTER = ("product", "linear_bias", "norm_weight", "norm_bias", "out=", ".rows", ".columns", "1e-5f")


def _after(*args: Any, **fields: Any) -> Launch:
    return launch("norm_relu", "ceil(rows/4)", 128, *(args or _AFTER), **fields)


STORE = "    out[i] = value < 0 ? 0 : value;\n"
KEPT = """    if (memo[rows * columns] != 1.5f) memo[row_ * columns + i] = value < 0 ? 0 : value;
    out[i] = memo[row_ * columns + i];
  }
  __syncthreads();
  if (threadIdx.x == 0) memo[rows * columns] = 1.5f;
  if (false) {
"""
AROUND_LIBRARY = (
    Fault("ignores-the-bias", "(product[i] + bias[i] - mean) *", "(product[i] - mean) *"),
    Fault("missing-eps", "/ columns + eps", "/ columns"),
    Fault("missing-relu", "value < 0 ? 0 : value", "value"),
    Fault("row-beyond", "if (row >= rows) return;", "if (row > rows) return;"),
    Fault("f16-product", "(product[i] + bias[i] - mean) *", "(half_of(product[i]) + bias[i] - mean) *"),
    Fault("weight-and-shift-exchanged", launches=(CALL, _after(*_AFTER[:2], "norm_bias", "norm_weight", *_AFTER[4:]))),
)
LIBRARY_LINEAR = Kind(
    "linear-by-the-library",
    graphs.linear_norm,
    ((13, 40, 24), (3, 64, 64), (1, 33, 7), (16, 8, 100)),
    ("norm_relu",),
    (CALL, _after()),
    (
        *AROUND_LIBRARY,
        Fault(
            "the-first-output-is-kept",
            launches=(CALL, _after(*_AFTER, {"tensor": "memo", "access": "write"})),
            scratch=(MEMO,),
            edits=(
                (
                    "float eps) {",
                    "float eps, float* memo) {\n  const int row_ = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;",
                ),
                (STORE, KEPT),
            ),
        ),
    ),
    plan={"scratch": [PRODUCT]},
)
_TILED = launch(
    "linear",
    ("ceil(columns/16)", "ceil(rows/16)", 1),
    (16, 16, 1),
    "x",
    "linear_weight",
    "product=",
    ".rows",
    ".columns",
    ".depth",
)
OWN_LINEAR = Kind(
    "linear-of-our-own",
    graphs.linear_norm,
    ((20, 40, 24), (16, 64, 64), (1, 33, 7), (35, 8, 100)),
    ("linear", "norm_relu"),
    (_TILED, _after()),
    (
        Fault("missing-barrier", "    __syncthreads();\n    for (int i = 0; i < 16", "    for (int i = 0; i < 16"),
        Fault("tile-overwritten-early", "b[threadIdx.x][i], sum);\n    __syncthreads();", "b[threadIdx.x][i], sum);"),
        Fault("depth-beyond", "row < rows && k < depth ?", "row < rows ?"),
        Fault("leaves-out-a-step", "i < 16; ++i", "i < 15; ++i"),
        Fault(
            "tf32-products",
            "fmaf(a[threadIdx.y][i], b[threadIdx.x][i], sum)",
            "fmaf(tf32_of(a[threadIdx.y][i]), tf32_of(b[threadIdx.x][i]), sum)",
        ),
        Fault("unwritten-scratch", "&& column < columns) out", "&& column < columns - 1) out"),
        Fault("no-wait-for-the-product", launches=(_TILED, _after(programmatic=True))),
    ),
    plan={"scratch": [PRODUCT]},
)
MAX_POOL = Kind(
    "max-pool",
    graphs.max_pool,
    ((3, 13, 10), (1, 8, 8), (2, 1, 5), (4, 7, 7)),
    ("max_pool",),
    (
        launch(
            "max_pool",
            "ceil(planes*((height-1)//2+1)*((width-1)//2+1)/128)",
            128,
            "x",
            "out=",
            ".planes",
            ".height",
            ".width",
            ".(height-1)//2+1",
            ".(width-1)//2+1",
        ),
    ),
    (
        Fault("pads-with-zeros", "float most = -__int_as_float(0x7f800000)", "float most = 0"),
        Fault("small-window", "j < 2 * column + 2", "j < 2 * column + 1"),
        Fault("row-beyond", "i >= height", "i > height"),
        Fault("loses-nan", " || isnan(value)", ""),
        Fault("unwritten-tail", "if (at >= planes * down * across)", "if (at >= planes * down * across - 1)"),
        Fault("rows-of-another-length", "(plane * height + i) * width + j", "(plane * height + i) * height + j"),
    ),
)
SCAN = Kind(
    "cumsum",
    graphs.row_scan,
    ((4, 300), (3, 64), (2, 1), (5, 129)),
    ("row_scan",),
    (launch("row_scan", "rows", 64, "x", "out=", ".columns"),),
    (
        Fault("missing-barrier", "sums[warp] = value;\n    __syncthreads();", "sums[warp] = value;"),
        Fault(
            "carried-early",
            "before + value;\n    __syncthreads();\n    if (threadIdx.x ==",
            "before + value;\n    if (threadIdx.x ==",
        ),
        Fault("adds-its-own-warp", "i < warp; ++i", "i <= warp; ++i"),
        Fault("lane-left-out", "if (lane >= step)", "if (lane > step)"),
        Fault("exclusive", "out[at] = before + value", "out[at] = before + value - x[at]"),
        Fault("carries-the-warp-only", "carried = before + value", "carried = value"),
        Fault("unwritten-tail", "if (at < columns) out", "if (at + 1 < columns) out"),
    ),
)
MSE = Kind(
    "mse-loss",
    graphs.mse_loss,
    ((5000,), (1,), (63,), (4096,)),
    ("mse_loss",),
    (launch("mse_loss", "min(ceil(count/256), 24)", 64, "x", "target", "out=", {"workspace": 0}, {"workspace": 16}, ".count"),),
    (
        Fault("missing-fence", "    __threadfence();\n    last", "    last"),
        Fault("counter-not-restored", "    *counter = 0;\n", ""),
        Fault("one-fewer", "sum / count", "sum / (count - 1)"),
        Fault("last-partial-left-out", "i < gridDim.x; i", "i < gridDim.x - 1; i"),
        Fault("last-read-early", "  __syncthreads();\n  if (!last)", "  if (!last)"),
        Fault("absolute", "(x[i] - target[i]) * (x[i] - target[i])", "fabsf(x[i] - target[i])"),
        Fault("adds-to-the-old-output", "*out = sum / count", "atomicAdd(out, sum / count)"),
    ),
    plan={"workspace": {"bytes": "16 + 4*24", "zero": "restored", "zero_bytes": 4}},
)
BATCH_NORM = Kind(
    "batch-norm-in-training",
    graphs.batch_norm,
    ((4, 3, 25), (2, 1, 64), (3, 8, 7), (16, 2, 4)),
    ("batch_norm",),
    (
        launch(
            "batch_norm",
            "channels",
            64,
            "x",
            "weight",
            "bias",
            "running_mean=",
            "running_var=",
            "batches=",
            "out=",
            ".batch",
            ".channels",
            ".inner",
            "1e-5f",
            "0.1f",
        ),
    ),
    (
        Fault("variance-not-updated", "momentum * (variance * count / (count - 1))", "momentum * running_var[channel]"),
        Fault("biased-running-variance", "variance * count / (count - 1)", "variance"),
        Fault(
            "momentum-exchanged",
            "(1 - momentum) * running_mean[channel] + momentum * mean",
            "momentum * running_mean[channel] + (1 - momentum) * mean",
        ),
        Fault("missing-eps", "variance + eps", "variance"),
        Fault("uses-running-mean", "(x[at] - mean)", "(x[at] - running_mean[channel])"),
        Fault("batches-not-counted", "*batches += 1", "*batches += 0"),
        Fault("every-channel-counts", "if (channel == 0) *batches", "*batches"),
        Fault("ignores-weight", " * weight[channel]", ""),
    ),
)
CROSS_ENTROPY = Kind(
    "cross-entropy",
    graphs.cross_entropy,
    ((21, 50), (1, 3), (8, 32), (40, 7)),
    ("cross_entropy",),
    (
        launch("row_loss", "ceil(rows/4)", 128, "x", "target", "loss=", ".rows", ".classes"),
        launch("mean_loss", 1, 32, "loss", "out=", ".rows"),
    ),
    (
        Fault("targets-of-32-bits", "x[target[row]]", "x[((const int*)target)[row]]"),
        Fault("no-maximum", "  float sum = 0;\n  for (int i = lane", "  most = 0;\n  float sum = 0;\n  for (int i = lane"),
        Fault("sum-for-mean", "sum / rows", "sum"),
        Fault("reads-beyond", "i < classes; i += 32) sum", "i <= classes; i += 32) sum"),
        Fault("row-left-out", "if (row >= rows) return;", "if (row >= rows - 1) return;"),
        Fault("f16-logarithm", "logf(sum)", "half_of(logf(sum))"),
    ),
    plan={"scratch": [{"name": "loss", "shape": ["rows"], "element": "f32"}]},
)
MASKED = Kind(
    "masked",
    graphs.masked,
    ((9, 77), (1,), (3, 5, 7), (256,)),
    ("masked",),
    (launch("masked", "ceil(count/128)", 128, "x", "drop", "above=", "kept=", ".count", "0f"),),
    (
        Fault("at-least", "x[at] > limit", "x[at] >= limit"),
        Fault("true-is-255", "x[at] > limit", "x[at] > limit ? 255 : 0"),
        Fault("mask-inverted", "drop[at] ? 0.0f : x[at]", "drop[at] ? x[at] : 0.0f"),
        Fault("unwritten-tail", "at >= count", "at >= count - 1"),
        Fault("writes-beyond", "at >= count", "at > count"),
        Fault("mask-by-product", "drop[at] ? 0.0f : x[at]", "x[at] * (1 - drop[at])"),
    ),
)
SQUARE_SUM = Kind(
    "square-sum-in-f64",
    graphs.square_sum,
    ((37, 50), (1, 32), (8, 5), (100, 3)),
    ("square_sum",),
    (launch("square_sum", "ceil(columns/32)", (32, 8, 1), "x", "out=", ".rows", ".columns"),),
    (
        Fault("sums-in-f32", "double sum = 0", "float sum = 0"),
        Fault("products-in-f32", "(double)x[row * columns + column] *", "x[row * columns + column] *"),
        Fault("missing-barrier", "  __syncthreads();\n", ""),
        Fault("one-part-left-out", "i < 8; ++i", "i < 7; ++i"),
        Fault("writes-beyond", "if (threadIdx.y || column >= columns) return;", "if (threadIdx.y || column > columns) return;"),
        Fault("row-left-out", "row < rows; row += 8", "row < rows - 1; row += 8"),
    ),
)
KINDS = (
    SOFTMAX,
    LAYER_NORM,
    GELU,
    LIBRARY_LINEAR,
    OWN_LINEAR,
    MAX_POOL,
    SCAN,
    MSE,
    BATCH_NORM,
    CROSS_ENTROPY,
    MASKED,
    SQUARE_SUM,
)
