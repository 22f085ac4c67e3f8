"""Element by element, with masks and indices, and pools."""

from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.corpus.kernel import Fault, Kernel, launch, scratch

_ELEMENTS = (
    Kernel(
        "elements/vector",
        graphs.gelu,
        ((1003,), (4,), (3,), (512,), (2050,)),
        (launch("gelu_relu", "ceil(count/512)", 128, "x", "out=", ".count"),),
        (
            Fault("unwritten-tail", "i < count; ++i", "i < count - 1; ++i"),
            Fault("vector-beyond-the-end", "if (at + 4 <= count)", "if (at < count)"),
            Fault("one-of-four-without-relu", "gelu(relu(in.y))", "gelu(in.y)"),
            Fault("the-input-itself", "return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f))", "return x"),
            Fault("operation-left-out", "return x < 0 ? 0 : x", "return x"),
            Fault(
                "by-tanh",
                "(1.0f + erff(x * 0.70710678118654752f))",
                "(1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
            ),
            Fault("f16-result", "return 0.5f * x", "return half_of(0.5f) * half_of(x)"),
            Fault("overlapping-threads", "const int at = 4 * (", "const int at = 3 * ("),
        ),
    ),
    Kernel(
        "elements/scalar",
        graphs.gelu,
        ((1003,), (5,), (300,)),
        (launch("gelu_relu", "min(ceil(count/64), 5)", 64, "x", "out=", ".count"),),
        (Fault("loses-nan", "x[i] < 0 ? 0 : x[i]", "fmaxf(x[i], 0)"),),
    ),
    Kernel(
        "elements/half",
        graphs.gelu,
        ((514, "f16"), (33, "f16"), (1, "f16")),
        (launch("gelu_relu", "ceil(count/256)", 128, "x", "out=", ".count"),),
        (Fault("drops-the-odd-one", "else if (at < count)", "else if (at > count)"),),
    ),
    Kernel(
        "elements/bfloat",
        graphs.gelu,
        ((1100, "bf16"), (7, "bf16")),
        (launch("gelu_relu", "ceil(count/512)", 64, "x", "out=", ".count"),),
        (Fault("second-round-left-out", "round < 2", "round < 1"),),
    ),
    Kernel(
        "elements/bulk",
        graphs.gelu,
        ((1024,), (256,)),
        (launch("gelu_relu", "min(count//256, 2)", 64, "x", "out=", ".count"),),
        (
            Fault("missing-proxy-fence", 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', ""),
            Fault("phase-kept", ", phase ^= 1)", ")"),
            Fault("store-in-flight-at-the-end", "cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 1;"),
            Fault("overwritten-while-read", "cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group.read 1;"),
        ),
    ),
)
_KEPT = ("x", "drop", "above=", "kept=", ".count")
_MASKS = (
    Kernel(
        "masked/plain",
        graphs.masked,
        ((9, 77), (1,), (3, 5, 7), (256,)),
        (launch("masked", "ceil(count/128)", 128, *_KEPT, "0f"),),
        (
            Fault("at-least", "x[at] > limit", "x[at] >= limit"),
            Fault("true-is-255", "x[at] > limit", "x[at] > limit ? 255 : 0"),
            Fault("mask-inverted", "drop[at] ? 0.0f : x[at]", "drop[at] ? x[at] : 0.0f"),
            Fault("unwritten-tail", "at >= count", "at >= count - 1"),
            Fault("writes-beyond", "at >= count", "at > count"),
            Fault("mask-by-product", "drop[at] ? 0.0f : x[at]", "x[at] * (1 - drop[at])"),
        ),
    ),
    Kernel(
        "masked/vector",
        graphs.masked,
        ((9, 77), (2,), (512,)),
        (launch("masked", "ceil(count/256)", 64, *_KEPT, "0f"),),
        (Fault("mask-of-a-neighbour", "away.z ? 0 : in.z", "away.w ? 0 : in.z"),),
    ),
    Kernel(
        "masked/bits",
        graphs.masked,
        ((300,), (3, 5, 7)),
        (launch("masked", 2, 64, *_KEPT),),
        (Fault("nan-counts", "x[i] - 1 < 0x7f800000", "x[i] - 1 < 0x7fffffff"),),
    ),
    Kernel(
        "masked/most",
        graphs.argmax,
        ((6, 70), (3, 1), (5, 32)),
        (launch("most", "ceil(rows/4)", 128, "x", "out=", ".rows", ".columns"),),
        (
            Fault("last-column-left-out", "i < columns; i += 32", "i < columns - 1; i += 32"),
            Fault("index-of-32-bits", "out[row] = where", "((int*)out)[row] = where"),
        ),
    ),
    Kernel(
        "masked/most_by_atomics",
        graphs.argmax,
        ((6, 70), (3, 1), (2, 500)),
        (launch("most", "rows", 64, "x", "out=", ".columns"),),
        (
            Fault("negative-ones-by-magnitude", "? ~bits : bits | 0x80000000", "? bits & 0x7fffffff : bits | 0x80000000"),
            Fault(
                "read-before-all-arrived",
                "}\n  __syncthreads();\n  if (threadIdx.x == 0) out",
                "}\n  if (threadIdx.x == 0) out",
            ),
        ),
    ),
)
_DOWN, _ACROSS = "(height-1)//2+1", "(width-1)//2+1"
_POOLED = ("x", "out=", ".planes", ".height", ".width", f".{_DOWN}", f".{_ACROSS}")
_POOLS = (
    Kernel(
        "pool/plain",
        graphs.max_pool,
        ((3, 13, 10), (1, 8, 8), (2, 1, 5), (4, 7, 7)),
        (launch("max_pool", f"ceil(planes*({_DOWN})*({_ACROSS})/128)", 128, *_POOLED),),
        (
            Fault("pads-with-zeros", "float most = -__int_as_float(0x7f800000)", "float most = 0"),
            Fault("small-window", "j < 2 * column + 2", "j < 2 * column + 1"),
            Fault("row-beyond", "i >= height", "i > height"),
            Fault("loses-nan", " || isnan(value)", ""),
            Fault("unwritten-tail", "if (at >= planes * down * across)", "if (at >= planes * down * across - 1)"),
            Fault("rows-of-another-length", "(plane * height + i) * width + j", "(plane * height + i) * height + j"),
        ),
    ),
    Kernel(
        "pool/tile",
        graphs.max_pool,
        ((2, 20, 33), (1, 5, 4), (3, 16, 16)),
        (launch("max_pool", (f"ceil(({_ACROSS})/8)", f"ceil(({_DOWN})/8)", "planes"), (8, 8, 1), *_POOLED),),
        (
            Fault("border-of-the-tile-left-out", "at < 17 * 17", "at < 16 * 17"),
            Fault("missing-barrier", "  }\n  __syncthreads();\n", "  }\n"),
            Fault("border-is-zero", ": -INF;\n  }", ": 0;\n  }"),
            Fault("no-padding", "top = 16 * blockIdx.y - 1", "top = 16 * blockIdx.y"),
        ),
    ),
    Kernel(
        "pool/separable",
        graphs.max_pool,
        ((3, 13, 10), (2, 6, 7)),
        (
            launch("rows", 3, 64, "x", "kept=", ".planes*height", ".width", f".{_ACROSS}"),
            launch("columns", 2, 64, "kept", "out=", ".planes", ".height", f".{_DOWN}", f".{_ACROSS}"),
        ),
        (
            Fault("last-column-left-out", "middle + 1 < width", "middle + 2 < width"),
            Fault(
                "row-of-the-plane-before",
                "if (middle > 0) most = larger(most, from[-across])",
                "if (at >= across) most = larger(most, from[-across])",
            ),
        ),
        {"scratch": [scratch("kept", "planes*height", _ACROSS)]},
    ),
    Kernel(
        "pool/average",
        graphs.average_pool,
        ((3, 13, 10), (2, 4, 70), (1, 1, 1)),
        (launch("average", f"ceil(planes*({_DOWN})/4)", 128, *_POOLED),),
        (
            Fault(
                "zeros-outside-not-counted",
                "sum * (1.0f / 9)",
                "sum / ((min(2 * row + 2, height) - max(2 * row - 1, 0))"
                " * (min(2 * column + 2, width) - max(2 * column - 1, 0)))",
            ),
            Fault("border-off-by-one", "max(2 * row - 1, 0)", "max(2 * row - 1, 1)"),
            Fault("short-ninth", "(1.0f / 9)", "0.1111f"),
        ),
    ),
    Kernel(
        "pool/half",
        graphs.max_pool,
        ((3, 13, 10, "f16"), (1, 9, 9, "f16")),
        (launch("max_pool", f"ceil(planes*({_DOWN})*({_ACROSS})/64)", 64, *_POOLED),),
        (Fault("negative-ones-by-magnitude", "? -(bits & 0x7fff) : bits", "? bits & 0x7fff : bits"),),
    ),
)
KERNELS = (*_ELEMENTS, *_MASKS, *_POOLS)
