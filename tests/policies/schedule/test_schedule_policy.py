"""The schedule policy: its first proposals, its response to feedback, and its invariants."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.protocols import Policy
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.inspection import Inspection, KernelResources
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, TimingMode
from cudal2_agent.contract.records.trajectory import Attempt, Observation, Precedent
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.policies.schedule.prediction import predict

TASK = GemmTask(m=512, n=512, k=512, arch=Arch.SM_80)
HOPPER = GemmTask(m=512, n=512, k=512)
Time = Callable[[Candidate], float | None]


def observe(task: GemmTask = TASK, round: int = 0, attempts: tuple[Attempt, ...] = (), seed: int = 0) -> Observation:
    return Observation(task=task, chip=REFERENCE_CHIPS[task.arch], round=round, seed=seed, attempts=attempts)


def attempt(candidate: Candidate, time_us: float | None, status: str) -> Attempt:
    return Attempt(
        candidate_id=candidate.id, policy="schedule", schedule=candidate.origin.schedule, status=status, time_us=time_us
    )


def play(policy: Policy, rounds: int, measure: Time, task: GemmTask = TASK, status: str = "measured") -> list[list[Candidate]]:
    """Rounds of eight proposals, each answered immediately."""
    attempts: tuple[Attempt, ...] = ()
    played = []
    for round in range(rounds):
        candidates = policy.propose(observe(task, round, attempts), 8)
        attempts += tuple(attempt(candidate, measure(candidate), status) for candidate in candidates)
        played.append(candidates)
    return played


def schedule_of(candidate: Candidate) -> dict[str, Any]:
    return candidate.origin.schedule or {}


def policy(seed: int = 0) -> SchedulePolicy:
    return SchedulePolicy([MmaSync()], seed)


def test_it_is_a_policy() -> None:
    checked: Policy = policy()
    assert checked.name == "schedule"


def test_the_first_round_is_diverse() -> None:
    candidates = policy().propose(observe(), 8)
    assert len({candidate.id for candidate in candidates}) == 8
    tiles = {(schedule_of(c)["block_m"], schedule_of(c)["block_n"], schedule_of(c)["split_k"]) for c in candidates}
    assert len(tiles) >= 4


def test_the_first_round_on_hopper_tries_all_families() -> None:
    task = GemmTask(m=128, n=128, k=128)
    proposed = SchedulePolicy(families(task.arch)).propose(observe(task), 8)
    assert {schedule_of(candidate)["family"] for candidate in proposed} == {"mma_sync", "wgmma_tma", "latency"}


def test_equal_observations_get_equal_answers() -> None:
    def ids(seed: int) -> list[str]:
        return [
            candidate.id for round in play(policy(seed), 3, lambda c: 1.0 + schedule_of(c)["stages"]) for candidate in round
        ]

    assert ids(0) == ids(0)
    assert ids(0) != ids(1)


def test_a_policy_that_was_interrupted_goes_on_as_if_it_was_not() -> None:
    first = policy()
    played = play(first, 2, lambda c: 2.0 + schedule_of(c)["block_m"] / 64)
    attempts = tuple(attempt(c, 2.0 + schedule_of(c)["block_m"] / 64, "measured") for round in played for c in round)
    there, here = (
        first.propose(observe(round=2, attempts=attempts), 8),
        policy().propose(observe(round=2, attempts=attempts), 8),
    )
    assert [candidate.id for candidate in there] == [candidate.id for candidate in here]


@pytest.mark.parametrize("status", ["measured", "unmeasured", "wrong"])
def test_nothing_is_proposed_twice(status: str) -> None:
    played = play(policy(), 6, lambda _: 5.0 if status == "measured" else None, status=status)
    ids = [candidate.id for round in played for candidate in round]
    schedules = [frozenset(schedule_of(candidate).items()) for round in played for candidate in round]
    assert len(ids) == 48
    assert len(set(ids)) == len(set(schedules)) == 48


def test_a_candidate_seen_under_another_name_is_not_repeated() -> None:
    (best,) = policy().propose(observe(), 1)
    seen = Attempt(candidate_id=best.id, policy="chat", schedule=None, status="measured", time_us=3.0)
    assert best.id not in {candidate.id for candidate in policy().propose(observe(attempts=(seen,)), 8)}


def test_feedback_moves_the_search_to_what_is_fast() -> None:
    """The true times contradict the prior: direct stores and a K block of 128 are fastest."""

    def truth(candidate: Candidate) -> float:
        s = schedule_of(candidate)
        return 4.0 * (1.0 if s["epilogue"] == "direct" else 1.6) * (1.0 if s["block_k"] == 128 else 1.5)

    played = play(policy(), 6, truth)
    first, last = ([truth(candidate) for candidate in played[index]] for index in (0, -1))
    assert sum(last) < sum(first)
    assert sum(time == 4.0 for time in last) >= 6


def test_without_times_it_follows_the_prior() -> None:
    played = play(policy(), 3, lambda _: None, status="unmeasured")
    means = []
    inspection = inspection_of(2)
    for round in played:
        means.append(sum(predict(candidate, TASK, inspection).predicted_us for candidate in round) / len(round))
    assert means[0] <= means[-1] * 1.05


def test_a_region_that_fails_is_left() -> None:
    def status_of(candidate: Candidate) -> str:
        return "wrong" if schedule_of(candidate)["split_k"] == 1 else "measured"

    attempts: tuple[Attempt, ...] = ()
    subject = policy()
    for round in range(5):
        candidates = subject.propose(observe(round=round, attempts=attempts), 8)
        attempts += tuple(attempt(c, 6.0 if status_of(c) == "measured" else None, status_of(c)) for c in candidates)
    early, late = attempts[:8], attempts[-8:]
    assert sum(a.status == "wrong" for a in late) <= max(2, sum(a.status == "wrong" for a in early) // 2)


def test_spaces_that_are_exhausted_end_the_search() -> None:
    task = GemmTask(m=1, n=1, k=1, arch=Arch.SM_80)
    subject = SchedulePolicy(families(task.arch))
    everything = subject.propose(observe(task), 10_000)
    assert len(everything) == len(list(MmaSync().space(task, REFERENCE_CHIPS[Arch.SM_80])))
    attempts = tuple(attempt(candidate, 1.0, "measured") for candidate in everything)
    assert len(subject.propose(observe(task, 1, attempts), 8)) < 8
    assert SchedulePolicy([WgmmaTma()]).propose(observe(task), 8) == []
    assert subject.propose(observe(task), 0) == []


def test_schedules_it_cannot_read_do_not_stop_it() -> None:
    strange = tuple(
        Attempt(candidate_id=f"{number}", policy="other", schedule=schedule, status="measured", time_us=1.0)
        for number, schedule in enumerate(({"family": "unknown"}, {"family": "mma_sync", "block_m": 3}, {"x": True}, None))
    )
    assert len(policy().propose(observe(round=1, attempts=strange), 8)) == 8


def test_later_rounds_are_quick() -> None:
    subject = policy()
    attempts = tuple(attempt(c, 5.0, "measured") for c in subject.propose(observe(), 48))
    started = time.process_time()
    assert len(subject.propose(observe(round=1, attempts=attempts), 8)) == 8
    assert time.process_time() - started < 2.0


def inspection_of(ctas_per_sm: int) -> Inspection:
    kernel = KernelResources(
        entry="hgemm",
        registers=128,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=0,
        static_smem_bytes=0,
        dynamic_smem_bytes=0,
        threads=128,
        ctas_per_sm=ctas_per_sm,
        occupancy=0.25,
        occupancy_limiter="registers",
    )
    return Inspection(
        cubin_sha256="0", compile_seconds=0.1, kernels=(kernel,), opcodes={}, opcode_source="ptx", mma=(), accumulators=()
    )


def test_prediction_says_what_it_rests_on() -> None:
    (candidate,) = policy().propose(observe(), 1)
    floor = roofline_us(TASK, REFERENCE_CHIPS[TASK.arch])
    modelled = predict(candidate, TASK, inspection_of(2))
    assert modelled.model == "analytic prior/mma_sync on A100-SXM4-80GB, rates not fitted"
    (measured_chip,) = SchedulePolicy([WgmmaTma()]).propose(observe(HOPPER), 1)
    assert predict(measured_chip, HOPPER, inspection_of(1)).model == "analytic prior/wgmma_tma on H200"
    assert modelled.predicted_us > modelled.floor_us == floor
    for origin in (Origin(policy="chat"), Origin(policy="chat", schedule={"family": "mma_sync", "block_m": 5})):
        plain = predict(candidate.model_copy(update={"origin": origin}), TASK, inspection_of(2))
        assert plain.model.startswith("roofline")
        assert plain.predicted_us == floor


def test_prediction_heeds_the_compilers_occupancy() -> None:
    task = GemmTask(m=4096, n=4096, k=256, arch=Arch.SM_80)
    (candidate,) = policy().propose(observe(task), 1)
    assert predict(candidate, task, inspection_of(1)).predicted_us > predict(candidate, task, inspection_of(4)).predicted_us


def test_families_are_those_of_the_architecture() -> None:
    assert [family.name for family in families(Arch.SM_90A)] == ["wgmma_tma", "latency", "resident", "mma_sync"]
    for arch in (Arch.SM_80, Arch.SM_86, Arch.SM_89):
        assert [family.name for family in families(arch)] == ["latency", "mma_sync"]
    assert [family.name for family in families(Arch.SM_100A)] == ["mma_sync"]


def test_the_first_round_starts_from_precedents_for_one_half() -> None:
    """Those that no family can write for the task are left out; later rounds follow the times alone."""
    chip_of_run = REFERENCE_CHIPS[TASK.arch]
    observation = Observation(task=TASK, chip=chip_of_run, round=1, seed=0)
    plain = SchedulePolicy(families(TASK.arch)).propose(observation, 32)
    last = plain[-1].origin.schedule
    assert last is not None
    known = [Precedent(run_id="r", task=TASK, schedule=values, speedup=1.2) for values in ({"family": "none"}, last)]
    policy = SchedulePolicy(
        families(TASK.arch), precedents=lambda task, chip: known if (task, chip) == (TASK, chip_of_run) else []
    )
    first = policy.propose(observation, 4)
    assert [one.id for one in first] == [plain[-1].id, *(one.id for one in plain[:3])]


def test_a_precedent_of_an_earlier_search_is_written_as_its_family_is_searched_today() -> None:
    """The library's winners are older than the shape as constants, which no schedule of the space lacks."""
    older = {"consumers": 2, "atoms": 1, "block_n": 128, "block_k": 64, "stages": 4, "family": "wgmma_tma"}
    task = GemmTask(m=2048, n=1024, k=4096)
    known = [Precedent(run_id="r", task=task, schedule=older, speedup=1.2)]
    seen = Observation(task=task, chip=REFERENCE_CHIPS[task.arch], round=1, seed=0)
    first = SchedulePolicy(families(task.arch), precedents=lambda *_: known).propose(seen, 4)[0]
    assert first.origin.schedule is not None
    assert {axis: first.origin.schedule[axis] for axis in older} == older
    assert first.origin.schedule["constant_shape"] is True
    assert "M==2048" in first.plan.requires


