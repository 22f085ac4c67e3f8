"""One call of a module: whether the kernels serve it, and their launch. Where they do not, PyTorch runs the original.

Covered: sizes, element types, device, strides and addresses of inputs, parameters and states; the arguments of the constructor;
training mode of every part; gradients, autocast, compilation; hooks of parts; the GPU's architecture and number of SMs.
Not covered: attributes that a program changes after construction, other than tensors.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from cudal2.launcher.interpreted import InterpretedLauncher
from cudal2.launcher.launcher import DRIVER
from cudal2.launcher.loaded_kernel import ALIGNMENT
from cudal2.launcher.module_kernels import ModuleKernels, Place
from cudal2.launcher.planned_launches import DriverGpu
from cudal2.modules.module_memory import TYPES, Fallback, ModuleMemory, checked, formed
from cudal2.modules.stored_module import StoredModule
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.contract.records.task import Arch

logger = logging.getLogger(__name__)
# Runs a plan's library operation on tensors by buffer, in the arithmetic of a task, on the current stream.
RunCall = Callable[[LibraryCall, Mapping[str, torch.Tensor], ModuleTask], None]


class Gpus(Protocol):
    """The devices of this process; tests put the CPU in their place. `alignment`: of tensors, in bytes."""

    device_type: str
    alignment: int

    def capability(self, device: torch.device) -> int:
        """As one number, such as 90."""
        ...

    def gpu(self, device: torch.device) -> DriverGpu:
        """Raises: DeviceUnavailable."""
        ...

    def stream(self, device: torch.device) -> int:
        """The handle of the current stream."""
        ...


class CudaGpus:
    """The GPUs that PyTorch sees."""

    device_type = "cuda"
    alignment = ALIGNMENT

    def capability(self, device: torch.device) -> int:
        major, minor = torch.cuda.get_device_capability(device)
        return 10 * int(major) + int(minor)

    def gpu(self, device: torch.device) -> DriverGpu:
        return InterpretedLauncher(device.index, DRIVER)

    def stream(self, device: torch.device) -> int:
        return int(torch._C._cuda_getCurrentRawStream(device.index))


class ModuleKernelsOfProcess:
    """The kernels of one folder, loaded once for each device of a process."""

    def __init__(self, stored: StoredModule, cubin: bytes, gpus: Gpus, run_call: RunCall | None) -> None:
        self.task, self.plan, self.gpus, self.run_call = stored.task, stored.plan, gpus, run_call
        self._cubin = cubin
        self._loaded: dict[torch.device, ModuleKernels | str] = {}

    def on(self, device: torch.device) -> ModuleKernels:
        """Raises: Fallback, with the same reason every time."""
        if device not in self._loaded:
            try:
                self._loaded[device] = self._load(device)
            except (Cudal2Error, Fallback) as exc:
                self._loaded[device] = str(exc)
        found = self._loaded[device]
        if isinstance(found, str):
            raise Fallback(found)
        return found

    def _load(self, device: torch.device) -> ModuleKernels:
        if not fits(self.task.arch, capability := self.gpus.capability(device)):
            raise Fallback(f"the kernels are for {self.task.arch}; {device} is sm_{capability}")
        if self.plan.calls and self.run_call is None:
            raise Fallback("the plan has library operations, and nothing was given that runs them")
        return ModuleKernels(self.gpus.gpu(device), self._cubin, self.plan, self.task.buffers)


def fits(arch: Arch, capability: int) -> bool:
    """Whether code for an architecture runs on a GPU of this compute capability."""
    if arch.value.endswith("a"):
        return capability == arch.number
    return capability // 10 == arch.number // 10 and capability >= arch.number


class ModuleService:
    """Of one module. `served`: calls so far that the kernels ran. `fallbacks`: calls that PyTorch ran, by reason."""

    def __init__(self, kernels: ModuleKernelsOfProcess, refused: str = "") -> None:
        """`refused`: why no call can be served; empty where calls can be."""
        self._kernels, self._refused = kernels, refused
        self._inputs = [buffer for buffer in kernels.task.buffers if buffer.role is Role.INPUT]
        self._outputs = [buffer for buffer in kernels.task.buffers if buffer.role is Role.OUTPUT]
        self._memory: ModuleMemory | None = None
        self._parts: Sequence[torch.nn.Module] = ()
        self.served = 0
        self.fallbacks: Counter[str] = Counter()

    def __deepcopy__(self, _: object) -> "ModuleService":
        return ModuleService(self._kernels, self._refused)

    def result(self, module: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
        """What `forward` returns for these arguments, enqueued on the current stream. Raises: Fallback.

        The first call with a reason to fall back logs it.
        """
        try:
            found = self._result(module, arguments)
        except Fallback as exc:
            if str(exc) not in self.fallbacks:
                logger.warning("PyTorch runs %s: %s", self._kernels.task.name, exc)
            self.fallbacks[str(exc)] += 1
            raise
        self.served += 1
        return found

    def _result(self, module: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
        task, gpus = self._kernels.task, self._kernels.gpus
        if self._refused:
            raise Fallback(self._refused)
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            raise Fallback("the call is compiled or traced")
        if arguments.keys() != {buffer.name for buffer in self._inputs}:
            raise Fallback(f"forward was called with other arguments than {', '.join(each.name for each in self._inputs)}")
        first = next((value for value in arguments.values() if isinstance(value, torch.Tensor)), None)
        if first is None or first.device.type != gpus.device_type:
            raise Fallback(f"the inputs are not on {gpus.device_type}")
        if torch.is_autocast_enabled(gpus.device_type):
            raise Fallback("autocast is on")
        device, tensors, pointers = first.device, dict[str, torch.Tensor](), dict[str, int]()
        kept = list(self._kept(module).tensors())
        for buffer, tensor in [*((buffer, arguments[buffer.name]) for buffer in self._inputs), *kept]:
            pointers[buffer.name] = checked(buffer, tensor, device, gpus.alignment)
            tensors[buffer.name] = tensor
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.values()):
            raise Fallback("gradients are recorded; call it under torch.no_grad() or torch.inference_mode()")
        if any(part.training is not task.training for part in self._parts):
            raise Fallback(f"a part of the module is {'not ' if task.training else ''}in training mode")
        return self._launched(self._kernels.on(device), device, tensors, pointers)

    def _kept(self, module: torch.nn.Module) -> ModuleMemory:
        """Where the module's tensors are, found with the first call."""
        if self._memory is None:
            self._parts = tuple(module.modules())
            if any(part._forward_hooks or part._forward_pre_hooks for part in self._parts if part is not module):
                raise Fallback("a part of the module has hooks")
            self._memory = ModuleMemory(module, self._kernels.task.buffers)
        return self._memory

    def _launched(
        self, kernels: ModuleKernels, device: torch.device, tensors: dict[str, torch.Tensor], pointers: dict[str, int]
    ) -> Any:
        task, gpus = self._kernels.task, self._kernels.gpus
        outputs = {each.name: torch.empty(each.shape, dtype=TYPES[each.element], device=device) for each in self._outputs}
        pointers |= {name: tensor.data_ptr() for name, tensor in outputs.items()}
        borrowed = torch.empty(kernels.borrowed_bytes, dtype=torch.uint8, device=device)
        known = tensors | outputs | self._scratch(kernels.borrowed, borrowed)

        def call(operation: LibraryCall) -> None:
            assert self._kernels.run_call is not None
            self._kernels.run_call(operation, known, task)

        try:
            with torch.no_grad():
                kernels.run(pointers, borrowed.data_ptr(), gpus.stream(device), call)
        except Cudal2Error as exc:
            raise Fallback(str(exc)) from exc
        return formed(task.returns, outputs)

    def _scratch(self, places: Sequence[Place], borrowed: torch.Tensor) -> dict[str, torch.Tensor]:
        """The plan's scratch as tensors over the memory that a run borrows."""
        at = {place.name: place for place in places}
        return {
            each.name: borrowed[at[each.name].offset : at[each.name].offset + at[each.name].size]
            .view(TYPES[each.element])
            .view([int(size) for size in each.shape])
            for each in self._kernels.plan.scratch
            if each.name in at
        }
