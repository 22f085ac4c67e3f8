"""Runs whose task is a module: stored, exported and listed as those of matrix products, and never taken for one."""

from pathlib import Path

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_task import Task, gemm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.store.filters import ALL_STEPS
from cudal2_agent.store.precedents import StoredPrecedents
from cudal2_agent.store.statistics import run_rows
from cudal2_agent.store.steps import ExportedStep, export_steps, to_line
from cudal2_agent.store.store import open_store
from tests.doubles import CHIP, OBSERVATION, candidate, measured, run_record, step
from tests.doubles.modules import relu_of_sum


def test_a_run_of_a_module_comes_back_as_it_went_in(tmp_path: Path) -> None:
    task = relu_of_sum(name="kernelbench:2/" + "long " * 12)
    seen = OBSERVATION.model_copy(update={"task": task})
    run = run_record("module", task=task, status="finished")
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        store.start_run(run)
        store.record_observation("module", seen)
        store.record_step(step(0, run_id="module", observation_id=seen.id))
        found, [row] = store.trajectory("module"), run_rows(store, ALL_STEPS)
    assert found.run == run
    assert found.run.task == task
    assert found.observations == {seen.id: seen}
    assert row.run_id == "module"
    [line] = map(to_line, export_steps(found))
    assert ExportedStep.model_validate_json(line).task == task


def test_no_search_of_a_product_starts_from_a_module(tmp_path: Path) -> None:
    scheduled = candidate(1).model_copy(
        update={"origin": candidate(1).origin.model_copy(update={"schedule": {"family": "f", "stages": 1}})}
    )
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        for name in ("relu of sum", "512x512x512"):
            store.start_run(run_record(name.replace(" ", "-"), task=relu_of_sum(name=name), status="finished"))
            store.record_observation(name.replace(" ", "-"), OBSERVATION)
            store.record_step(step(0, run_id=name.replace(" ", "-"), candidate=scheduled, evaluation=measured(5.0)))
        assert StoredPrecedents(store).near(GemmTask(m=512, n=512, k=512), CHIP, 5) == []


def test_what_works_on_products_only_says_so() -> None:
    product = GemmTask(m=64, n=64, k=64)
    assert gemm(product, "a library") is product
    with pytest.raises(UsageError, match="a library works on matrix products only, and relu of sum is a module"):
        gemm(relu_of_sum(), "a library")


@pytest.mark.parametrize("task", [GemmTask(m=64, n=64, k=64), relu_of_sum()], ids=["product", "module"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_task_is_read_with_and_without_its_defaults(task: Task, whole: bool) -> None:
    run = run_record(task=task)
    assert RunRecord.model_validate_json(run.model_dump_json(exclude_defaults=not whole)).task == task
