"""Steering by diagnosis: which moves relieve which bottleneck, their weights, and the policy's use of them."""

import functools
import math
import time
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.diagnosis import Bottleneck, Diagnosis, Finding
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.relief import RELIEFS, relieves
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.optimiser.steering import TRUST, Neighbourhood, steer
from cudal2_agent.policies.schedule.policy import SchedulePolicy

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
LONG = GemmTask(m=512, n=512, k=4096)
ODD = GemmTask(m=512, n=512, k=4100)  # whose rows of A are not whole 16 bytes: only mma_sync has schedules
LARGE = GemmTask(m=2048, n=2048, k=2048)
HOPPER = {"family": "wgmma_tma", "consumers": 1, "atoms": 1, "block_n": 128, "block_k": 64, "stages": 3}
AMPERE = {
    "family": "mma_sync",
    "block_m": 128,
    "block_n": 128,
    "block_k": 32,
    "warps_m": 2,
    "warps_n": 2,
    "stages": 2,
    "constant_shape": False,
    "programmatic": True,
}
SPLIT = {"split_k": 4, "reduction": "workspace"}


@functools.cache
def pool_of(task: GemmTask) -> SchedulePool:
    return SchedulePool(families(task.arch), task, CHIP, seed=0)


@functools.cache
def policy(*, steered: bool) -> SchedulePolicy:
    """A policy that keeps its pool from test to test."""
    return SchedulePolicy(families(LONG.arch), steer=steered)


def entry(values: dict[str, Any], task: GemmTask = LONG, **changes: Any) -> PoolEntry:
    pool = pool_of(task)
    full = pool.families[values["family"]].parse(values | changes).values()
    found = pool.entry(full)
    assert found is not None, f"{values | changes} is not valid for {task.shape}"
    return found


def diagnosis(*found: tuple[Bottleneck, float], basis: str = "counters") -> Diagnosis:
    findings = tuple(Finding(bottleneck=name, evidence="e", remedy="r", weight=weight) for name, weight in found)
    return Diagnosis.model_validate({"basis": basis, "findings": findings})


def attempt(tried: PoolEntry, time_us: float | None, task: GemmTask = LONG) -> Attempt:
    status = "wrong" if time_us is None else "measured"
    schedule = tried.values
    identity = tried.family.write(tried.schedule, task).id
    return Attempt(candidate_id=identity, policy="schedule", schedule=schedule, status=status, time_us=time_us)


def observe(attempts: list[Attempt], found: Diagnosis | None, diagnosed: str | None, task: GemmTask = LONG) -> Observation:
    return Observation(task=task, chip=CHIP, round=2, seed=0, attempts=tuple(attempts), diagnosis=found, diagnosed=diagnosed)


def steering_of(parent: PoolEntry, found: Diagnosis, others: list[tuple[PoolEntry, float | None]] | None = None) -> Any:
    pairs = [(attempt(parent, 10.0), parent), *((attempt(other, time_us), other) for other, time_us in others or [])]
    return steer(observe([pair[0] for pair in pairs], found, pairs[0][0].candidate_id), pairs, pool_of(LONG))


def test_every_bottleneck_has_its_moves_or_says_that_it_has_none() -> None:
    assert set(RELIEFS) == set(get_args(Bottleneck))


