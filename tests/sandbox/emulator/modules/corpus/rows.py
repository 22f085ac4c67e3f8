"""Softmax, LayerNorm and cross entropy: rows that are reduced, and read again."""

from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.corpus.kernel import (
    INDEX,
    RETURN,
    UNSAFE,
    UNSYNCHRONISED,
    Fault,
    Kernel,
    launch,
    scratch,
)

_BY_WARP = launch("softmax", "ceil(rows/4)", 128, "x", "out=", ".rows", ".columns")
SOFTMAX = Kernel(
    "softmax/row",
    graphs.row_softmax,
    ((6, 301), (3, 64), (5, 1), (2, 1000), (9, 33)),
    (launch("softmax", "rows", 128, "x", "out=", ".columns"),),
    (
        Fault("leaves-out-the-last", f"{INDEX} sum", "i < columns - 1; i += blockDim.x) sum"),
        UNSYNCHRONISED,
        Fault("parts-used-again-early", RETURN, UNSAFE),
        Fault("no-maximum", "most = largest(most, parts);", "most = 0;"),
        Fault("f16-result", "out[i] = expf(x[i] - most) / sum", "out[i] = half_of(expf(x[i] - most) / sum)"),
        Fault("unwritten-tail", f"{INDEX} out", "i < columns / 4 * 4; i += blockDim.x) out"),
        Fault("zeros", "out[i] = expf(x[i] - most) / sum", "out[i] = 0"),
        Fault("one-number-everywhere", "out[i] = expf(x[i] - most) / sum", "out[i] = 1.0f / columns"),
        Fault("reads-beyond", f"{INDEX} most", "i <= columns; i += blockDim.x) most"),
    ),
)
_SOFTMAXES = (
    SOFTMAX,
    Kernel(
        "softmax/online",
        graphs.row_softmax,
        ((7, 100), (4, 33), (1, 1), (2, 700)),
        (_BY_WARP,),
        (
            Fault("sum-not-rescaled", "sum * scaled(most, larger)", "sum"),
            Fault("lanes-not-merged", "int step = 16;", "int step = 8;"),
            Fault("rescaled-by-the-other", "sum * scaled(most, larger)", "sum * scaled(other, larger)"),
            Fault("row-beyond", "if (row >= rows) return;", "if (row > rows) return;"),
        ),
    ),
    Kernel(
        "softmax/held",
        graphs.row_softmax,
        ((3, 512), (2, 128), (5, 1000)),
        (launch("softmax", "rows", 128, "x", "out=", ".columns"),),
        (
            Fault("zeros-outside", "make_float4(-INF, -INF, -INF, -INF)", "make_float4(0, 0, 0, 0)"),
            Fault("half-scale", "= 1 / total(sum, parts)", "= half_of(1 / total(sum, parts))"),
        ),
    ),
    Kernel(
        "softmax/split",
        graphs.row_softmax,
        ((2, 777), (3, 77), (4, 9)),
        (
            launch("pieces", (4, "rows", 1), 64, "x", "tops=", "sums=", ".columns"),
            launch("merged", ("ceil(columns/128)", "rows", 1), 128, "x", "tops", "sums", "out=", ".columns"),
        ),
        (
            Fault("pieces-not-rescaled", " * expf(tops[row * 4 + i] - most)", ""),
            Fault("last-piece-left-out", "i < 4; ++i) {", "i < 3; ++i) {"),
        ),
        {"scratch": [scratch("tops", "rows", 4), scratch("sums", "rows", 4)]},
    ),
    Kernel(
        "softmax/cluster",
        graphs.row_softmax,
        ((3, 300), (2, 65)),
        (launch("softmax", (2, "rows", 1), 64, "x", "out=", ".columns", cluster=(2, 1, 1)),),
        (
            Fault("peer-read-early", "own[1] = sum;\n  cluster.sync();", "own[1] = sum;"),
            Fault("ends-before-its-peer-has-read", "sum += other[1];\n  cluster.sync();", "sum += other[1];"),
            Fault("own-sum-twice", "sum += other[1];", "sum += own[1];"),
        ),
    ),
    Kernel("softmax/half", graphs.row_softmax, ((4, 128, "f16"), (3, 126, "f16"), (5, 2, "f16")), (_BY_WARP,)),
    Kernel(
        "softmax/bfloat",
        graphs.row_softmax,
        ((5, 77, "bf16"), (3, 300, "bf16")),
        (launch("softmax", "rows", 64, "x", "out=", ".columns"),),
        (Fault("no-maximum", "most = largest(most, parts)", "most = 0"),),
    ),
    Kernel(
        "softmax/approximate",
        graphs.row_softmax,
        ((6, 99), (2, 640)),
        (_BY_WARP,),
        (Fault("short-constant", "1.44269504f", "1.4427f"),),
    ),
    Kernel(
        "softmax/staged",
        graphs.row_softmax,
        ((4, 256), (3, 60), (2, 1024)),
        (launch("softmax", "rows", 64, "x", "out=", ".columns"),),
        (
            Fault("copies-not-waited-for", 'asm volatile("cp.async.wait_all;" ::: "memory");', ""),
            Fault("copies-of-others-not-waited-for", '::: "memory");\n  __syncthreads();', '::: "memory");'),
        ),
    ),
    Kernel(
        "softmax/serial",
        graphs.row_softmax,
        ((70, 9), (3, 40), (130, 3)),
        (launch("softmax", "ceil(rows/64)", 64, "x", "out=", ".rows", ".columns"),),
    ),
    Kernel(
        "softmax/strided",
        graphs.column_softmax,
        ((37, 50), (5, 8), (64, 33)),
        (launch("softmax", "ceil(columns/32)", (32, 8, 1), "x", "out=", ".rows", ".columns"),),
        (Fault("maxima-overwritten", "threadIdx.x]);\n  __syncthreads();", "threadIdx.x]);"),),
    ),
)

