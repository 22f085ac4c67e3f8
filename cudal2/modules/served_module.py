"""A folder of results as a class that replaces the original module: same constructor, same state dict, same results."""

import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cudal2.modules.module_memory import Fallback
from cudal2.modules.module_service import CudaGpus, Gpus, ModuleKernelsOfProcess, ModuleService, RunCall
from cudal2.modules.stored_module import CUBIN, PROBLEM, read_stored
from cudal2_agent.contract.errors import LibraryError


def serve(folder: Path, run_call: RunCall | None = None, gpus: Gpus | None = None) -> type[torch.nn.Module]:
    """The class `Model` of the folder's problem file, whose calls the folder's kernels run where they can.

    `run_call`: runs the plan's library operations. The problem file is executed, as a program that imports it would.
    Raises: LibraryError for a folder that is damaged or of another version.
    """
    stored = read_stored(folder)
    cubin = folder / CUBIN
    kernels = ModuleKernelsOfProcess(stored, cubin.read_bytes() if cubin.is_file() else b"", gpus or CudaGpus(), run_call)
    problem = _loaded(folder / PROBLEM)
    base: type[torch.nn.Module] = problem.Model
    constructor, call = inspect.signature(base.__init__), inspect.signature(base.forward)
    usual = _bound(constructor, (None, *problem.get_init_inputs()), {}, defaults=True)
    names = list(call.parameters)[1:]

    class Model(base):  # type: ignore[misc]
        """The original module; `cudal2` says which calls the kernels ran, and why PyTorch ran the others."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            same = _equal(_bound(constructor, (None, *args), kwargs, defaults=True), usual)
            self.cudal2 = ModuleService(kernels, "" if same else "the constructor got other arguments than in the problem file")

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            simple = not kwargs and len(args) <= len(names)
            arguments = dict(zip(names, args, strict=False)) if simple else _bound(call, (self, *args), kwargs)
            with suppress(Fallback):
                return self.cudal2.result(self, arguments)
            return super().forward(*args, **kwargs)

    Model.__qualname__ = base.__qualname__
    return Model


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"cudal2_problem_{abs(hash(path)):x}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise LibraryError(f"{path} is missing; copy the whole folder of the run")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _bound(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], *, defaults: bool = False
) -> dict[str, Any]:
    """Arguments by parameter, without the first, `self`. Raises: TypeError as a call would."""
    found = signature.bind(*args, **kwargs)
    if defaults:
        found.apply_defaults()
    return dict(list(found.arguments.items())[1:])


def _equal(one: Any, other: Any) -> bool:
    """Of values that constructors take."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(type(one) is type(other) and one == other)
