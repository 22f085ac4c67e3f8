"""Variables of a candidate's module, compared with the compiler's initial values.

Covered: every variable that the driver finds by its name; inspection judges how code uses all of them.
Not covered: variables that the driver does not find, such as those that no code refers to.
"""

from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

from cudal2_agent.sandbox.cuda.driver import DriverFault, call
from cudal2_agent.sandbox.cuda.guard.comparing import altered
from cudal2_agent.sandbox.inspect.elf import ModuleVariable, module_variables


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