_NORMED = ("x", "weight", "bias", "out=")
_NORM_BY_WARP = launch("layer_norm", "ceil(rows/4)", 128, *_NORMED, ".rows", ".columns", "1e-5f")
LAYER_NORM = Kernel(
    "layer_norm/row",
    graphs.layer_norm,
    ((5, 200), (3, 32), (4, 7), (2, 768), (11, 100)),
    (launch("layer_norm", "rows", 64, *_NORMED, ".columns", "1e-5f"),),
    (
        Fault("missing-eps", "/ columns + eps", "/ columns"),
        Fault("ignores-weight", " * weight[i]", ""),
        Fault("weight-of-the-row", "weight[i]", "weight[blockIdx.x % columns]"),
        Fault("unbiased-variance", "/ columns + eps", "/ (columns - 1) + eps"),
        UNSYNCHRONISED,
        Fault("tf32-inputs", "sum += x[i]", "sum += tf32_of(x[i])"),
        Fault("reads-beyond", f"{INDEX} sum", "i <= columns; i += blockDim.x) sum"),
        Fault("another-eps", "+ eps)", "+ 0.1f * eps)"),
        Fault(
            "eps-outside-of-the-root",
            "1.0f / sqrtf(total(squares, parts) / columns + eps)",
            "1.0f / (sqrtf(total(squares, parts) / columns) + eps)",
        ),
        Fault("variance-that-cancels", "(x[i] - mean) * (x[i] - mean)", "x[i] * x[i] - mean * mean"),
    ),
)
_LAYER_NORMS = (
    LAYER_NORM,
    Kernel(
        "layer_norm/welford",
        graphs.layer_norm,
        ((5, 200), (3, 33), (4, 7), (2, 1000)),
        (_NORM_BY_WARP,),
        (
            Fault("merged-without-the-distance", "squares += more + away * away * count * share;", "squares += more;"),
            Fault("counts-not-merged", "count = all;", ""),
            Fault("old-mean-twice", "squares += away * (x[i] - mean)", "squares += away * away"),
        ),
    ),
    Kernel(
        "layer_norm/held",
        graphs.layer_norm,
        ((4, 128), (2, 256), (3, 12)),
        (launch("layer_norm", "rows", 64, *_NORMED, ".columns", "1e-5f"),),
        (
            Fault(
                "padding-counts",
                "inside ? d.x * d.x + d.y * d.y + d.z * d.z + d.w * d.w : 0",
                "d.x * d.x + d.y * d.y + d.z * d.z + d.w * d.w",
            ),
        ),
    ),
    Kernel(
        "layer_norm/wide_sums",
        graphs.layer_norm,
        ((3, 90), (2, 500), (6, 31)),
        (launch("layer_norm", "rows", 64, *_NORMED, ".columns", "1e-5f"),),
        (Fault("mean-rounded", "- mean * mean", "- (float)mean * (float)mean"),),
    ),
    Kernel(
        "layer_norm/shifted",
        graphs.layer_norm,
        ((6, 100), (3, 40), (2, 300)),
        (_NORM_BY_WARP,),
        (Fault("shift-left-out", "const float shift = x[columns / 2]", "const float shift = 0"),),
    ),
    Kernel(
        "layer_norm/stored",
        graphs.layer_norm,
        ((20, 90), (65, 16)),
        (
            launch("moments", "ceil(rows/64)", 64, "x", "means=", "scales=", ".rows", ".columns", "1e-5f"),
            launch("applied", 3, 128, "x", "weight", "bias", "means", "scales", "out=", ".rows", ".columns"),
        ),
        (Fault("row-of-the-element-before", "row = at / columns", "row = (at - (at > 0)) / columns"),),
        {"scratch": [scratch("means", "rows"), scratch("scales", "rows")]},
    ),
    Kernel(
        "layer_norm/half",
        graphs.layer_norm,
        ((11, 128, "f16"), (3, 30, "f16")),
        (launch("layer_norm", 2, 128, *_NORMED, ".rows", ".columns", "1e-5f"),),
        (Fault("mean-in-f16", "= warp_total(sum) / columns", "= __half2float(__float2half_rn(warp_total(sum) / columns))"),),
    ),
    Kernel(
        "layer_norm/cluster",
        graphs.layer_norm,
        ((2, 600), (3, 45)),
        (launch("layer_norm", (2, "rows", 1), 64, *_NORMED, ".columns", "1e-5f", cluster=(2, 1, 1)),),
        (Fault("ends-before-its-peer-has-read", "+ eps);\n  cluster.sync();", "+ eps);"),),
    ),
)

