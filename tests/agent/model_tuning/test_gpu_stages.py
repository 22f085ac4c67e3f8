"""The child that works on the GPU: here there is none, which it says; and what its parent makes of its end."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.model_tuning import gpu_stages
from cudal2_agent.agent.model_tuning.gpu_stages import GpuStages, RefusedModel, TimePass
from cudal2_agent.contract.errors import DeviceUnavailable, UsageError, WorkerError
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.processes.child import ChildLost, ParentLine

TASKS = tuple(GemmTask(m=16, n=16 * n, k=64) for n in (1, 2, 3))
PASS = TimePass(Path("model.py"), (), None, False, Path("library.jsonl.gz"), "0" * 64, ("eager",))


def scripted(line: ParentLine) -> None:
    """A child that answers products by their shape, ends at the second one, and refuses a pass."""
    for request in line:
        if isinstance(request, TimePass):
            if request.training:
                os._exit(9)
            line.send(RefusedModel("model.py: it does not run"))
            continue
        for task in request.tasks:
            if task.n == 32:
                os._exit(7)
            line.send(task.shape)
        line.send(None)


def serving_a_broken_gpu(line: ParentLine) -> None:
    def broken(_: object) -> Iterator[object]:
        raise RuntimeError("an illegal\nmemory access")
        yield

    gpu_stages._answers = broken  # type: ignore[assignment]
    _SERVE(line)


_SERVE = gpu_stages.serve


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuStages]:
    monkeypatch.setattr(gpu_stages, "serve", scripted)
    with GpuStages() as found:
        yield found


def test_rows_come_until_the_process_ends_and_another_one_goes_on(stages: GpuStages) -> None:
    rows: Iterator[Any] = stages.tuned(TASKS)
    assert next(rows) == "16x16x64"
    with pytest.raises(ChildLost, match="exit code 7"):
        next(rows)
    later: list[Any] = list(stages.tuned(TASKS[2:]))
    assert later == ["16x48x64"]


def test_an_error_that_is_not_ours_ends_the_process_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_stages, "serve", serving_a_broken_gpu)
    with GpuStages() as stages, pytest.raises(ChildLost, match="RuntimeError: an illegal memory access"):
        list(stages.tuned(TASKS))


def test_a_refused_model_and_a_lost_process_are_told_apart(stages: GpuStages) -> None:
    with pytest.raises(UsageError, match="it does not run"):
        list(stages.timed(PASS))
    with pytest.raises(WorkerError, match="the process that ran the model ended: exit code 9"):
        list(stages.timed(PASS._replace(training=True)))
    with pytest.raises(UsageError, match="it does not run"):
        list(stages.timed(PASS))


def test_without_a_gpu_it_is_one_line() -> None:
    with (
        GpuStages() as stages,
        pytest.raises(DeviceUnavailable, match="the GPU cannot be used: measuring products needs a GPU"),
    ):
        stages.identity()
