"""A right kernel of the corpus with the faults that are planted in it, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask
from tests.sandbox.building.build_kernels import ORIGIN

SOURCES = Path(__file__).parents[1] / "kernels"
Launch = dict[str, Any]
Size = tuple[int | str, ...]


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in the source, everywhere; `launches`: of the plan instead of the right ones; `scratch`: more."""

    name: str
    old: str = ""
    new: str = ""
    launches: tuple[Launch, ...] | None = None
    scratch: tuple[dict[str, Any], ...] = ()
    edits: tuple[tuple[str, str], ...] = ()  # more of the source


@dataclass(frozen=True)
class Kernel:
    """One right kernel. `source`: in `kernels/`. `plan`: further fields of its plan.

    `sizes`: arguments of tasks that it is right for, the first for its faults too.
    """

    source: str
    task: Callable[..., ModuleTask]
    sizes: tuple[Size, ...]
    launches: tuple[Launch, ...]
    faults: tuple[Fault, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()  # other sources, before its own

    @property
    def kind(self) -> str:
        return self.source.partition("/")[0]

    def candidate(self, fault: Fault | None = None) -> Candidate:
        """The right kernel, or the one with a fault."""
        source = "\n".join((SOURCES / f"{name}.cu").read_text() for name in ("sums", *self.parts, self.source))
        plan = {"arch": "sm_90a", "launches": self.launches, **self.plan}
        if fault is not None:
            for old, new in (*([(fault.old, fault.new)] if fault.old else []), *fault.edits):
                assert old in source, (self.source, fault.name, old)
                source = source.replace(old, new)
            plan["launches"] = fault.launches or self.launches
            plan["scratch"] = (*plan.get("scratch", ()), *fault.scratch)
        return Candidate(source=ROUNDINGS + source, plan=plan_from_json(plan), origin=ORIGIN)


# Numbers with the mantissa of f16 and of tf32, by integers: no instruction shows it, so that only a result can.
ROUNDINGS = """
__device__ float half_of(float x) { return __int_as_float((__float_as_int(x) + 0x1000) & 0xffffe000); }
__device__ float tf32_of(float x) { return __int_as_float(__float_as_int(x) & 0xffffe000); }
"""


def launch(entry: str, grid: Any, block: Any, *args: Any, **fields: Any) -> Launch:
    """Arguments: `name` is read, `name=` is written, `.name` and `1e-5f` are scalars."""
    grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
    block = block if isinstance(block, tuple) else (block, 1, 1)
    return {"entry": entry, "grid": grid, "block": block, "args": [_argument(each) for each in args], **fields}


def _argument(text: Any) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    if text.endswith("="):
        return {"tensor": text[:-1], "access": "write"}
    if text.startswith("."):
        return {"scalar": text[1:]}
    return {"scalar": text[:-1], "type": "f32"} if text[0].isdigit() else {"tensor": text}


def scratch(name: str, *shape: int | str, element: str = "f32") -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "element": element}


# Pieces of sources that faults change.
INDEX, READ = "i < columns; i += blockDim.x)", "  __syncthreads();\n  value = "
RETURN, UNSAFE = "  __syncthreads();\n  return value;\n", "  return value;\n"
UNSYNCHRONISED = Fault("missing-barrier", READ, "  value = ")
