"""Schedules of a task on a chip as numbers, in columns that never change their order.

A column is a size of the task, a rate of the chip, a quantity of the analytic prior, or an axis of a family. Sizes and times
are logarithms to base 2. `FINGERPRINT` names the columns: weights are for one fingerprint only.

No shipped prior has learned from a gated task. It has the features of the product that it loads and multiplies, M×2N×K.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

import numpy as np

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout, TimingMode
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.prior import Columns, Floats, parts_us, rates_us, total_us

# Axes that are newer than the shipped weights: these expect the same time of each of their values.
_NEWER = {
    ("wgmma_tma", "constant_shape"),
    ("wgmma_tma", "self_fed"),
    ("wgmma_tma", "paired_rows"),
    ("mma_sync", "spread_sum"),
}
# One column per value of a choice, one for the number of any other axis.
_AXES = tuple(
    (family.name, axis, choices)
    for family in families(Arch.SM_90A)
    for axis, field in family.schedule.model_fields.items()
    if axis != "family" and (family.name, axis) not in _NEWER
    for choices in [get_args(field.annotation) if get_origin(field.annotation) is Literal else None]
)
_FAMILIES = tuple(family.name for family in families(Arch.SM_90A))
_SIZES = ("m", "n", "k", "stages", "cluster", "k_blocks", "loaded_bytes", "reduced_bytes", "lines", "read_bytes")
_COUNTS = (*_SIZES, "staged_bytes", "exchanged_bytes", "store_lines", "tiles", "parts", "units", "rounds", "stored")
_TURNS = ("resident", "turns")
_FLAGS = ("persistent", "programmatic", "alternating", "spread_sums", "pushed", "scattered", "efficiency")
_TIMES = ("step_us", "overlapped_us")


def features_of(entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> tuple[Floats, Floats]:
    """The features of entries and the prior's logarithm of their times. Shape: (entries, len(NAMES)), (entries,)."""
    work = Columns([entry.work for entry in entries], task, chip)
    total = np.log2(total_us(work, task, chip))
    named = {**_of_task(task, chip), **_of_work(work, task, chip), "prior": total}
    table = np.zeros((len(entries), len(NAMES)))
    for name, values in named.items():
        table[:, _PLACE[name]] = values
    for row, entry in zip(table, entries, strict=True):
        row[_PLACE[entry.family.name]] = 1.0
        for axis, value in entry.values.items():
            place = _PLACE.get(f"{entry.family.name}.{axis}={value}")
            if place is not None:
                row[place] = 1.0
            elif (place := _PLACE.get(f"{entry.family.name}.{axis}")) is not None:
                row[place] = np.log2(1.0 + float(value))
    return table, total * np.log(2.0)


def _of_task(task: GemmTask, chip: Chip) -> dict[str, Any]:
    sizes = {f"task.{name}": np.log2(size) for name, size in (("m", task.m), ("n", task.products * task.n), ("k", task.k))}
    kinds = {f"task.{layout.value}": float(task.layout is layout) for layout in Layout}
    kinds["task.f16_sums"] = float(task.accumulate is AccumulatorType.F16)
    kinds["task.bf16"] = float(task.element is ElementType.BF16)
    kinds["task.server"] = float(task.mode is TimingMode.SERVER)
    rates = {"sms": chip.sms, "l2_bytes": chip.l2_bytes, "tensor": chip.tensor_tflops, "dram": chip.dram_tbps}
    return {**sizes, **kinds, **{f"chip.{name}": np.log2(rate) for name, rate in rates.items()}, "chip.launch": chip.launch_us}


def _of_work(work: Columns, task: GemmTask, chip: Chip) -> dict[str, Any]:
    counts = {name: np.log2(1.0 + getattr(work, name)) for name in (*_COUNTS, *_TURNS)}
    flags = {name: getattr(work, name) for name in (*_FLAGS, *_TIMES)}
    spent_us = {**rates_us(work, task, chip), **parts_us(work, task, chip)}
    times = {f"us.{name}": np.log2(0.01 + np.maximum(us, 0.0)) for name, us in spent_us.items()}
    return {**counts, **flags, **times, **_of_waves(work, task)}


def _of_waves(work: Columns, task: GemmTask) -> dict[str, Any]:
    """How full the last wave is, and what hangs over the edges of D and K."""
    waves, n = work.units / (work.sms * work.resident), task.products * task.n
    return {
        "waves": np.log2(waves),
        "wave_use": waves / np.ceil(waves),
        "edge_m": np.log2(np.ceil(task.m / work.m) * work.m / task.m),
        "edge_n": np.log2(np.ceil(n / work.n) * work.n / n),
        "edge_k": np.log2(work.parts * work.k_blocks * work.k / task.k),
    }


def _names() -> tuple[str, ...]:
    tasks = [*(f"task.{name}" for name in ("m", "n", "k")), *(f"task.{layout.value}" for layout in Layout)]
    tasks += ["task.f16_sums", "task.bf16", "task.server"]
    chips = [f"chip.{name}" for name in ("sms", "l2_bytes", "tensor", "dram", "launch")]
    times = ["math", "l2", "dram", "latency", "copies", "shared", "launch", "steady", "exposed", "store", "sum"]
    waves = ["waves", "wave_use", "edge_m", "edge_n", "edge_k"]
    axes = [
        name
        for family, axis, choices in _AXES
        for name in ([f"{family}.{axis}={one}" for one in choices] if choices else [f"{family}.{axis}"])
    ]
    return (
        *tasks,
        *chips,
        *_COUNTS,
        *_TURNS,
        *_FLAGS,
        *_TIMES,
        *(f"us.{name}" for name in times),
        *waves,
        "prior",
        *_FAMILIES,
        *axes,
    )


NAMES = _names()
_PLACE = {name: place for place, name in enumerate(NAMES)}
FINGERPRINT = digest(list(NAMES))
