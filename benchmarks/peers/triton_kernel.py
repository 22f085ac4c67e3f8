"""D = A B in Triton, one tile of D per program, programs of one group of rows of tiles after each other. Needs Triton."""

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    a,
    b,
    d,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    WHOLE_K: tl.constexpr,
):
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    in_group = GROUP_M * tiles_n
    first_m = program // in_group * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    row = (first_m + program % in_group % group_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = program % in_group // group_m * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_at = a + (row % m)[:, None] * k + depth[None, :]
    b_at = b + depth[:, None] * n + (column % n)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for done in range(0, k, BLOCK_K):
        if WHOLE_K:
            left, right = tl.load(a_at), tl.load(b_at)
        else:
            left = tl.load(a_at, mask=depth[None, :] < k - done, other=0.0)
            right = tl.load(b_at, mask=depth[:, None] < k - done, other=0.0)
        total = tl.dot(left, right, total)
        a_at += BLOCK_K
        b_at += BLOCK_K * n
    inside = (row < m)[:, None] & (column < n)[None, :]
    tl.store(d + row[:, None] * n + column[None, :], total.to(d.dtype.element_ty), mask=inside)
