"""The slowest results are explained by counters of the winner and of cuBLASLt's kernel. The sandbox is scripted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign.report.explaining import explain_rows, worst_of
from cudal2_agent.agent.campaign.report.reasons import explanation, reason_of
from cudal2_agent.contract.errors import Cudal2Error, ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Timing
from cudal2_agent.contract.records.profile import Difference, LaunchProfile, Profile
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.campaign_results import StoredResult, read_results
from cudal2_agent.store.store import Store, open_store
from tests.doubles import OBSERVATION, TASK, ScriptedSandbox, measured, run_record, step
from tests.doubles.campaign_rows import shape_result

ALGORITHM = "layout tn, algorithm 66, tile tile_128x128; best of 4 suggestions"


def profiled(entry: str, **metrics: float) -> Profile:
    launch = LaunchProfile(entry=entry, grid=(1, 1, 1), block=(128, 1, 1), metrics={"duration_ns": 5000.0, **metrics})
    return Profile(tool="ncu 2025.3", metric_set="sm_90a", launches=(launch,), seconds=1.0)


class CountingDouble(ScriptedSandbox):
    """Also counts a kernel of cuBLASLt, whose tensor pipe works more."""

    def __init__(self, library_error: Cudal2Error | None = None, **changes: object) -> None:
        super().__init__(**changes)  # type: ignore[arg-type]
        self._library_error = library_error
        self.asked: list[tuple[str, GemmTask]] = []

    def profile(self, built, task):
        super().profile(built, task)
        return profiled("gemm", tensor_pct=61.0, l2_pct=40.0)

    def profile_library(self, detail, task):
        self.asked.append((detail, task))
        if self._library_error is not None:
            raise self._library_error
        return profiled("nvjet_hsh_128x128", tensor_pct=83.0, l2_pct=41.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A campaign with one row, whose winner is step 0 of a run that is there."""
    raced = measured(5.0).model_copy(update={"baselines": (Timing(name=AUTOTUNED, samples_us=(4.5,) * 5, detail=ALGORITHM),)})
    with open_store(f"sqlite:///{tmp_path / 'trajectories.sqlite'}") as made:
        made.start_run(run_record())
        made.record_observation("run-1", OBSERVATION)
        made.record_step(step(0, 3, evaluation=raced))
        queue = CampaignQueue(made, "grid")
        queue.open(RunSettings())
        row = shape_result(TASK.shape, 0.9, run_id="run-1", task=TASK)
        assert row.best is not None
        queue.take_over([row.model_copy(update={"best": row.best.model_copy(update={"step_index": 0})})])
        yield made


def stored(store: Store) -> list[StoredResult]:
    with store.reading() as (connection, _):
        return read_results(connection)


def explained(store: Store, sandbox: CountingDouble) -> tuple[ShapeResult, str]:
    [found] = explain_rows(store, sandbox, stored(store))
    assert store.results() == [found.row]
    return found


def test_counters_of_both_kernels_and_their_difference_are_kept(store: Store) -> None:
    sandbox = CountingDouble()
    row, why_not = explained(store, sandbox)
    assert why_not == ""
    assert row.explained is not None
    assert (row.explained.tool, row.explained.library) == ("ncu 2025.3", "nvjet_hsh_128x128")
    assert row.explained.counters["tensor_pct"] == 61.0
    assert row.explained.library_counters["tensor_pct"] == 83.0
    assert any(one.quantity == "tensor_pct" and (one.before, one.after) == (83.0, 61.0) for one in row.explained.differences)
    assert sandbox.asked == [(ALGORITHM, TASK)]
    [recorded] = store.steps("run-1")
    assert recorded.profile == profiled("gemm", tensor_pct=61.0, l2_pct=40.0)
    assert recorded.diagnosis is not None
    assert recorded.diagnosis.basis == "counters"


def test_an_explained_row_is_not_profiled_again(store: Store) -> None:
    first, _ = explained(store, CountingDouble())
    again = CountingDouble()
    assert explained(store, again) == (first, "")
    assert again.profiled == []


def test_without_the_librarys_kernel_the_winner_is_explained_alone(store: Store) -> None:
    row, why_not = explained(store, CountingDouble(library_error=ProfileFailed("it is not suggested here")))
    assert why_not == ""
    assert row.explained is not None
    assert row.explained.library == "cuBLASLt's kernel could not be profiled: it is not suggested here"
    assert row.explained.library_counters == {}
    assert "tensor pipe 61 %, L2 40 %." in reason_of(row)


def test_a_winner_that_cannot_be_profiled_is_named_and_the_row_stays(store: Store) -> None:
    row, why_not = explained(store, CountingDouble(profile_error=ProfileFailed("it hangs")))
    assert (row.explained, why_not) == (None, "it hangs")
    row, why_not = explained(store, CountingDouble(failures=[3]))
    assert (row.explained, why_not) == (
        None,
        "the kernel could not be built again: compile failed: line 1: error in 3 for 256x256x256",
    )


def test_a_winner_without_steps_says_what_to_import(store: Store) -> None:
    [one] = stored(store)
    lost = one._replace(result=one.result.model_copy(update={"run_id": "run-2"}))
    [(row, why_not)] = explain_rows(store, CountingDouble(), [lost])
    assert row.explained is None
    assert why_not == "the steps of run run-2 are not in this store; add them with `cudal2-agent trajectories import`"


def test_nothing_is_tried_where_nothing_can_be_profiled(store: Store) -> None:
    with pytest.raises(ProfilerUnavailable, match="no GPU here"):
        list(explain_rows(store, CountingDouble(emulates=True), stored(store)))
    with pytest.raises(ProfilerUnavailable, match="ncu was not found"):
        list(explain_rows(store, CountingDouble(profile_error=ProfilerUnavailable("ncu was not found")), stored(store)))


def test_the_slowest_of_each_mode_and_layout() -> None:
    ratios = {"64x64x64": 0.9, "64x64x128": 0.8, "64x64x256": 1.2}
    rows = [shape_result(shape, ratio) for shape, ratio in ratios.items()]
    rows += [shape_result("64x64x64", 1.5, layout=Layout.NT), shape_result("64x64x512", 0.5, best=None)]
    chosen = worst_of([StoredResult(key, "grid", row) for key, row in enumerate(rows)], 2)
    assert [one.key for one in chosen] == [0, 1, 3]


def test_a_reason_tells_findings_and_what_cublaslt_does_otherwise() -> None:
    findings = tuple(Finding(bottleneck=one, evidence="seen", remedy="", weight=0.2) for one in ("smem-bound", "spills"))
    told = explanation(
        profiled("gemm", tensor_pct=61.4, registers=168.0),
        Diagnosis(basis="counters", findings=findings),
        library=profiled("nvjet", tensor_pct=83.0),
        differences=[
            Difference(quantity=quantity, before=83, after=61, unit="%", meaning=f"the {quantity} differs")
            for quantity in ("duration_ns", "tensor_pct")
        ],
    )
    reason = reason_of(shape_result("8192x8192x8192", 0.95, 1500.0, explained=told))
    assert reason.startswith("tensor arithmetic: ")
    assert reason.endswith(
        "Nsight Compute (cuBLASLt): tensor pipe 61 % (83). smem-bound: seen. spills: seen. "
        "Compared with cuBLASLt: the tensor_pct differs."
    )
    assert told.counters["registers"] == 168.0


def test_a_row_without_a_kernel_says_why() -> None:
    assert reason_of(shape_result("64x64x64", plain=None, best=None, reason="too little memory")) == "too little memory"
    assert reason_of(shape_result("64x64x64", plain=None, best=None, reason="")) == "no kernel was measured"