@pytest.mark.parametrize(
    ("bottleneck", "values", "worse", "better"),
    [
        ("launch-bound", AMPERE, {"programmatic": False}, {"programmatic": True}),
        ("launch-bound", HOPPER, {"programmatic": False}, {"programmatic": True}),
        ("idle-sms", HOPPER, {}, {"cluster_k": 2, "tma_store": False, "stages": 6}),
        ("idle-sms", HOPPER, {}, {"splits": 2}),
        ("idle-sms", AMPERE, {}, SPLIT),
        ("idle-sms", AMPERE, {}, {"block_m": 64}),
        ("occupancy", HOPPER, {}, {"consumers": 2}),
        ("occupancy", AMPERE, {}, {"warps_n": 4}),
        ("prologue-bound", HOPPER, {"block_k": 128}, {"block_k": 64}),
        ("epilogue-bound", HOPPER, {"tma_store": False}, {"tma_store": True}),
        ("epilogue-bound", AMPERE, {"epilogue": "direct"}, {"epilogue": "staged"}),
        ("memory-latency", HOPPER, {}, {"stages": 4}),
        ("memory-latency", HOPPER, {}, {"cluster_m": 2}),
        ("memory-latency", AMPERE, {}, {"stages": 3}),
        ("few-bytes-in-flight", AMPERE, {}, {"block_k": 64}),
        ("barrier-waits", AMPERE, {}, {"block_k": 64}),
        ("barrier-waits", HOPPER, {}, {"consumers": 2}),
        ("smem-instructions", AMPERE, {"warps_m": 4}, {"warps_m": 2}),
        ("dependency-waits", HOPPER, {}, {"atoms": 2}),
        ("wgmma-waits", HOPPER, {}, {"atoms": 2}),
        ("instruction-bound", AMPERE, {}, {"constant_shape": True}),
        ("l2-bound", HOPPER, {}, {"cluster_n": 2}),
        ("redundant-traffic", AMPERE, {"block_n": 64}, {}),
        ("smem-bound", HOPPER, {"block_n": 64}, {}),
        ("bank-conflicts", HOPPER, {"block_n": 96}, {}),
        ("uncoalesced", AMPERE, {"epilogue": "direct"}, {"epilogue": "staged"}),
        ("reduction-traffic", AMPERE, SPLIT, {}),
        ("reduction-traffic", AMPERE, SPLIT | {"epilogue": "direct"}, SPLIT | {"reduction": "cluster", "epilogue": "direct"}),
        ("reduction-traffic", HOPPER, {"splits": 4}, {"splits": 2}),
        ("spills", AMPERE, {}, {"warps_m": 4}),
        ("spills", AMPERE, {"min_ctas": 2}, {"min_ctas": 1}),
    ],
)
def test_a_move_relieves_in_its_direction_only(
    bottleneck: Bottleneck, values: dict[str, Any], worse: dict[str, Any], better: dict[str, Any]
) -> None:
    before, after = entry(values, **worse), entry(values, **better)
    assert relieves(before, after, bottleneck, pool_of(LONG))
    assert not relieves(after, before, bottleneck, pool_of(LONG))
    assert not relieves(before, before, bottleneck, pool_of(LONG))


def test_full_waves_relieve_a_tail() -> None:
    tail = entry(HOPPER, LARGE, consumers=2, block_n=128, stages=4)  # 256 tiles: two waves, the second with 124 of 132 SMs busy
    worse = entry(HOPPER, LARGE, consumers=2, block_n=224, stages=4)  # 160 tiles: two waves, the second with 28 of 132 SMs busy
    assert relieves(worse, tail, "tail-wave", pool_of(LARGE))
    assert not relieves(tail, worse, "tail-wave", pool_of(LARGE))
    assert relieves(worse, entry(worse.values, LARGE, persistent=True), "imbalance", pool_of(LARGE))


def test_what_lies_in_the_code_no_schedule_relieves() -> None:
    around = Neighbourhood(entry(AMPERE), pool_of(LONG))
    for name in ("no-tensor-cores", "wgmma-serialised", "register-staging", "narrow-smem-loads", "setmaxnreg-ignored"):
        assert around.relieving(name) == []


@pytest.mark.parametrize(("values", "task"), [(HOPPER, LONG), (AMPERE, ODD)])
@pytest.mark.parametrize("bottleneck", [name for name, moves in RELIEFS.items() if moves])
def test_relieving_neighbours_are_valid_near_and_no_longer_ways_round(
    values: dict[str, Any], task: GemmTask, bottleneck: Bottleneck
) -> None:
    parent = entry(values, task)
    found = Neighbourhood(parent, pool_of(task)).relieving(bottleneck)
    assert len({neighbour.key for neighbour in found}) == len(found)
    changes = []
    for neighbour in found:
        neighbour.family.write(neighbour.schedule, task)
        assert relieves(parent, neighbour, bottleneck, pool_of(task))
        changes.append({axis for axis, value in neighbour.values.items() if parent.values[axis] != value})
    single = {
        (axis, neighbour.values[axis])
        for neighbour, changed in zip(found, changes, strict=True)
        for axis in changed
        if len(changed) == 1
    }
    for neighbour, changed in zip(found, changes, strict=True):
        assert 1 <= len(changed) <= 2
        if len(changed) == 2:
            assert not any((axis, neighbour.values[axis]) in single for axis in changed)


def test_what_takes_two_steps_at_once_is_found() -> None:
    found = Neighbourhood(entry(AMPERE, ODD), pool_of(ODD)).relieving("idle-sms")
    assert any(one.values["split_k"] > 1 and one.values["reduction"] != "none" for one in found)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(get_args(Bottleneck)), st.floats(0, 1)), max_size=8))
def test_a_discount_is_bounded_and_grows_with_the_weight(found: list[tuple[Bottleneck, float]]) -> None:
    parent = entry(HOPPER)
    steering = steering_of(parent, diagnosis(*found))
    if steering is None:
        return
    neighbours = list(steering.neighbours.values())
    discount = steering.discount([*neighbours, parent])
    assert (discount >= 1 - TRUST).all()
    assert (discount <= 1).all()
    assert discount[-1] == 1.0
    assert not {parent.key} & set(steering.neighbours)
    lighter = steering_of(parent, diagnosis(*((name, weight / 2) for name, weight in found)))
    assert (lighter.discount(neighbours) >= steering.discount(neighbours)).all()


