"""What a published file changes in this process: switches of torch, and functions that it replaces."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of

_SWITCHES = {
    "torch.backends.cuda.matmul.allow_tf32": (torch.backends.cuda.matmul, "allow_tf32"),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        torch.backends.cuda.matmul,
        "allow_fp16_reduced_precision_reduction",
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        torch.backends.cuda.matmul,
        "allow_bf16_reduced_precision_reduction",
    ),
    "torch.backends.cudnn.allow_tf32": (torch.backends.cudnn, "allow_tf32"),
    "torch.backends.cudnn.benchmark": (torch.backends.cudnn, "benchmark"),
    "torch.backends.cudnn.deterministic": (torch.backends.cudnn, "deterministic"),
    "torch.backends.cudnn.enabled": (torch.backends.cudnn, "enabled"),
}
# What is called to compute, to compare and to measure.
_WATCHED = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.nn.Module": torch.nn.Module,
    "torch.cuda": torch.cuda,
    "torch.cuda.Event": torch.cuda.Event,
    "time": time,
}


def _read() -> dict[str, Any]:
    return {name: getattr(owner, attribute) for name, (owner, attribute) in _SWITCHES.items()}


def _write(values: dict[str, Any]) -> None:
    for name, value in values.items():
        owner, attribute = _SWITCHES[name]
        if getattr(owner, attribute) != value:
            setattr(owner, attribute, value)


class Switches:
    """The switches as they were, and as the file leaves them. Its calls run under its own, everything else under the former.

    A file that changes none runs under the task's arithmetic, as the baselines do.
    """

    def __init__(self, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic
        self._usual = _read()
        self._own: dict[str, Any] = {}

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Run code of the file; what it changes is its own from now on."""
        try:
            with arithmetic_of(self._arithmetic):
                _write(self._own)
                before = _read()
                try:
                    yield
                finally:
                    self._own |= {name: value for name, value in _read().items() if value != before[name]}
        finally:
            _write(self._usual)

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Run a call of the file that was learned."""
        with arithmetic_of(self._arithmetic):
            if not self._own:
                yield
                return
            before = {name: value for name, value in _read().items() if name in self._own}
            _write(self._own)
            try:
                yield
            finally:
                _write(before)

    def findings(self) -> list[str]:
        return [f"it sets {name} = {value}" for name, value in sorted(self._own.items())]


def _callables() -> dict[str, Any]:
    return {
        f"{place}.{name}": value
        for place, owner in _WATCHED.items()
        for name, value in list(vars(owner).items())
        if callable(value) and (not name.startswith("_") or name == "__call__")
    }


class Replaced:
    """Tells which of torch's functions were replaced by code that is not torch's since this was made."""

    def __init__(self) -> None:
        self._before = _callables()

    def findings(self, model: torch.nn.Module) -> list[str]:
        now = _callables()
        names = [name for name, value in self._before.items() if now.get(name) is not value and not _of_torch(now.get(name))]
        found = [f"it replaces {name}" for name in sorted(names)]
        if type(model).__call__ is not self._before["torch.nn.Module.__call__"]:
            found.append("it replaces __call__ of its module, so that forward may not run")
        if model._forward_hooks or model._forward_pre_hooks:
            found.append("its module has forward hooks")
        return found


def _of_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", "") or "").partition(".")[0] == "torch"
