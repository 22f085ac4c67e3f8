"""Losses, batch statistics and sums of columns: reductions over many CTAs."""

from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.corpus.kernel import UNSYNCHRONISED, Fault, Kernel, launch, scratch

MSE = Kernel(
    "mse/last_cta",
    graphs.mse_loss,
    ((5000,), (1,), (63,), (4096,)),
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
_STATES = ("running_mean=", "running_var=", "batches=")
_SIZES = (".batch", ".channels", ".inner", "1e-5f", "0.1f")
_NORMED = ("x", "weight", "bias", *_STATES, "out=", *_SIZES)
BATCH_NORM = Kernel(
    "batch_norm/channel",
    graphs.batch_norm,
    ((4, 3, 25), (2, 1, 64), (3, 8, 7), (16, 2, 4)),
    (launch("batch_norm", "channels", 64, *_NORMED),),
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
SQUARE_SUM = Kernel(
    "square_sum/tile",
    graphs.square_sum,
    ((37, 50), (1, 32), (8, 5), (100, 3)),
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
_CLEARED = launch("cleared", 1, 1, "out=")
_PAIR = ("x", "target")
KERNELS = (
    MSE,
    Kernel(
        "mse/two_launches",
        graphs.mse_loss,
        ((4100,), (4,), (640,)),
        (
            launch("partials", 6, 64, *_PAIR, "partial=", ".count//4"),
            launch("mean", 1, 32, "partial", "out=", ".6", ".count"),
        ),
        (
            Fault("tf32-differences", "{a.x - b.x,", "{tf32_of(a.x) - tf32_of(b.x),"),
            Fault("one-of-four-left-out", "fmaf(d.z, d.z, d.w * d.w)", "d.z * d.z"),
        ),
        {"scratch": [scratch("partial", 6)]},
    ),
    Kernel(
        "mse/atomic",
        graphs.mse_loss,
        ((5000,), (1,), (333,)),
        (_CLEARED, launch("added", 5, 128, *_PAIR, "out=", ".count")),
        (Fault("every-lane-adds", "if (threadIdx.x % 32 == 0) atomicAdd", "atomicAdd"),),
        {"atomics": True},
    ),
    Kernel(
        "mse/compensated",
        graphs.mse_loss,
        ((5000,), (17,)),
        (launch("mse_loss", 1, 128, *_PAIR, "out=", ".count"),),
        (UNSYNCHRONISED,),
    ),
    Kernel(
        "mse/cluster",
        graphs.mse_loss,
        ((3000,), (9,)),
        (launch("mse_loss", 4, 64, *_PAIR, "out=", ".count", cluster=(4, 1, 1)),),
        (
            Fault("ends-before-its-peer-has-read", "*out = sum / count;\n  }\n  cluster.sync();", "*out = sum / count;\n  }"),
            Fault("peers-read-early", "own = sum;\n  cluster.sync();", "own = sum;"),
        ),
    ),
    Kernel(
        "mse/half",
        graphs.mse_loss,
        ((2000, "f16"), (5, "f16")),
        (launch("mse_loss", 1, 128, *_PAIR, "out=", ".count"),),
    ),
    Kernel(
        "mse/count",
        graphs.count_positive,
        ((3001,), (1,), (64,)),
        (_CLEARED, launch("counted", 3, 64, "x", "out=", ".count")),
        (
            Fault("zero-counts", "x[from + lane] > 0", "x[from + lane] >= 0"),
            Fault("added-without-atomics", "atomicAdd(out, (unsigned long long)found)", "*out += found"),
        ),
    ),
    BATCH_NORM,
    Kernel(
        "batch_norm/two_launches",
        graphs.batch_norm,
        ((4, 3, 25), (16, 2, 4), (2, 5, 1)),
        (
            launch("statistics", "channels", 32, "x", "means=", "scales=", *_STATES, *_SIZES),
            launch(
                "applied",
                "ceil(batch*channels*inner/128)",
                128,
                "x",
                "weight",
                "bias",
                "means",
                "scales",
                "out=",
                ".channels",
                ".inner",
                ".batch*channels*inner",
            ),
        ),
        (
            Fault("merged-without-the-distance", " + (their - mean) * (their - mean) * (count * others / together)", ""),
            Fault("momentum-of-another", "momentum * (mean - running_mean", "0.11f * (mean - running_mean"),
        ),
        {"scratch": [scratch("means", "channels"), scratch("scales", "channels")]},
    ),
    Kernel(
        "batch_norm/wide_sums",
        graphs.batch_norm,
        ((4, 5, 25), (2, 1, 64), (3, 8, 7)),
        (launch("batch_norm", "ceil(channels/2)", 64, *_NORMED),),
        (
            Fault("squares-in-f32", "squares += value * value", "squares += (float)value * (float)value"),
            Fault("sums-in-f32", "double sum = 0, squares = 0", "float sum = 0, squares = 0"),
        ),
    ),
    SQUARE_SUM,
    Kernel(
        "square_sum/plain",
        graphs.square_sum,
        ((37, 50), (1, 3), (100, 70)),
        (launch("square_sum", "ceil(columns/64)", 64, "x", "out=", ".rows", ".columns"),),
    ),
    Kernel(
        "square_sum/atomic",
        graphs.square_sum,
        ((37, 50), (16, 9)),
        (
            launch("cleared", "ceil(columns/64)", 64, "out=", ".columns"),
            launch("added", ("ceil(columns/64)", "ceil(rows/16)", 1), 64, "x", "out=", ".rows", ".columns"),
        ),
        (
            Fault("added-without-atomics", "atomicAdd(out + column, sum)", "out[column] += sum"),
            Fault("last-piece-left-out", "min(16 * blockIdx.y + 16, rows)", "min(16 * blockIdx.y + 16, rows / 16 * 16)"),
        ),
        {"atomics": True},
    ),
    Kernel(
        "square_sum/exact",
        graphs.square_sum,
        ((37, 50), (200, 3)),
        (launch("square_sum", "ceil(columns/4)", 128, "x", "out=", ".rows", ".columns"),),
        (Fault("what-was-lost-left-out", "(double)square + fmaf(value, value, -square)", "(double)square"),),
    ),
)