def test_of_two_findings_of_one_bottleneck_the_heavier_counts() -> None:
    steering = steering_of(entry(HOPPER), diagnosis(("memory-latency", 0.2), ("memory-latency", 0.6)))
    assert steering.trusted == {"memory-latency": 0.6}


def test_a_neighbour_is_named_after_the_heaviest_bottleneck_it_relieves() -> None:
    steering = steering_of(entry(HOPPER), diagnosis(("memory-latency", 0.3), ("idle-sms", 0.5)))
    assert steering.main_relief(entry(HOPPER, stages=4)) == "memory-latency"
    assert steering.main_relief(entry(HOPPER, splits=2)) == "idle-sms"
    assert steering.main_relief(entry(HOPPER, group=4)) is None


def test_what_was_tried_in_vain_is_trusted_less() -> None:
    parent, found = entry(HOPPER), diagnosis(("memory-latency", 0.6), ("idle-sms", 0.6))
    deeper, split = entry(HOPPER, stages=4), entry(HOPPER, splits=2)
    assert steering_of(parent, found).trusted == {"memory-latency": 0.6, "idle-sms": 0.6}
    once = steering_of(parent, found, [(deeper, 11.0)]).trusted
    assert once == {"memory-latency": 0.3, "idle-sms": 0.6}
    twice = steering_of(parent, found, [(deeper, 11.0), (entry(HOPPER, stages=5), 10.0), (split, 12.0)]).trusted
    assert twice == {"memory-latency": pytest.approx(0.2), "idle-sms": 0.3}


def test_successes_failures_and_strangers_take_no_trust_away() -> None:
    parent, found = entry(HOPPER), diagnosis(("memory-latency", 0.6))
    faster, failed = (entry(HOPPER, stages=4), 9.0), (entry(HOPPER, stages=5), None)
    far = (entry(HOPPER, atoms=2, block_n=64, stages=6), 20.0)
    other_family = (entry(AMPERE, stages=3), 20.0)
    assert steering_of(parent, found, [faster, failed, far, other_family]).trusted == {"memory-latency": 0.6}


def test_without_a_schedule_behind_it_a_diagnosis_steers_nothing() -> None:
    pool, parent = pool_of(LONG), entry(HOPPER)
    tried = [(attempt(parent, 10.0), parent)]
    found = diagnosis(("memory-latency", 0.5))
    for diagnosed in (None, "of another candidate"):
        assert steer(observe([tried[0][0]], found, diagnosed), tried, pool) is None
    identity = tried[0][0].candidate_id
    assert steer(observe([tried[0][0]], None, identity), tried, pool) is None
    assert steer(observe([tried[0][0]], diagnosis(("wgmma-serialised", 0.9)), identity), tried, pool) is None
    assert steer(observe([tried[0][0]], diagnosis(), identity), tried, pool) is None


def first_round(truth: Any) -> tuple[list[Attempt], str]:
    """Sixteen timed schedules that the prior prefers, and the id of the fastest."""
    proposed = policy(steered=True).propose(Observation(task=LONG, chip=CHIP, round=1, seed=0), 16)
    attempts = [
        Attempt(candidate_id=c.id, policy="schedule", schedule=c.origin.schedule, status="measured", time_us=truth(c))
        for c in proposed
    ]
    return attempts, min(attempts, key=lambda one: one.time_us or math.inf).candidate_id


def flat(candidate: Candidate) -> float:
    """The fewest stages are the fastest by a little, so that there is something that the fastest can be relieved of."""
    schedule = candidate.origin.schedule or {}
    return 10.0 + int(schedule.get("stages", 99)) / 10 + int(candidate.id, 16) % 997 / 100000


def propose(observation: Observation, count: int = 8, *, steer: bool = True) -> list[Candidate]:
    return policy(steered=steer).propose(observation, count)


