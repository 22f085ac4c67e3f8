"""Running sums along rows."""

from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.corpus.kernel import Fault, Kernel, launch, scratch

KERNELS = (
    Kernel(
        "scan/warps",
        graphs.row_scan,
        ((4, 300), (3, 64), (2, 1), (5, 129)),
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
    ),
    Kernel(
        "scan/serial",
        graphs.row_scan,
        ((70, 20), (3, 200)),
        (launch("row_scan", "ceil(rows/64)", 64, "x", "out=", ".rows", ".columns"),),
    ),
    Kernel(
        "scan/tree",
        graphs.row_scan,
        ((3, 256), (5, 100), (2, 3)),
        (launch("row_scan", "rows", 256, "x", "out=", ".columns"),),
        (
            Fault("missing-barrier", "step *= 2) {\n    __syncthreads();", "step *= 2) {"),
            Fault("root-not-cleared", "if (at == 255) tree[at] = 0;", ""),
        ),
    ),
    Kernel(
        "scan/three_launches",
        graphs.row_scan,
        ((3, 300), (2, 64), (5, 65)),
        (
            launch("piece_sums", ("ceil(columns/64)", "rows", 1), 64, "x", "sums=", ".columns", ".ceil(columns/64)"),
            launch("sums_before", 1, 32, "sums=", ".rows", ".ceil(columns/64)"),
            launch("pieces_from", ("ceil(columns/64)", "rows", 1), 64, "x", "sums", "out=", ".columns", ".ceil(columns/64)"),
        ),
        (
            Fault("second-warp-alone", "if (threadIdx.x >= 32) value += first;", ""),
            Fault(
                "inclusive-sums",
                "sums[row * pieces + i] = before;\n    before += sum;",
                "before += sum;\n    sums[row * pieces + i] = before;",
            ),
        ),
        {"scratch": [scratch("sums", "rows", "ceil(columns/64)")]},
    ),
    Kernel(
        "scan/look_back",
        graphs.row_scan,
        ((1, 640), (1, 50), (1, 300)),
        (
            launch(
                "row_scan",
                "ceil(columns/64)",
                64,
                "x",
                "out=",
                {"workspace": 0},
                {"workspace": 16},
                ".columns",
                ".ceil(columns/64)",
            ),
        ),
        (
            Fault("sum-not-waited-for", "while (!(found >> 32)) found", "found"),
            Fault("flag-beside-no-sum", "1ull << 32 | __float_as_uint(sum)", "1ull << 32 | __float_as_uint(sum) & 0xffffff00"),
            Fault("states-not-restored", "for (int i = 0; i < pieces; ++i) states[i] = 0;", ""),
        ),
        {"workspace": {"bytes": "16 + 8*ceil(columns/64)", "zero": "restored"}},
    ),
    Kernel(
        "scan/whole",
        graphs.row_scan,
        ((5, 100, "i64"), (3, 32, "i64"), (1, 1, "i64")),
        (launch("row_scan", "ceil(rows/4)", 128, "x", "out=", ".rows", ".columns"),),
        (Fault("carried-from-lane-30", "__shfl_sync(0xffffffff, value, 31)", "__shfl_sync(0xffffffff, value, 30)"),),
    ),
)
