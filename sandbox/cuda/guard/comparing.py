"""Memory compared with its expected contents, by trusted kernels (`comparing.cu`) on the current stream."""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import cupy

BLOCK = 256
MAX_CTAS = 2048
BYTES_PER_CTA = 64 * 1024
WORD_BYTES = 8


def differ(pairs: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the arrays of any pair differ in any bit; waits for the GPU once. Shape: pairs of contiguous (n,) of equal
    type.
    """
    found = cupy.zeros(1, dtype=cupy.uint8)
    for one, other in pairs:
        aligned = one.data.ptr % WORD_BYTES == other.data.ptr % WORD_BYTES == 0
        words = one.nbytes // WORD_BYTES if aligned else 0
        ctas = min(MAX_CTAS, -(-one.nbytes // BYTES_PER_CTA))
        tail = one.nbytes - WORD_BYTES * words
        _kernel("compare_arrays")((ctas,), (BLOCK,), (one, other, cupy.uint64(words), cupy.uint64(tail), found))
    return bool(found[0])


def altered(layout: Any, images: Any, count: int) -> Any:
    """Which of `count` variables differ from their images: (count,) of 0 and 1 on the host. `layout`: see comparing.cu."""
    flags = cupy.zeros(count, dtype=cupy.uint8)
    _kernel("compare_variables")((count,), (BLOCK,), (layout, images, flags))
    return flags.get()


@cache
def _kernel(name: str) -> Any:
    return _module().get_function(name)


@cache
def _module() -> Any:
    source = resources.files("cudal2_agent.sandbox.cuda.guard").joinpath("comparing.cu").read_text()
    return cupy.RawModule(code=source, options=("-std=c++17",))
