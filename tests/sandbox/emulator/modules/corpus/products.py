"""Matrix products of our own by plain and matrix instructions, and what follows one of the library's."""

from typing import Any

from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.corpus.kernel import Fault, Kernel, Launch, launch, scratch

PRODUCT, MEMO = scratch("product", "rows", "columns"), scratch("memo", "rows*columns + 1")
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
LIBRARY_LINEAR = Kernel(
    "norm_relu/warp",
    graphs.linear_norm,
    ((13, 40, 24), (3, 64, 64), (1, 33, 7), (16, 8, 100)),
    (CALL, _after()),
    (
        Fault("ignores-the-bias", "(product[i] + bias[i] - mean) *", "(product[i] - mean) *"),
        Fault("missing-eps", "/ columns + eps", "/ columns"),
        Fault("missing-relu", "value < 0 ? 0 : value", "value"),
        Fault("row-beyond", "if (row >= rows) return;", "if (row > rows) return;"),
        Fault("f16-product", "(product[i] + bias[i] - mean) *", "(half_of(product[i]) + bias[i] - mean) *"),
        Fault("weight-and-shift-exchanged", launches=(CALL, _after(*_AFTER[:2], "norm_bias", "norm_weight", *_AFTER[4:]))),
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
    {"scratch": [PRODUCT]},
)
_AROUND_LIBRARY = (
    LIBRARY_LINEAR,
    Kernel(
        "norm_relu/cta",
        graphs.linear_norm,
        ((13, 40, 24), (2, 300, 16), (5, 7, 33)),
        (CALL, launch("norm_relu", "rows", 64, *_AFTER[:5], *_AFTER[6:])),
        (
            Fault(
                "bias-after-the-norm",
                "row[i] = product[i] + bias[i]",
                "row[i] = product[i]",
                edits=(("weight[i], shift[i])", "weight[i], shift[i] + bias[i])"),),
            ),
        ),
        {"scratch": [PRODUCT]},
    ),
    Kernel(
        "norm_relu/in_place",
        graphs.linear_norm,
        ((13, 40, 24), (70, 9, 5)),
        (
            CALL,
            launch("biased", "ceil(rows*columns/128)", 128, "product=", "linear_bias", ".columns", ".rows*columns"),
            launch("row_moments", "ceil(rows/32)", 32, "product", "moments=", ".rows", ".columns", "1e-5f"),
            launch("applied", "ceil(rows*columns/64)", 64, "product", "moments", *_AFTER[2:5], ".columns", ".rows*columns"),
        ),
        (Fault("bias-of-the-row", "bias[at % columns]", "bias[at / columns % columns]"),),
        {"scratch": [PRODUCT, scratch("moments", "rows", 2)]},
    ),
    Kernel(
        "norm_relu/half",
        graphs.linear_norm,
        ((9, 40, 32, "f16"), (4, 33, 16, "f16")),
        (CALL, _after()),
        (Fault("variance-of-other-columns", "squares) / columns", "squares) / (columns + 1)"),),
        {"scratch": [scratch("product", "rows", "columns", element="f16")]},
    ),
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
_MADE = ("x", "weight", "bias", "out=", ".rows", ".columns", ".depth")


def _by_warps(rows: int, columns: int, threads: int = 32) -> tuple[Launch, ...]:
    """A CTA makes so many outputs."""
    return (launch("linear", (f"ceil(columns/{columns})", f"ceil(rows/{rows})", 1), threads, *_MADE),)


_OWN = (
    Kernel(
        "linear/tile",
        graphs.linear_norm,
        ((20, 40, 24), (16, 64, 64), (1, 33, 7), (35, 8, 100)),
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
        {"scratch": [PRODUCT]},
        parts=("norm_relu/warp",),
    ),
    Kernel(
        "linear/naive",
        graphs.linear_relu,
        ((7, 40, 30), (1, 3, 200), (5, 70, 1)),
        (launch("linear", ("ceil(columns/64)", "rows", 1), 64, *_MADE),),
        (
            Fault("bias-twice", "float sum = bias[column]", "float sum = 2 * bias[column]"),
            Fault(
                "bf16-products",
                "fmaf(x[row * depth + k],",
                "fmaf(__int_as_float(__float_as_int(x[row * depth + k]) & 0xffff0000),",
            ),
        ),
    ),
    Kernel(
        "linear/registers",
        graphs.linear_relu,
        ((40, 50, 30), (32, 32, 16), (3, 70, 9)),
        _by_warps(32, 32, 64),
        (
            Fault(
                "tf32-sums",
                "sums[i][j] = fmaf(a[k][y + 8 * i], b[k][z + 8 * j], sums[i][j])",
                "sums[i][j] = fmaf(tf32_of(a[k][y + 8 * i]), b[k][z + 8 * j], sums[i][j])",
            ),
            Fault("tile-overwritten-early", "    }\n    __syncthreads();\n  }\n", "    }\n  }\n"),
            Fault("rows-of-the-tile-exchanged", "row = row0 + y + 8 * i", "row = row0 + y + 8 * (i ^ 1)"),
        ),
    ),
    Kernel(
        "linear/warp",
        graphs.linear_relu,
        ((5, 13, 132), (1, 40, 64), (9, 3, 4)),
        (launch("linear", "ceil(rows*columns/4)", 128, *_MADE[:6], ".depth//4"),),
        (Fault("depth-cut-to-warps", "k < quarters; k += 32", "k < quarters / 32 * 32; k += 32"),),
    ),
    Kernel(
        "linear/split",
        graphs.linear_relu,
        ((7, 20, 61), (4, 9, 3)),
        (
            launch("pieces", ("ceil(rows*columns/64)", 4, 1), 64, "x", "weight", "partial=", ".rows", ".columns", ".depth"),
            launch("added", "ceil(rows*columns/64)", 64, "partial", "bias", "out=", ".columns", ".rows*columns"),
        ),
        (
            Fault("last-piece-left-out", "i < 4; ++i", "i < 3; ++i"),
            Fault("depth-rounded-down", "each = (depth + 3) / 4", "each = depth / 4"),
        ),
        {"scratch": [scratch("partial", 4, "rows*columns")]},
    ),
    Kernel(
        "linear/atomic",
        graphs.linear_relu,
        ((7, 20, 61), (3, 8, 16)),
        (
            launch("biased", "ceil(rows*columns/64)", 64, "bias", "sums=", ".columns", ".rows*columns"),
            launch(
                "added",
                ("ceil(rows*columns/64)", "ceil(depth/16)", 1),
                64,
                "x",
                "weight",
                "sums=",
                ".columns",
                ".depth",
                ".rows*columns",
            ),
            launch("positive", "ceil(rows*columns/64)", 64, "sums", "out=", ".rows*columns"),
        ),
        (Fault("added-without-atomics", "atomicAdd(sums + at, sum)", "sums[at] += sum"),),
        {"scratch": [scratch("sums", "rows", "columns")], "atomics": True},
    ),
    Kernel(
        "linear/staged",
        graphs.linear_relu,
        ((20, 18, 40), (16, 16, 16), (3, 33, 7)),
        (launch("linear", ("ceil(columns/16)", "ceil(rows/16)", 1), (16, 16, 1), *_MADE),),
        (
            Fault("waits-for-too-little", "cp.async.wait_group 1;", "cp.async.wait_group 2;"),
            Fault("stage-overwritten-early", "sum);\n    __syncthreads();", "sum);"),
            Fault("outside-not-zero", '"r"(inside ? 4 : 0)', '"r"(4)'),
        ),
    ),
    Kernel(
        "linear/mma",
        graphs.linear_relu,
        ((20, 40, 48, "f16"), (16, 16, 16, "f16"), (5, 9, 20, "f16")),
        _by_warps(16, 16, 64),
        (
            Fault("halves-exchanged", "lane / 16 * 8]", "(1 - lane / 16) * 8]"),
            Fault("right-operand-of-the-other-warp", "&b[8 * warp +", "&b[8 * (1 - warp) +"),
            Fault("bias-in-the-wrong-column", "bias[column]", "bias[column ^ 1 < columns ? column ^ 1 : column]"),
        ),
    ),
    Kernel(
        "linear/bfloat_mma",
        graphs.linear_relu,
        ((20, 20, 48, "bf16"), (16, 8, 16, "bf16"), (3, 5, 32, "bf16")),
        _by_warps(16, 8),
    ),
    Kernel(
        "linear/tf32",
        graphs.linear_relu,
        ((20, 20, 45, "tf32"), (16, 8, 8, "tf32"), (3, 5, 13, "tf32")),
        _by_warps(16, 8),
        (
            Fault(
                "bf16-operands",
                "cvt.rna.tf32.f32 %0, %1;",
                "and.b32 %0, %1, 0xffff0000;",
                edits=(('"f"(x)', '"r"(__float_as_int(x))'),),
            ),
            Fault("last-step-left-out", "from < (depth + 7) / 8 * 8", "from < depth / 8 * 8"),
        ),
    ),
    Kernel(
        "linear/wgmma",
        graphs.linear_relu,
        ((70, 20, 48, "f16"), (64, 8, 16, "f16"), (3, 5, 20, "f16")),
        _by_warps(64, 8, 128),
        (
            Fault("missing-proxy-fence", '    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n', ""),
            Fault("used-in-flight", "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
            Fault("strides-exchanged", "128ull >> 4 << 16 | 256ull >> 4 << 32", "256ull >> 4 << 16 | 128ull >> 4 << 32"),
        ),
    ),
    Kernel("linear/wmma", graphs.linear_relu, ((20, 40, 48, "f16"), (5, 9, 20, "f16")), _by_warps(16, 16)),
    Kernel(
        "linear/double_mma",
        graphs.linear_relu,
        ((9, 20, 23, "f64"), (8, 8, 4, "f64")),
        _by_warps(8, 8),
        (Fault("operands-in-f32", "? x[row * depth + k]", "? (float)x[row * depth + k]"),),
    ),
)
KERNELS = (*_AROUND_LIBRARY, *_OWN)