@pytest.mark.parametrize(
    ("other", "known_first"), [({}, 2), ({"mode": TimingMode.SERVER}, 3), ({"element": ElementType.BF16}, 3)]
)
def test_a_server_and_another_element_try_all_precedents_of_their_own_shape(other: dict[str, object], known_first: int) -> None:
    task = TASK.model_copy(update=other)
    observation = Observation(task=task, chip=REFERENCE_CHIPS[TASK.arch], round=1, seed=0)
    plain = SchedulePolicy(families(TASK.arch)).propose(observation, 32)
    schedules = [one.origin.schedule for one in plain[-3:] if one.origin.schedule]
    known = [Precedent(run_id="r", task=TASK, schedule=schedule, speedup=1.2) for schedule in schedules]
    policy = SchedulePolicy(families(TASK.arch), precedents=lambda _task, _chip: known)
    first = policy.propose(observation, 4)
    assert [one.id for one in first[:known_first]] == [one.id for one in plain[-3:][:known_first]]
    assert first[known_first].id == plain[0].id


def test_a_first_round_is_not_all_of_forms_that_no_run_has_timed() -> None:
    """Rows that are read in pairs spare a launch, so they are all that the prior would have tried here."""
    task = GemmTask(m=100, n=100, k=100, arch=Arch.SM_90A)
    first = SchedulePolicy([WgmmaTma()]).propose(observe(task), 8)
    assert [schedule_of(candidate)["paired_rows"] for candidate in first] == [True] * 6 + [False] * 2


def test_of_few_rows_a_first_round_lets_weights_leave_l2_first() -> None:
    """Offline alone, and not where D has many rows, whose tiles share the weights."""
    few = GemmTask(m=16, n=28672, k=4096, layout="tn", element="bf16")
    first = SchedulePolicy(families(few.arch)).propose(
        Observation(task=few, chip=REFERENCE_CHIPS[few.arch], round=0, seed=0), 8
    )
    of_wgmma = [one.origin.schedule for one in first if one.origin.schedule["family"] == "wgmma_tma"]
    assert of_wgmma
    assert all(one["evict_a" if one["turned"] else "evict_b"] == "first" for one in of_wgmma)
    assert all(one["evict_b" if one["turned"] else "evict_a"] == "normal" for one in of_wgmma)
    for other in ({"m": 4096}, {"mode": "server"}, {"n": 1024, "k": 1024}):
        task = few.model_validate(few.model_dump() | other)
        others = SchedulePolicy(families(few.arch)).propose(
            Observation(task=task, chip=REFERENCE_CHIPS[few.arch], round=0, seed=0), 8
        )
        assert not all(one.origin.schedule.get("evict_a", "") == "first" for one in others), other
        assert not all(one.origin.schedule.get("evict_b", "") == "first" for one in others), other