def noted(candidates: list[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.origin.note]


def test_a_diagnosis_makes_some_proposals_relieve() -> None:
    attempts, best = first_round(flat)
    proposed = propose(observe(attempts, diagnosis(("memory-latency", 0.9), ("idle-sms", 0.8)), best))
    relieving = noted(proposed)
    assert 1 <= len(relieving) <= 4  # of the half around the best; the other half explores, as without steering
    parent = pool_of(LONG).entry(next(one.schedule for one in attempts if one.candidate_id == best) or {})
    assert parent is not None
    for candidate in relieving:
        assert candidate.origin.parents == (best,)
        name = candidate.origin.note.removeprefix("relieves ")
        written = pool_of(LONG).entry(candidate.origin.schedule or {})
        assert written is not None
        assert relieves(parent, written, name, pool_of(LONG))
    assert all(candidate.origin.parents == () for candidate in proposed if candidate not in relieving)


def test_weight_counts() -> None:
    attempts, best = first_round(flat)

    def relieving(weight: float) -> int:
        return len(noted(propose(observe(attempts, diagnosis(("memory-latency", weight), basis="timed"), best), 16)))

    assert relieving(1e-9) == 0
    assert relieving(1.0) > 0


def test_a_note_is_only_for_what_would_not_have_been_chosen_anyhow() -> None:
    attempts, best = first_round(flat)
    found = diagnosis(("memory-latency", 1.0), basis="timed")
    unsteered = propose(observe(attempts, diagnosis(("memory-latency", 1e-9), basis="timed"), best), 16)
    anyhow = {c.id for c in unsteered[:8]}  # the half around the best
    assert not anyhow & {c.id for c in noted(propose(observe(attempts, found, best), 16))}


@pytest.mark.parametrize("diagnosed", [None, "of a chat candidate"])
def test_a_diagnosis_of_nothing_it_knows_changes_nothing(diagnosed: str | None) -> None:
    attempts, _ = first_round(flat)
    found = diagnosis(("memory-latency", 0.9))
    plain = propose(observe(attempts, None, None))
    assert [c.id for c in propose(observe(attempts, found, diagnosed))] == [c.id for c in plain]


def test_steering_can_be_turned_off() -> None:
    attempts, best = first_round(flat)
    found = diagnosis(("l2-bound", 0.9), ("epilogue-bound", 0.5))
    off = propose(observe(attempts, found, best), steer=False)
    assert [c.id for c in off] == [c.id for c in propose(observe(attempts, None, None), steer=False)]
    assert noted(off) == []
    assert [c.id for c in propose(observe(attempts, found, best))] != [c.id for c in off]


def test_equal_observations_get_equal_answers() -> None:
    attempts, best = first_round(flat)
    seen = observe(attempts, diagnosis(("memory-latency", 0.5), ("l2-bound", 0.2)), best)
    assert SchedulePolicy(families(LONG.arch)).propose(seen, 8) == propose(seen)


def test_a_policy_goes_on_when_all_that_relieves_was_tried() -> None:
    pool, parent = pool_of(LONG), entry(HOPPER)
    neighbours = Neighbourhood(parent, pool).relieving("memory-latency")
    attempts = [attempt(parent, 10.0), *(attempt(one, 12.0) for one in neighbours)]
    seen = observe(attempts, diagnosis(("memory-latency", 0.9)), attempts[0].candidate_id)
    proposed = propose(seen)
    assert len(proposed) == 8
    assert noted(proposed) == []


def test_a_true_diagnosis_finds_what_it_says_sooner() -> None:
    """True times depend only on bytes in flight, of which the leader has few; the prior does not model that.

    One round draws few of the leader's neighbours, so that rounds after eight different beginnings are counted together.
    """
    parent = entry(HOPPER, stages=2, block_n=64)
    keys = {one.key for one in Neighbourhood(parent, pool_of(LONG)).relieving("memory-latency")}

    def deeper(seed: int, steer: bool) -> int:
        rng = np.random.default_rng(seed)
        others = [pool_of(LONG).entries[int(i)] for i in rng.choice(len(pool_of(LONG).entries), 12, replace=False)]
        attempts = [attempt(parent, 8.0), *(attempt(other, 9.0 + 0.1 * rng.random()) for other in others)]
        seen = observe(attempts, diagnosis(("memory-latency", 0.8)), attempts[0].candidate_id)
        written = [pool_of(LONG).entry(c.origin.schedule or {}) for c in propose(seen, 16, steer=steer)]
        return sum(one is not None and one.key in keys for one in written)

    assert sum(deeper(seed, True) for seed in range(8)) > sum(deeper(seed, False) for seed in range(8))


def test_steering_costs_little() -> None:
    attempts, _ = first_round(flat)
    names = [name for name, moves in RELIEFS.items() if moves][:8]
    found = diagnosis(*((name, 0.5) for name in names))

    def least_s(steer: bool) -> float:
        spent = []
        for one in attempts[:5]:  # each with neighbours that are not in the pool yet
            started = time.process_time()
            propose(observe(attempts, found, one.candidate_id), steer=steer)
            spent.append(time.process_time() - started)
        return min(spent)

    assert least_s(True) < least_s(False) + 0.5
