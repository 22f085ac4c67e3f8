"""What predicts the time of a single launch: the same schedules of the same shapes, measured in both timing modes.

Run from the repository's root, with a store that holds the steps of both modes:
    cudal2-agent trajectories import benchmarks/campaigns/steps/*.sweep.zst
    python -m benchmarks.speed.server_pairs
Prints JSON. Shapes of `held_out.json` are left out, and so are times of more than 40 us, where the chip's power limit counts.
`fit`: server time less offline time of planned launches, least squares: a constant, a share of the time to read A and B once,
and a cluster.
`order`: how often two schedules of a shape have the same order as in server mode, over all pairs of schedules that differ by
more than 1 % there: by offline time (`offline`), by that and the fit (`corrected`, of which only the cluster's part differs
within a shape) and by the analytic prior (`prior`). `raced`: the same for schedules that offline races timed in both ways,
also by the time of plain launches (`plain`).
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.harness import execute, script
from benchmarks.proposals.prior import entry_of
from benchmarks.speed.grid import held_out
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.reward.roofline import transfer_us
from cudal2_agent.contract.reward.speedup import median_us
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry, Values, schedule_key
from cudal2_agent.policies.schedule.prior import predict_us
from cudal2_agent.store.store import Store, open_store

MAX_US = 40.0
TIE = 0.01


@dataclass(frozen=True)
class PairedSchedule:
    """One schedule of one shape in both modes. Unit: microseconds.

    `plain_us`: offline without programmatic launch; None where it was not measured.
    """

    shape: str
    entry: PoolEntry
    offline_us: float
    plain_us: float | None
    server_us: float
    read_us: float
    predicted_us: float

    @property
    def added_us(self) -> float:
        return self.server_us - self.offline_us

    @property
    def clustered(self) -> bool:
        return self.entry.work.cluster > 1


def paired_schedules(store: Store) -> Iterator[PairedSchedule]:
    """Those of a race count where there are some, else those that were screened."""
    found: dict[Any, dict[TimingMode, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    tasks: dict[Any, tuple[Any, Any, Values]] = {}
    left_out = held_out()
    for trajectory in store.trajectories():
        run = trajectory.run
        if run.task.shape in left_out:
            continue
        for step in trajectory.steps:
            values = step.candidate.origin.schedule
            if values and isinstance(step.evaluation, Measured):
                key = run.task.model_copy(update={"mode": TimingMode.SERVER}), schedule_key(values)
                found[key][run.task.mode].append(step.evaluation)
                tasks[key] = run.task.model_copy(update={"mode": TimingMode.SERVER}), run.chip, dict(values)
    for key, modes in found.items():
        task, chip, values = tasks[key]
        entry = entry_of(values, task, chip) if len(modes) == 2 else None
        offline, server = (_deciding(modes[mode]) for mode in TimingMode)
        if entry is None or max(_time_us(offline), _time_us(server)) > MAX_US:
            continue
        plain = [one.plain for one in offline if one.plain]
        read_us = transfer_us(2 * task.k * (task.m + task.n), chip)
        yield PairedSchedule(
            shape=task.shape,
            entry=entry,
            offline_us=_time_us(offline),
            plain_us=statistics.median(median_us(one) for one in plain) if plain else None,
            server_us=_time_us(server),
            read_us=read_us,
            predicted_us=predict_us(entry.work, task, chip),
        )


def _deciding(measured: Sequence[Measured]) -> Sequence[Measured]:
    return [one for one in measured if one.effort in ("race", "full")] or measured


def _time_us(measured: Sequence[Measured]) -> float:
    return statistics.median(one.time_us for one in measured) if measured else 0.0


def fit(pairs: Sequence[PairedSchedule]) -> dict[str, float]:
    columns = np.array([[1.0, one.read_us, float(one.clustered)] for one in pairs])
    added = np.array([one.added_us for one in pairs])
    found = np.linalg.lstsq(columns, added, rcond=None)[0]
    explained = 1 - float((added - columns @ found).var() / added.var())
    return {"constant_us": found[0], "read_share": found[1], "cluster_us": found[2], "explained": explained}


def fitted_us(one: PairedSchedule, found: dict[str, float]) -> float:
    """Server time by the offline time and the fit."""
    added = found["constant_us"] + found["read_share"] * one.read_us + found["cluster_us"] * one.clustered
    return one.offline_us + added


def same_order(pairs: Sequence[PairedSchedule], value: Callable[[PairedSchedule], float]) -> dict[str, float]:
    """The share of pairs within a shape that a value puts in the order of the server times."""
    by_shape: dict[str, list[PairedSchedule]] = defaultdict(list)
    for one in pairs:
        by_shape[one.shape].append(one)
    agreed = [
        (value(one) - value(other)) * (one.server_us - other.server_us) > 0
        for own in by_shape.values()
        for one, other in combinations(own, 2)
        if abs(np.log(one.server_us / other.server_us)) > TIE
    ]
    return {"pairs": float(len(agreed)), "same": round(float(np.mean(agreed)), 3) if agreed else float("nan")}


def figures(pairs: Sequence[PairedSchedule]) -> dict[str, Any]:
    found = fit(pairs)
    raced = [one for one in pairs if one.plain_us]
    return {
        "schedules": len(pairs),
        "shapes": len({one.shape for one in pairs}),
        "fit": {name: round(float(value), 3) for name, value in found.items()},
        "order": {
            "offline": same_order(pairs, lambda one: one.offline_us),
            "corrected": same_order(pairs, lambda one: fitted_us(one, found)),
            "prior": same_order(pairs, lambda one: one.predicted_us),
        },
        "raced": {
            "offline": same_order(raced, lambda one: one.offline_us),
            "plain": same_order(raced, lambda one: one.plain_us or 0.0),
            "prior": same_order(raced, lambda one: one.predicted_us),
        },
    }


def main() -> None:
    script(__file__, __doc__).parse_args()
    with open_store(load_settings().store_url) as store:
        print(json.dumps(figures(list(paired_schedules(store))), indent=1))


if __name__ == "__main__":
    execute(main)
