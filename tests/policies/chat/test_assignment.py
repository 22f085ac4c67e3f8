"""The exemplars that each sample is shown."""

import random

from cudal2_agent.contract.records.trajectory import Attempt, Exemplar
from cudal2_agent.policies.chat.assignment import SHOWN_EXEMPLARS, assign
from tests.policies.chat.conversing import candidate, observe, options


def exemplar(number: int, bucket: int) -> Exemplar:
    one = candidate(number)
    attempt = Attempt(candidate_id=one.id, policy="chat", schedule=None, status="measured", time_us=10.0 - bucket)
    return Exemplar(candidate=one, attempt=attempt, bucket=bucket)


EXEMPLARS = tuple(exemplar(number, number % 3) for number in range(6))


def buckets(round: int = 1, seed: int = 0) -> list[tuple[int, ...]]:
    assigned = assign(observe(exemplars=EXEMPLARS, round=round), options(samples=16), 16, seed)
    return [tuple(one.bucket for one in each.exemplars) for each in assigned]


def test_exemplars_come_from_different_buckets_the_better_first() -> None:
    for shown in buckets():
        assert len(shown) == SHOWN_EXEMPLARS
        assert list(shown) == sorted(set(shown), reverse=True)


def test_samples_see_different_exemplars_and_the_same_ones_again() -> None:
    assigned = assign(observe(exemplars=EXEMPLARS), options(samples=16), 16, 0)
    assert len({tuple(one.candidate.id for one in each.exemplars) for each in assigned}) > 3
    assert buckets() == buckets()
    assert buckets() != buckets(seed=1)
    assert buckets() != buckets(round=2)


def test_the_time_left_changes_nothing() -> None:
    early, late = (observe(exemplars=EXEMPLARS, seconds_left=left) for left in (100.0, 7.0))
    assert assign(early, options(), 3, 0) == assign(late, options(), 3, 0)


def test_one_bucket_fills_up_from_itself() -> None:
    same = tuple(exemplar(number, 1) for number in range(4))
    shown = assign(observe(exemplars=same), options(), 1, 0)[0].exemplars
    assert len({one.candidate.id for one in shown}) == SHOWN_EXEMPLARS


def test_the_best_kernel_is_no_exemplar_of_itself() -> None:
    observation = observe(exemplars=EXEMPLARS, best=EXEMPLARS[0].candidate)
    shown = {one.candidate.id for each in assign(observation, options(samples=16), 16, 0) for one in each.exemplars}
    assert EXEMPLARS[0].candidate.id not in shown


def test_the_dice_are_nobody_elses() -> None:
    random.seed(1)
    first = buckets()
    random.seed(2)
    assert buckets() == first
