"""A published file as a Python module, and its instances with the weights that the problem's own model has."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.modules.tracing.problem import init_arguments, load, plain_name

FILE = "published_module.py"
_HALF = {Arithmetic.F16: torch.float16, Arithmetic.BF16: torch.bfloat16}
_LISTED = 3  # names in a line


@dataclass(frozen=True)
class Instance:
    """A `ModelNew` on the GPU. `weights`: the reference's parameters and states, by the names of the task's buffers.

    `loaded`, `absent`: the state-dict names that were copied into it, and those of which it has no equal tensor.
    """

    model: torch.nn.Module
    weights: Mapping[str, torch.Tensor]
    loaded: tuple[str, ...]
    absent: tuple[str, ...]

    def describe(self) -> str:
        if not self.weights:
            return "the problem has none"
        if self.absent:
            return f"not the reference's: no tensor of the module equals {_listed(self.absent)}"
        return f"the same seed; {_listed(self.loaded)} copied by name" if self.loaded else "the same seed"


class Published:
    """A published file and its problem. Both run in this process. Raises: UsageError; whatever the file raises."""

    def __init__(self, text: str, task: ModuleTask, folder: Path) -> None:
        self._task = task
        self.problem = load(task.problem, task.dims)
        self.module = _imported(text, folder)
        self.model_new: type[torch.nn.Module] = getattr(self.module, "ModelNew", None) or _missing()
        self.inputs = _arguments(self.problem)

    def build(self, seed: int, place: torch.device) -> Instance:
        """An instance whose weights are those of the problem's model from the same seed, as KernelBench builds both."""
        reference = self._built(self.problem.Model, seed)
        model = self._built(self.model_new, seed)
        wanted = self._weights(reference)
        loaded, absent = match(dict(wanted.values()), model)
        weights = {buffer: value.to(place) for buffer, (_, value) in wanted.items()}
        return Instance(model.to(place), weights, loaded, absent)

    def built_with(self, weights: Mapping[str, torch.Tensor], seed: int, place: torch.device) -> torch.nn.Module | None:
        """An instance whose state dict was loaded with other weights; None where a name of theirs is not in it."""
        named = self._weights(self._built(self.problem.Model, seed))
        model = self._built(self.model_new, seed).to(place)
        own = _tensors(model)
        if any(name not in own or own[name].shape != value.shape for name, value in named.values()):
            return None
        with torch.no_grad():
            for buffer, (name, _) in named.items():
                own[name].copy_(weights[buffer])
        return model

    def _built(self, kind: type[torch.nn.Module], seed: int) -> torch.nn.Module:
        arguments, named = init_arguments(self.problem)
        torch.manual_seed(seed)
        model = kind(*arguments, **named)
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"{kind.__name__} is no torch.nn.Module")
        half = _HALF.get(self._task.arithmetic)
        return (model.to(half) if half else model).train(self._task.training).requires_grad_(False)

    def _weights(self, reference: torch.nn.Module) -> dict[str, tuple[str, torch.Tensor]]:
        """By buffer of the task: the state-dict name and the value. Raises: UsageError for one that is not found."""
        tensors = {plain_name(name): (name, value.detach()) for name, value in _tensors(reference).items()}
        found = {}
        for buffer in self._task.buffers:
            if buffer.role not in (Role.PARAMETER, Role.STATE):
                continue
            plain = buffer.name if buffer.name in tensors else buffer.name.rstrip("_").removeprefix("p_")
            if plain not in tensors:
                raise UsageError(f"the problem's model has no tensor for {buffer.name}")
            name, value = tensors[plain]
            found[buffer.name] = name, value.reshape(buffer.shape)
        return found


def match(wanted: Mapping[str, torch.Tensor], model: torch.nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy what has the same name and shape and differs. Returns the names copied, and those without an equal tensor."""
    own, loaded, absent = _tensors(model), [], []
    for name, value in wanted.items():
        mine = own.get(name)
        if mine is not None and mine.shape == value.shape:
            if not torch.equal(mine.detach().cpu(), value.to(mine.dtype)):
                mine.data.copy_(value)
                loaded.append(name)
        elif not any(_same(each, value) for each in own.values()):
            absent.append(name)
    return tuple(loaded), tuple(absent)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numel() == other.numel() and bool(torch.equal(one.detach().cpu().reshape(-1), other.reshape(-1).to(one.dtype)))


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers, and tensors that are plain attributes, as tracing takes them."""
    found: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for prefix, part in model.named_modules():
        plain = {name: value for name, value in vars(part).items() if isinstance(value, torch.Tensor)}
        found |= {f"{prefix}.{name}".lstrip("."): value for name, value in plain.items()}
    return found


def _arguments(problem: ModuleType) -> list[Any]:
    """What `get_inputs` gives, its tensors without values where that works."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            found = problem.get_inputs()
    except Exception:  # noqa: BLE001 (a file that needs values runs on values)
        found = problem.get_inputs()
    return list(found)


def with_tensors(arguments: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The arguments with other tensors in the places of theirs, in order."""
    leaves, form = pytree.tree_flatten(list(arguments))
    left = iter(tensors)
    filled = pytree.tree_unflatten([next(left) if isinstance(each, torch.Tensor) else each for each in leaves], form)
    return list(filled)


def _imported(text: str, folder: Path) -> ModuleType:
    """From a file, because Triton and torch.jit read the text of functions."""
    path = folder / FILE
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = found
    spec.loader.exec_module(found)
    return found


def _missing() -> type[torch.nn.Module]:
    raise UsageError("the file defines no ModelNew; KernelBench's answers are a class of that name")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
