"""The faulty kernels build and have their fault; the benchmark counts what it states."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from benchmarks.diagnosis.__main__ import run
from benchmarks.diagnosis.diagnosis_table import DiagnosisResult, DiagnosisRow, Trial, render
from benchmarks.diagnosis.faulty_kernels import FaultyCase, all_cases
from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS, Chip
from cudal2_agent.contract.plan.plan import parse_plan, resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Environment, Evaluation, Wrong
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, Effort
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.toolchain import find_nvdisasm
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose
from tests.doubles import ENVIRONMENT, INSPECTION, PASSED, measured

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
CASES = {case.name: case for case in all_cases()}
STATIC = {  # faults that the compiled code shows without running
    "tile too large": "idle-sms",
    "tail wave": "tail-wave",
    "fused multiply-adds": "no-tensor-cores",
    "registers bounded": "spills",
    "copies through registers": "register-staging",
    "fragments word by word": "narrow-smem-loads",
    "serialised wgmma": "wgmma-serialised",
}


class Box:
    """Builds any candidate; `time_us` gives its time, `profile` its counters."""

    def __init__(self, time_us: Callable[[AnyCandidate], float], profile: Exception | Profile | None = None) -> None:
        self._time_us = time_us
        self._profile = profile or ProfilerUnavailable("no ncu here")
        self.evaluated: list[str] = []
        self.profiled = 0
        self.broken: set[str] = set()

    @property
    def chip(self) -> Chip:
        return CHIP

    @property
    def can_measure(self) -> bool:
        return True

    @property
    def environment(self) -> Environment | None:
        return ENVIRONMENT

    def build(self, candidates: Sequence[AnyCandidate], _: GemmTask) -> Iterator[tuple[int, Built | Evaluation]]:
        for position, candidate in enumerate(candidates):
            yield position, Built(candidate=candidate, inspection=INSPECTION, artifact_path="", cached=False, seconds=0.0)

    def evaluate(self, built: Built, _: GemmTask, effort: Effort) -> Evaluation:
        assert effort == "quick"
        self.evaluated.append(built.candidate.id)
        if built.candidate.id in self.broken:
            return Wrong(test=PASSED, tests=(PASSED,), inspection=INSPECTION)
        return measured(self._time_us(built.candidate))

    def profile(self, _: Built, __: GemmTask) -> Profile:
        self.profiled += 1
        if isinstance(self._profile, Exception):
            raise self._profile
        return self._profile

    def close(self) -> None: ...


def play(box: Box, names: Sequence[str]) -> list[DiagnosisRow]:
    return run(box, [CASES[name] for name in names], time.monotonic() + 60, lambda _: None)


def test_there_are_twenty_kernels_of_different_character() -> None:
    assert len(CASES) == len(all_cases()) >= 20
    assert len({(case.candidate.id, case.task.shape) for case in CASES.values()}) == len(CASES)
    assert len({case.expected[0] for case in CASES.values()}) >= 12
    assert sum(case.fixed is not None for case in CASES.values()) >= 8
    for case in CASES.values():
        assert not set(case.expected) & set(case.also)
        assert case.fixed is None or case.fixed.id != case.candidate.id


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_faulty_kernel_holds_its_whole_plan(name: str) -> None:
    case = CASES[name]
    for candidate in filter(None, (case.candidate, case.fixed)):
        assert parse_plan(candidate.source) == candidate.plan
        resolve(candidate.plan, case.task, LIMITS[case.task.arch], CHIP.sms)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    cache = tmp_path_factory.mktemp("compile")
    yield Builder(CompileOptions(cache_dir=str(cache), jobs=2), CHIP)
    shutil.rmtree(cache)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_faulty_kernel_builds_and_is_as_faulty_as_it_says(name: str, builder: Builder) -> None:
    case = CASES[name]
    found = [_static(case, candidate, builder) for candidate in filter(None, (case.candidate, case.fixed))]
    if name in STATIC and (find_nvdisasm() or name == "serialised wgmma"):
        assert STATIC[name] in found[0]
        assert all(STATIC[name] not in names for names in found[1:])


def _static(case: FaultyCase, candidate: AnyCandidate, builder: Builder) -> set[str]:
    built = builder.build_one(candidate, case.task)
    assert isinstance(built, Built), built
    plan = resolve(candidate.plan, case.task, LIMITS[case.task.arch], CHIP.sms)  # type: ignore[union-attr]
    return {finding.bottleneck for finding in diagnose(built.inspection, plan, case.task, CHIP).findings}


def test_a_remedy_by_hand_is_compared_with_the_fault() -> None:
    case = CASES["serialised wgmma"]
    box = Box(lambda one: 10.0 if one.id == case.candidate.id else 5.0)
    (row,) = play(box, [case.name])
    assert [(trial.kind, trial.bottleneck, trial.ratio) for trial in row.trials] == [("by hand", "wgmma-serialised", 2.0)]
    assert row.repeat == 1.0
    assert box.evaluated == [case.candidate.id] * 2 + [case.fixed.id] + [case.candidate.id]  # type: ignore[union-attr]


def test_schedules_are_remedied_beside_their_controls() -> None:
    (row,) = play(Box(lambda _: 100.0), ["shallow pipeline, wgmma"])
    assert {trial.kind for trial in row.trials} >= {"heaviest", "heaviest, by prior", "control", "control, by prior"}
    for kind in {trial.kind for trial in row.trials}:
        mine = [trial for trial in row.trials if trial.kind == kind]
        assert 1 <= len(mine) <= 3
        assert all(1 <= len(trial.changes) <= 2 for trial in mine)
        assert (mine[0].bottleneck is None) == kind.startswith("control")
    assert all(trial.ratio == 1.0 for trial in row.trials)
    assert {trial.bottleneck for trial in row.trials if trial.kind.startswith("heaviest")} == {
        next(finding.bottleneck for finding in row.findings if finding.bottleneck in {t.bottleneck for t in row.trials})
    }


def test_what_fails_has_no_ratio() -> None:
    case = CASES["serialised wgmma"]
    box = Box(lambda _: 10.0)
    box.broken = {case.fixed.id}  # type: ignore[union-attr]
    (row,) = play(box, [case.name])
    assert (row.trials[0].status, row.trials[0].ratio) == ("wrong", None)
    box.broken = {case.candidate.id}
    (row,) = play(box, [case.name])
    assert (row.status, row.time_us, row.trials) == ("wrong", None, ())


def test_without_counters_the_profiler_is_asked_once() -> None:
    names = ["registers bounded", "loads down columns"]
    box = Box(lambda _: 10.0)
    assert [row.basis for row in play(box, names)] == ["timed", "timed"]
    assert box.profiled == 1
    box = Box(lambda _: 10.0, ProfileFailed("this one cannot"))
    play(box, names)
    assert box.profiled == 2


def test_what_is_true_anyway_takes_no_place() -> None:
    (row,) = play(Box(lambda _: 10.0), ["one warp a CTA"])
    names = [finding.bottleneck for finding in row.findings if finding.bottleneck != "legacy-mma"]
    assert row.rank == next((place for place, name in enumerate(names, 1) if name in row.expected), None)


def test_a_run_cut_short_keeps_its_diagnoses() -> None:
    cases = [CASES["registers bounded"], CASES["loads down columns"]]
    kept: list[int] = []
    assert run(Box(lambda _: 10.0), cases, time.monotonic() - 1, lambda rows: kept.append(len(rows))) == []
    assert kept == []
    run(Box(lambda _: 10.0), cases, time.monotonic() + 60, lambda rows: kept.append(len(rows)))
    assert kept == [1, 2, 2, 2]


def _row(name: str, rank: int | None, repeat: float | None, *trials: tuple[str, float | None]) -> DiagnosisRow:
    return DiagnosisRow(
        name=name,
        fault="f",
        shape="1x1x1",
        by_hand=False,
        expected=("spills",),
        also=(),
        status="measured",
        time_us=1.0,
        speedup=0.5,
        rank=rank,
        repeat=repeat,
        trials=tuple(Trial(kind=kind, bottleneck=None, changes={}, status="measured", ratio=ratio) for kind, ratio in trials),
    )


def test_the_summary_counts() -> None:
    rows = (
        _row("a", 1, 1.01, ("heaviest", 1.5), ("heaviest", 1.01), ("heaviest", 0.5), ("control", 0.9)),
        _row("b", 2, None, ("heaviest", 1.0), ("heaviest", None), ("control", 1.1)),
        _row("c", None, 1.0),
    )
    text = render(DiagnosisResult(commit="c", date="d", environment=None, seconds=1, rows=rows))
    assert (
        "Of 3 kernels the constructed fault had the largest weight in 1, among the first two in 2, found at all in 2." in text
    )
    assert "heaviest: 1 of 4 candidates more than 2 % faster, in 1 of 2 kernels at least one" in text
    assert f"geometric mean of the medians {math.sqrt(1.01 * 1.0):.3f}x" in text
    assert "control: 1 of 2 candidates more than 2 % faster, in 1 of 2 kernels at least one" in text
    assert "| a | 1.50x, 1.01x |" in text


def test_a_result_survives_its_file() -> None:
    result = DiagnosisResult(
        commit="c", date="d", environment=ENVIRONMENT, seconds=1, rows=tuple(play(Box(lambda _: 10.0), ["tail wave"]))
    )
    assert DiagnosisResult.model_validate_json(result.model_dump_json()) == result
