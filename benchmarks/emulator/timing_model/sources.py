"""Kernels by which the timing model is judged: drawn schedules written out, and free sources from files.

A free source is a file with a launch plan, or a reply of a model with one CUDA block. `sources.json` names each with a shape;
a name that begins with `extra/` lies in a folder outside the repository.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.emulator.timing_model.draw import DRAWN, SETS, rows_of, task_of, uncompressed
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.policies.schedule.families.registry import written
from cudal2_agent.store.store import Store

LISTED = SETS / "sources.json"
STORE_SHAPES = SETS / "store_shapes.json"
_EXTRA = "extra/"
_BLOCK = re.compile(r"```(?:cuda|cpp|c\+\+)\n(.*?)```", re.DOTALL)


class TimedKernel(NamedTuple):
    """A kernel to be timed. `name`: its place in the list of schedules, or its file."""

    name: str
    task: GemmTask
    candidate: Candidate


def scheduled(path: Path = DRAWN) -> Iterator[TimedKernel]:
    """The drawn schedules, written out."""
    for number, row in enumerate(rows_of(path)):
        task = task_of(row["shape"])
        yield TimedKernel(str(number), task, written(row["schedule"], task))


def rows_by_name(path: Path) -> dict[str, dict[str, Any]]:
    """Rows as `measure` wrote them, compressed or not."""
    return {row["name"]: row for row in map(json.loads, uncompressed(path).splitlines())}


def free(extra: Path | None, path: Path = LISTED) -> Iterator[TimedKernel]:
    """The listed free sources; those of the folder `extra` only if it is given."""
    for row in json.loads(path.read_text())["sources"]:
        name = row["file"]
        if name.startswith(_EXTRA) and extra is None:
            continue
        file = extra / name.removeprefix(_EXTRA) if name.startswith(_EXTRA) and extra else Path(name)
        task = task_of(row["shape"]).model_copy(update=row.get("task", {}))
        yield TimedKernel(f"{name} {row['shape']}", GemmTask.model_validate(task.model_dump()), _read(file))


def stored(store: Store) -> Iterator[tuple[TimedKernel, dict[str, Any]]]:
    """The offline steps of a store on the shapes of `store_shapes.json`, each with its row as `measure` writes it."""
    shapes = set(json.loads(STORE_SHAPES.read_text())["shapes"])
    known: set[str] = set()
    for run in store.runs():
        if not isinstance(run.task, GemmTask) or run.task.shape not in shapes or run.task.mode is not TimingMode.OFFLINE:
            continue
        for step in store.steps(run.run_id):
            name = f"{step.candidate.id} {run.task.shape}"
            if isinstance(step.evaluation, Measured) and isinstance(step.candidate, Candidate) and name not in known:
                known.add(name)
                row = {"name": name, "shape": run.task.shape, "candidate": step.candidate.id, "status": "measured"}
                gpu = step.evaluation.environment.gpu
                yield TimedKernel(name, run.task, step.candidate), {**row, "time_us": step.evaluation.time_us, "gpu": gpu}


def _read(file: Path) -> Candidate:
    text = file.read_text()
    block = _BLOCK.search(text) if file.suffix == ".md" else None
    return Candidate.from_source(block.group(1) if block else text, Origin(policy="file", note=file.name))
