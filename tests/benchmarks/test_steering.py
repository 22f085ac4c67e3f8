"""The ablation: equal budgets, shared measurements, and arms that differ only in their steering; its counts."""

import json
import time
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.steering.__main__ import SteeringResult, SteeringRow, play, render
from benchmarks.steering.arms import ARMS, Arm, Late, Shared, Tried
from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Environment, Evaluation
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import Effort
from tests.doubles import ENVIRONMENT, INSPECTION, measured

TASK = GemmTask(m=128, n=128, k=128, arch=Arch.SM_90A)
COUNTED = {"duration_ns": 5000.0, "active_cycles": 1000.0, "active_cycles_max": 8000.0}  # one CTA on 132 SMs
PROFILE = Profile(
    tool="ncu",
    metric_set="sm_90a",
    launches=(LaunchProfile(entry="gemm", grid=(1, 1, 1), block=(128, 1, 1), metrics=COUNTED),),
    seconds=1.0,
)


class Box:
    """A candidate's time is a function of its id; every tenth does not compile."""

    def __init__(self, profile: Profile | Exception = PROFILE) -> None:
        self._profile = profile
        self.evaluated: list[str] = []
        self.profiled: list[str] = []

    @property
    def chip(self) -> Chip:
        return REFERENCE_CHIPS[Arch.SM_90A]

    @property
    def can_measure(self) -> bool:
        return True

    @property
    def environment(self) -> Environment | None:
        return ENVIRONMENT

    def build(self, candidates: Sequence[AnyCandidate], _: GemmTask) -> Iterator[tuple[int, Built | Evaluation]]:
        for position, one in reversed(list(enumerate(candidates))):
            if int(one.id, 16) % 10 == 0:
                yield position, CompileFailed(message="no", log="")
            else:
                yield position, Built(candidate=one, inspection=INSPECTION, artifact_path="", cached=False, seconds=0.0)

    def evaluate(self, built: Built, _: GemmTask, effort: Effort) -> Evaluation:
        assert effort == "quick"
        self.evaluated.append(built.candidate.id)
        return measured(50.0 + int(built.candidate.id, 16) % 1000 / 100, baseline_us=100.0)

    def profile(self, built: Built, _: GemmTask) -> Profile:
        self.profiled.append(built.candidate.id)
        if isinstance(self._profile, Exception):
            raise self._profile
        return self._profile

    def close(self) -> None: ...


def shared(box: Box, seconds: float = 120.0) -> Shared:
    return Shared(box, time.monotonic() + seconds)


def test_arms_share_what_was_measured_and_have_equal_budgets() -> None:
    box = Box()
    row = play(TASK, 0, 12, 4, 2, shared(box))
    assert [arm.name for arm in row.arms] == list(ARMS)
    assert [len(arm.tried) for arm in row.arms] == [12, 12, 12]
    assert len({tuple(one.candidate_id for one in arm.tried[:4]) for arm in row.arms}) == 1  # nothing to steer by yet
    winners = {one.candidate_id for arm in row.arms for one in (arm.best(6), arm.best(12)) if one}
    for name in set(box.evaluated):
        assert box.evaluated.count(name) == 1 + (2 if name in winners else 0)
    everyone = {one.candidate_id for arm in row.arms for one in arm.tried if one.speedup is not None}
    assert everyone == set(box.evaluated)
    best = max(one.speedup or 0 for one in row.arms[0].tried)
    assert row.finals["off"][1] == pytest.approx(best)


def test_only_the_counters_arm_profiles_and_only_leaders() -> None:
    box = Box()
    row = play(TASK, 0, 12, 4, 1, shared(box))
    assert [arm.profiles > 0 for arm in row.arms] == [False, False, True]
    assert len(set(box.profiled)) == len(box.profiled)
    speeds = {one.candidate_id: one.speedup for one in row.arms[2].tried}
    first = [one.speedup or 0 for one in row.arms[2].tried[:4]]
    assert speeds[box.profiled[0]] == max(first)


def test_only_steered_arms_relieve() -> None:
    rows = [play(task, 0, 32, 8, 1, shared(Box())) for task in (TASK, GemmTask(m=2048, n=2048, k=512, arch=Arch.SM_90A))]
    arms = [arm for row in rows for arm in row.arms]
    steered = [one for arm in arms if arm.name != "off" for one in arm.tried if one.relieves]
    assert not any(one.relieves for arm in arms if arm.name == "off" for one in arm.tried)
    assert steered
    assert all(one.gain is None or 0.8 < one.gain < 1.25 for one in steered)  # all take 50 to 60 us


def test_a_candidate_that_has_no_counters_leaves_its_arm_going() -> None:
    row = play(TASK, 0, 8, 4, 1, shared(Box(ProfileFailed("not this one"))))
    assert len(row.arms[2].tried) == 8


def test_without_a_profiler_there_is_no_ablation() -> None:
    with pytest.raises(ProfilerUnavailable):
        play(TASK, 0, 8, 4, 1, shared(Box(ProfilerUnavailable("no ncu"))))


def test_what_the_time_cuts_off_is_given_up() -> None:
    with pytest.raises(Late):
        play(TASK, 0, 8, 4, 1, shared(Box(), seconds=-1))


def row(shape: str, seed: int, off: float, timed: float, counters: float) -> SteeringRow:
    tried = (
        Tried(candidate_id="a", speedup=1.0),
        Tried(candidate_id="b", speedup=1.2, relieves="idle-sms", gain=1.2),
        Tried(candidate_id="c", speedup=0.9, relieves="idle-sms", gain=0.9),
    )
    arms = tuple(
        Arm(name=name, tried=tried if name == "counters" else (), evaluate_s=1, profile_s=2, profiles=1, propose_s=0)
        for name in ARMS
    )
    finals = {"off": (off, off), "timed": (timed, timed), "counters": (None, counters)}
    return SteeringRow(shape=shape, seed=seed, budget=24, arms=arms, finals=finals, seconds=1.0)


def test_the_tables_say_what_was_measured() -> None:
    rows = (row("1x1x1", 0, 1.0, 1.1, 1.21), row("1x1x1", 1, 1.0, 1.0, 1.0), row("2x2x2", 0, 0.5, 0.45, 0.5))
    text = render(SteeringResult(commit="c", date="d", environment=None, rows=rows))
    assert "| 1x1x1 | 0 | 24 | 1.100x, 1.100x | -, 1.210x | 1.000x |" in text
    mean, low = (1.1 * 1.0 * 0.9) ** (1 / 3), (1.1 * 0.9) ** 0.5
    assert f"- timed, the whole budget: geometric mean {mean:.4f}x (by seed {low:.4f} to 1.0000); more than 2 %" in text
    assert "more than 2 % faster in 1 and slower in 1 of 3." in text
    assert f"- counters, the whole budget: geometric mean {1.21 ** (1 / 3):.4f}x" in text
    assert "counters, half the budget" not in text
    assert "6 written to relieve a bottleneck, 3 of them more than 2 % faster" in text


def test_the_best_of_a_part_is_of_that_part() -> None:
    arm = row("1x1x1", 0, 1, 1, 1).arms[2]
    assert [one.candidate_id if (one := arm.best(count)) else None for count in (0, 1, 2, 3)] == [None, "a", "b", "b"]


def test_a_result_survives_its_file() -> None:
    result = SteeringResult(commit="c", date="d", environment=ENVIRONMENT, rows=(row("1x1x1", 0, 1.0, 1.1, 1.2),))
    assert SteeringResult.model_validate(json.loads(result.model_dump_json())) == result
