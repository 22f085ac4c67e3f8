"""Which steps of the store a command or an export takes."""

from datetime import datetime

from contract.base import Record


class Selection(Record):
    """Conditions on runs and steps. All that are given hold at once; one of several values is enough. Empty selects all.

    `runs`: run ids. `shapes`: MxNxK. `chips`: names as in `Chip.name`. `outcomes`: values of `Evaluation.status`.
    `environments`: values of `Environment.key`. `cutlass`: releases that the runs could retrieve from.
    `min_speedup`, `max_speedup`: over cuBLASLt-AutoTuning, inclusive; steps without a measured time have none.
    `since`, `until`: when the run started; the first inclusive, the second exclusive.
    """

    runs: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    cutlass: tuple[str, ...] = ()
    min_speedup: float | None = None
    max_speedup: float | None = None
    since: datetime | None = None
    until: datetime | None = None
