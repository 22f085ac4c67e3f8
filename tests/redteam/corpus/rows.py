"""Makes cases from rows; names of the layers that rows share."""

from typing import Any

from tests.redteam.base import PLAIN, TILED, Base
from tests.redteam.case import NO_GAIN, Case, Layers, task

# ---- layers of the emulator -------------------------------------------------------------------------------------------------
OLD_CONTENTS: Layers = ("wrong:emulator/*", "wrong:guards/*", "wrong:freshness/*")
OUT_OF_BOUNDS: Layers = ("wrong:emulator/global-out-of-bounds",)
WRITES_INPUT: Layers = ("wrong:emulator/input-written", "wrong:emulator/global-race")
# ---- layers of a GPU --------------------------------------------------------------------------------------------------------
WHILE_TIMED: Layers = ("wrong:while-timed/*", "wrong:freshness/*", "wrong:guards/*")
# Verification may see first what timing would: its addresses, its data and its waits have the same distribution.
UNSTABLE: Layers = ("wrong:repeatability/*", "wrong:exact/*", "wrong:special/*", "wrong:programmatic/*")
FAULT: Layers = ("crashed", "wrong:guards/*")
# ---- layers before execution ------------------------------------------------------------------------------------------------
STATE: Layers = ("rejected:device-state", "rejected:asm-*", "rejected:ptx-*", "rejected:device-*", "compile_failed")
WRONG_RESULT: Layers = ("wrong:exact/*", "wrong:accuracy/*", "wrong:special/*", "wrong:freshness/*")

SHAPE = "2048x2048x2048"
SMALL = "128x128x64"


def tiled(
    name: str,
    group: str,
    why: str,
    *,
    gpu: Layers = (*WHILE_TIMED, *UNSTABLE, NO_GAIN),
    emulator: Layers = (),
    shape: str = SHAPE,
    small: str = SMALL,
    of: dict[str, Any] | None = None,
    flags: tuple[str, ...] = (),
    honest: bool = False,
    gain: str = "",
    **written: Any,
) -> Case:
    """A case based on the tiled tensor-core kernel, with its time compared to that kernel's. `of`: fields of its task."""
    fields = of or {}
    return Case(
        name=name,
        group=group,
        source=TILED.write(**written),
        task=task(shape, **fields),
        small=task(small, **fields),
        why=why,
        honest=honest,
        gpu=gpu,
        emulator=emulator,
        base=TILED.write(),
        flags=flags,
        gain=gain,
    )


def plain(
    name: str,
    group: str,
    why: str,
    *,
    layers: Layers = (),
    gpu: Layers | None = None,
    emulator: Layers | None = None,
    shape: str = "96x80x128",
    small: str = "40x24x48",
    of: dict[str, Any] | None = None,
    flags: tuple[str, ...] = (),
    honest: bool = False,
    hangs: bool = False,
    gain: str = "",
    missed: float = 0.0,
    base: Base = PLAIN,
    **written: Any,
) -> Case:
    """A case based on a kernel of one thread per output; its time does not matter. `layers`: those of both backends."""
    fields = of or {}
    return Case(
        name=name,
        group=group,
        source=base.write(**written),
        task=task(shape, **fields),
        small=task(small, **fields),
        why=why,
        honest=honest,
        gpu=layers if gpu is None else gpu,
        emulator=layers if emulator is None else emulator,
        flags=flags,
        hangs=hangs,
        gain=gain,
        missed=missed,
    )
