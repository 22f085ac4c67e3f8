"""The tensors behind a task's buffers: inputs of a call, parameters and states of a module, and what must hold of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role

TYPES: dict[BufferElement, torch.dtype] = {each: getattr(torch, each.torch_name) for each in BufferElement}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Fallback(Exception):
    """Why PyTorch runs a call."""


class ModuleMemory:
    """Where a module keeps the tensors of a task. Raises: Fallback for a buffer that it does not have."""

    def __init__(self, module: torch.nn.Module, buffers: Sequence[Buffer]) -> None:
        places = dict(_places(module))
        self._wanted: list[tuple[Buffer, dict[str, Any], str]] = []
        for buffer in buffers:
            if buffer.role not in (Role.PARAMETER, Role.STATE):
                continue
            place = places.get(buffer.name) or places.get(buffer.name.removeprefix("p_"))
            if place is None:
                raise Fallback(f"the module has no tensor for {buffer.name}")
            self._wanted.append((buffer, *place))

    def tensors(self) -> Iterator[tuple[Buffer, torch.Tensor]]:
        """As they are now: a program may have put others in their places."""
        for buffer, owner, attribute in self._wanted:
            yield buffer, owner[attribute]


def _places(module: torch.nn.Module) -> Iterator[tuple[str, tuple[dict[str, Any], str]]]:
    """(name of the buffer, the dictionary that holds the tensor and its key there), plain attributes first."""
    parts = list(module.named_modules(remove_duplicate=False))
    for held in ("__dict__", "_buffers", "_parameters"):
        for path, part in parts:
            owner: dict[str, Any] = getattr(part, held)
            for attribute, value in owner.items():
                if isinstance(value, torch.Tensor):
                    yield f"{path}.{attribute}".removeprefix(".").replace(".", "_"), (owner, attribute)


def checked(buffer: Buffer, tensor: object, device: torch.device, alignment: int) -> int:
    """The address of a tensor that a kernel may take as a buffer. Raises: Fallback."""
    if type(tensor) not in _PLAIN:
        raise Fallback(f"{buffer.name} is no plain tensor")
    assert isinstance(tensor, torch.Tensor)
    if tensor.dtype is not TYPES[buffer.element]:
        raise Fallback(f"{buffer.name} is {str(tensor.dtype).removeprefix('torch.')}, not {buffer.element}")
    if tuple(tensor.shape) != buffer.shape:
        raise Fallback(f"{buffer.name} has the shape {list(tensor.shape)}, not {list(buffer.shape)}")
    if tensor.device != device:
        raise Fallback(f"{buffer.name} is on {tensor.device}, not on {device}")
    if not tensor.is_contiguous():
        raise Fallback(f"{buffer.name} is not contiguous")
    address = int(tensor.data_ptr())
    if address % alignment:
        raise Fallback(f"{buffer.name} is not aligned to {alignment} bytes")
    return address


def formed(form: Any, values: Mapping[str, torch.Tensor]) -> Any:
    """A result in the form in which `forward` returns it; see `ModuleTask.returns`."""
    match form:
        case None:
            return None
        case {"tuple": parts}:
            return tuple(formed(part, values) for part in parts)
        case {"list": parts}:
            return [formed(part, values) for part in parts]
        case {"dict": parts}:
            return {name: formed(part, values) for name, part in parts.items()}
    return values[form]
