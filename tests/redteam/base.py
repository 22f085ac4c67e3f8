"""Honest kernels with slots: an attack or an unusual kernel fills some of the slots."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "bases"
_SLOT = re.compile(r"^[ \t]*/\*\{(?P<line>\w+)\}\*/[ \t]*\n|/\*\{(?P<inline>\w+)\}\*/", re.MULTILINE)
_DEFAULT = re.compile(r"/\*\{(\w+):\}\*/(.*?)/\*\{:\}\*/", re.DOTALL)

OPERANDS: tuple[dict[str, Any], ...] = ({"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"})
SIZES: tuple[dict[str, Any], ...] = ({"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"})
WORKSPACE: dict[str, Any] = {"workspace": 0}


@dataclass(frozen=True)
class Base:
    """A kernel whose source has slots: `/*{name}*/` is empty unless filled, `/*{name:}*/text/*{:}*/` holds its text.

    `launch`: of its kernel, without arguments. `fields`: of its plan, without launches. `maps`: arguments behind the sizes.
    """

    name: str
    launch: Mapping[str, Any]
    fields: Mapping[str, Any]
    maps: tuple[Mapping[str, Any], ...] = ()

    def write(
        self,
        *,
        slots: Mapping[str, str] | None = None,
        args: Sequence[Mapping[str, Any]] = (),
        launch: Mapping[str, Any] | None = None,
        before: Sequence[Mapping[str, Any]] = (),
        after: Sequence[Mapping[str, Any]] = (),
        fields: Mapping[str, Any] | None = None,
    ) -> str:
        """The source with its plan. `args`: more of the kernel's; `before`, `after`: launches around it.

        Raises: KeyError for a slot that the kernel does not have.
        """
        main = {**self.launch, "args": [*OPERANDS, *SIZES, *self.maps, *args], **(launch or {})}
        plan = {**self.fields, "launches": [*before, main, *after], **(fields or {})}
        return f"// cudal2: {json.dumps(plan)}\n{self._filled(slots or {})}"

    def _filled(self, slots: Mapping[str, str]) -> str:
        text = (FOLDER / f"{self.name}.cu").read_text()
        left = dict(slots)

        def fill(match: re.Match[str]) -> str:
            return left.pop(match[1], match[2])

        def fill_empty(match: re.Match[str]) -> str:
            return left.pop(match["line"] or match["inline"], "")

        text = _SLOT.sub(fill_empty, _DEFAULT.sub(fill, text))
        if left:
            raise KeyError(f"{self.name} has no slots {sorted(left)}")
        return text


# Tensor cores, tiles of 128 x 128; M and N are multiples of 128, K of 32.
TILED = Base(
    "tiled",
    {"entry": "gemm", "grid": ["N/128", "M/128", 1], "block": [256, 1, 1]},
    {"arch": "sm_80", "requires": ["M%128==0", "N%128==0", "K%32==0"]},
)
# A thread for each output, any shape.
PLAIN = Base("plain", {"entry": "gemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [256, 1, 1]}, {"arch": "sm_80"})
# TMA, boxes of 16 x 16, a thread for each output; K and N are multiples of 8.
_BOX = {"box": [16, 16], "l2": 0}
MAPPED = Base(
    "mapped",
    {"entry": "gemm", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [256, 1, 1]},
    {"arch": "sm_90a", "requires": ["K%8==0", "N%8==0"]},
    ({"tensor_map": {"of": "A", **_BOX}}, {"tensor_map": {"of": "B", **_BOX}}),
)
# cp.async in three stages of 32 of K, a thread for each output of a tile of 16 x 16.
STAGED = Base(
    "staged",
    {"entry": "gemm", "grid": ["N/16", "M/16", 1], "block": [256, 1, 1]},
    {"arch": "sm_80", "requires": ["M%16==0", "N%16==0", "K%32==0"]},
)
