"""Random changes to tables of operations, after the lowering: the core must refuse them or stay within its memory."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2_agent.sandbox.emulator.lowering import program
from cudal2_agent.sandbox.emulator.lowering.table import OPERATION

_SLOTS = ("guard", "d", "a", "b", "c", "e", "members")
_NUMBERS = ("list", "count", "p", "q", "r", "s", "instruction")
_VALUES = (0, 1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 100, 128, 255, 256, 1000, 1024, 4096, 2**16, 2**20, 2**31, 2**32 - 1)
_HANDLERS = 700  # a few more than there are
_MOST_CHANGES = 5


class Changing:
    """Within this context, lowered programs get a changed table."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __enter__(self) -> None:
        self._core = program.core
        program.core = _ChangedCore(self._core, lambda fields: change(fields, self._rng))

    def __exit__(self, *_: object) -> None:
        program.core = self._core


def change(fields: dict[str, Any], rng: random.Random) -> None:
    """Change one or a few fields of a program."""
    table = _Table(fields["table"].view(OPERATION).copy(), fields, rng)
    fields["lists"] = fields["lists"].copy()
    for _ in range(rng.randint(1, _MOST_CHANGES)):
        table.change()
    fields["table"] = table.rows.view(np.uint8).reshape(-1)


class _ChangedCore:
    """The core with a `Program` whose arguments are changed first."""

    def __init__(self, core: Any, change: Callable[[dict[str, Any]], None]) -> None:
        self._core, self._change = core, change
        self.Program = self

    def make(self, **fields: Any) -> Any:
        self._change(fields)
        return self._core.Program.make(**fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


@dataclass(frozen=True)
class _Table:
    """A table under mutation, and the other parts of its program."""

    rows: Any
    fields: dict[str, Any]
    rng: random.Random

    def change(self) -> None:
        self.rng.choice((self._cell, self._cell, self._cell, self._mix, self._jump, self._list, self._resize))()

    def _cell(self) -> None:
        rng, rows, at = self.rng, self.rows, self.rng.randrange(len(self.rows))
        name = rng.choice(("handler", "kind", "flags", *_SLOTS, *_NUMBERS, *_NUMBERS))
        if name == "handler":
            rows[name][at] = rng.choice((rng.randrange(_HANDLERS), int(rng.choice(rows[name]))))
        elif name in ("kind", "flags"):
            rows[name][at] = rng.randrange(8)
        elif name in _SLOTS and rng.random() < 0.8:
            rows[name][at] = rng.choice((0, int(rows[rng.choice(_SLOTS)][rng.randrange(len(rows))])))
        else:
            rows[name][at] = rng.choice(_VALUES)

    def _mix(self) -> None:
        """Copy some fields of one operation into another."""
        at, other = self.rng.randrange(len(self.rows)), self.rng.randrange(len(self.rows))
        for name in self.rng.sample(OPERATION.names, self.rng.randint(1, len(OPERATION.names))):
            self.rows[name][at] = self.rows[name][other]

    def _jump(self) -> None:
        count = len(self.rows)
        self.rows["imm"][self.rng.randrange(count)] = self.rng.choice((*_VALUES, count, count - 1, -1, -(2**63), 2**63 - 1))

    def _list(self) -> None:
        lists, rng = self.fields["lists"], self.rng
        slots = (0, 32, int(rng.choice(lists)), self.fields["register_bytes"], rng.choice(_VALUES))
        lists[rng.randrange(len(lists))] = rng.choice(slots)

    def _resize(self) -> None:
        name = self.rng.choice(("register_bytes", "static_smem_end", "local_bytes"))
        old = self.fields[name]
        self.fields[name] = self.rng.choice((0, 16, 1024, old // 2, max(old - 32, 0), old + 32, 2**20, 2**31))
