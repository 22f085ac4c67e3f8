"""Who has registered kernels of an operator for a dispatch key: PyTorch, this package, or others.

The kernel that was registered last runs. PyTorch keeps the ones below it, and runs the next when a registration ends.
"""

import re
from pathlib import Path

import torch

_REGISTERED = re.compile(r"(\w+)(?: \(inactive\))?: registered at (.*?) :: ", re.ASCII)
_BUILT_IN = "aten/src/ATen/"  # where PyTorch's build has its own kernels
_OURS = (str(Path(__file__).parent), "aten_kernels.cpp")
_CALLERS = ("matmul", "linear")  # operators that call aten::mm, unless they are replaced themselves


def registered(operator: str, key: str) -> list[str]:
    """Where the kernels of an operator were registered, the one that runs first: `FILE:LINE`."""
    found = map(_REGISTERED.match, torch._C._dispatch_dump(f"aten::{operator}").splitlines())
    return [match[2] for match in found if match is not None and match[1] == key]


def others(operator: str, key: str) -> list[str]:
    """Where others than PyTorch's build and this package registered kernels, the last one first."""
    return [place for place in registered(operator, key) if _BUILT_IN not in place and not is_ours(place)]


def is_ours(place: str) -> bool:
    return place.startswith(_OURS[0]) or _OURS[1] in place


def shadowed(operator: str, key: str) -> str:
    """Where a kernel was registered that runs before this package's; empty where this package's runs, or there is none."""
    places = registered(operator, key)
    return places[0] if any(map(is_ours, places)) and not is_ours(places[0]) else ""


def told_of_others(operators: tuple[str, ...], key: str) -> list[str]:
    """What it means for `enable` that others have replaced kernels, a line for each operator."""
    below = {name: found[0] for name in operators if (found := others(name, key))}
    above = {name: found[0] for name in _CALLERS if (found := others(name, key))}
    return [
        *(
            f"aten::{name} was replaced before, at {place}: that kernel computes what the library does not serve, "
            "and no product that it serves"
            for name, place in below.items()
        ),
        *(f"aten::{name} is replaced at {place}: its products do not ask the library" for name, place in above.items()),
    ]


def told_of_shadows(operators: tuple[str, ...], key: str) -> list[str]:
    """Which kernels of this package do not run any more, a line for each operator."""
    found = {name: shadowed(name, key) for name in operators}
    again = "it runs instead, and nothing asks the library; cudal2.enable() again asks the library first"
    return [f"aten::{name} was replaced again, at {place}: {again}" for name, place in found.items() if place]