_ENTROPY = ("x", "target")
CROSS_ENTROPY = Kernel(
    "cross_entropy/warp",
    graphs.cross_entropy,
    ((21, 50), (1, 3), (8, 32), (40, 7)),
    (
        launch("row_loss", "ceil(rows/4)", 128, *_ENTROPY, "loss=", ".rows", ".classes"),
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
    {"scratch": [scratch("loss", "rows")]},
)
_CROSS_ENTROPIES = (
    CROSS_ENTROPY,
    Kernel(
        "cross_entropy/online",
        graphs.cross_entropy,
        ((45, 20), (3, 10), (100, 3)),
        (
            launch("cleared", 1, 1, "out="),
            launch("added", "ceil(rows/64)", 64, *_ENTROPY, "out=", ".rows", ".classes"),
        ),
        (
            Fault("sum-not-rescaled", "sum * expf(most - x[i]) + 1", "sum + 1"),
            Fault("not-cleared", "*out = 0", "*out = *out"),
        ),
        {"atomics": True},
    ),
    Kernel(
        "cross_entropy/absolute",
        graphs.cross_entropy,
        ((21, 50), (1, 3), (8, 32)),
        (launch("cross_entropy", 1, 128, *_ENTROPY, "out=", ".rows", ".classes"),),
        (Fault("target-of-the-row-before", "target[row]", "target[row ? row - 1 : 0]"),),
    ),
    Kernel(
        "cross_entropy/logs",
        graphs.cross_entropy,
        ((16, 50), (2, 300), (40, 7)),
        (
            launch("sums", "rows", 64, "x", "logs=", ".classes"),
            launch("mean", 1, 32, "x", "logs", "target", "out=", ".rows", ".classes"),
        ),
        plan={"scratch": [scratch("logs", "rows")]},
    ),
)
KERNELS = (*_SOFTMAXES, *_LAYER_NORMS, *_CROSS_ENTROPIES)
