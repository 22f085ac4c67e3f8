"""This project's kernels: those that won a campaign, written again from the schedules in its rows."""

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.peers.comparing import Bench, Offer
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.cuda.evaluator import load


class OwnPeer:
    """`plain`: the best kernel with plain launches, else the best one."""

    def __init__(self, schedules: dict[str, dict[str, Any]], *, plain: bool = False) -> None:
        self.name = "cudal2-agent, plain" if plain else "cudal2-agent"
        self._schedules = schedules
        self._built: dict[str, Built] = {}  # by task

    def build(self, tasks: Sequence[GemmTask]) -> None:
        """Compile the kernels of all tasks at once."""
        with ThreadPoolExecutor(os.cpu_count() or 2) as compilers:
            built = list(compilers.map(self._build, tasks))
        self._built = {task.id: one for task, one in zip(tasks, built, strict=True) if one is not None}

    def _build(self, task: GemmTask) -> Built | None:
        candidate = written(self._schedules.get(task.shape), task)
        if candidate is None:
            return None
        options = CompileOptions(cache_dir=str(Path(tempfile.gettempdir()) / "peers-cache"), jobs=1)
        ((_, outcome),) = Builder(options, REFERENCE_CHIPS[task.arch]).build([candidate], task)
        return outcome if isinstance(outcome, Built) else None

    def offer(self, bench: Bench) -> Offer:
        task = bench.task
        if task.id not in self._built:
            raise Unavailable("the campaign's rows have no kernel for this shape")
        kernel = load(self._built[task.id], task, bench.device)
        return Offer(contender=kernel, tried=1, detail=self._built[task.id].candidate.label)


def schedules_of(files: Sequence[Path], *, plain: bool = False) -> dict[str, dict[str, Any]]:
    """The winners' schedules by shape, of rows in mode `offline` and layout `nn`."""
    found = {}
    for row in counting(read_results(files)):
        winner = row.best_without if plain else row.best
        if winner is not None and winner.schedule and row.task == _plain_task(row.task.shape):
            found[row.task.shape] = dict(winner.schedule)
    return found


def written(schedule: dict[str, Any] | None, task: GemmTask) -> Candidate | None:
    """The kernel of a schedule; None where there is none, or no family of this version writes it."""
    family = next((one for one in families(task.arch) if schedule and schedule.get("family") == one.name), None)
    if family is None or schedule is None:
        return None
    try:
        return family.write(family.parse(schedule), task)
    except ValueError:
        return None


def _plain_task(shape: str) -> GemmTask:
    m, n, k = (int(size) for size in shape.split("x"))
    return GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A)
