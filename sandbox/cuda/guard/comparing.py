"""Memory compared with its expected contents, by trusted kernels (`comparing.cu`) on the current stream.

Covered: of a candidate's module, every variable that the driver finds by its name, against the compiler's initial values;
inspection judges how code uses all of them.
Not covered: variables that the driver does not find, such as those that no code refers to.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from cudal2_agent.sandbox.cuda.driver import DriverFault, call
from cudal2_agent.sandbox.inspect.elf import ModuleVariable, module_variables

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


class ModuleVariables:
    """The variables of one loaded module. `module`: its CUmodule; `cubin`: the file it was loaded from."""

    def __init__(self, module: Any, cubin: bytes) -> None:
        found = _find_variables(module, cubin)
        self.names = tuple(variable.name for variable, _ in found)
        if found:
            sizes = [variable.size_bytes for variable, _ in found]
            starts = np.cumsum([0, *sizes[:-1]])
            self._layout = cupy.asarray(np.array([*(at for _, at in found), *sizes, *starts], dtype=np.uint64))
            self._images = cupy.asarray(np.frombuffer(b"".join(variable.image for variable, _ in found), dtype=np.uint8))

    def altered(self) -> tuple[str, ...]:
        """Names of the variables that differ from their images; waits for the GPU."""
        if not self.names:
            return ()
        flags = altered(self._layout, self._images, len(self.names))
        return tuple(name for name, flag in zip(self.names, flags, strict=True) if flag)


def _find_variables(module: Any, cubin: bytes) -> list[tuple[ModuleVariable, int]]:
    """Variables that the driver finds by name, with their addresses."""
    found = []
    for variable in module_variables(cubin):
        try:
            address, size = call(driver.cuModuleGetGlobal, module, variable.name.encode())
        except DriverFault as fault:
            if fault.status != "CUDA_ERROR_NOT_FOUND":
                raise
            continue
        if 0 < variable.size_bytes <= size:
            found.append((variable, int(address)))
    return found
