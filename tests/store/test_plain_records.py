"""Plain records: taken apart and put together again they are what they were, and so are their hashes."""

import pytest

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from cudal2_agent.contract.records.trajectory import Attempt, Exemplar, Failure, Observation
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.store.plain_records import (
    candidate_id,
    content_id,
    figures,
    join_observation,
    join_step,
    shared_attempts,
    split_observation,
    split_step,
)
from tests.doubles import OBSERVATION, candidate, measured, step, unmeasured
from tests.doubles.scripted import profile

CHUNK = Chunk(release="r", path="p.cuh", start_line=1, end_line=2, symbol="s", kind="text", text="text of the chunk")


def attempts(count: int) -> tuple[dict[str, object], ...]:
    return tuple({"candidate_id": str(number), "time_us": 1.0 * number} for number in range(count))


def full() -> Observation:
    """An observation with every part that is stored once."""
    best = candidate(1)
    attempt = Attempt(candidate_id="a", policy="scripted", schedule=None, status="measured", time_us=4.0)
    exemplars = tuple(Exemplar(candidate=candidate(number), attempt=attempt, bucket=number) for number in (2, 3))
    failures = (Failure(candidate=candidate(2), evaluation=unmeasured(3.0), repairs=1),)
    hits = (Hit(chunk=CHUNK, score=0.5), Hit(chunk=CHUNK, score=0.25, twins=("other",)))
    changes = {"best": best, "best_evaluation": measured(4.0), "profile": profile(), "exemplars": exemplars}
    recent = (candidate(4), candidate(5))
    return OBSERVATION.model_copy(update={**changes, "failures": failures, "hits": hits, "recent": recent})


@pytest.mark.parametrize("observation", [OBSERVATION, full()], ids=["plain", "full"])
def test_an_observation_is_the_same_again(observation: Observation) -> None:
    plain = observation.model_dump(mode="json")
    rest, own, contents = split_observation(plain)
    again = join_observation(rest, own, lambda place: contents[place].plain)
    assert again == plain
    assert digest(again) == observation.id
    assert Observation.model_validate(again) == observation


def test_parts_carry_the_hash_of_their_content_and_no_source_stays_behind() -> None:
    rest, _, contents = split_observation(full().model_dump(mode="json"))
    assert [one.kind for one in contents] == ["candidate", "profile", *["candidate"] * 5, "chunk", "chunk"]
    assert [content_id(one.kind, one.plain) for one in contents] == [one.id for one in contents]
    assert not [number for number in (1, 4) if candidate(number).source in str(rest)]
    assert CHUNK.text not in str(rest)


def test_an_unknown_field_of_another_version_is_kept() -> None:
    plain = {**OBSERVATION.model_dump(mode="json"), "since_version_9": {"content": 7}}
    rest, own, contents = split_observation(plain)
    assert join_observation(rest, own, lambda place: contents[place].plain) == plain


@pytest.mark.parametrize("of", [candidate(1), HostCandidate(source="x", flags=("-O3",), origin=Origin(policy="host"))])
def test_a_candidates_hash_is_that_of_its_record(of: Candidate | HostCandidate) -> None:
    assert candidate_id(of.model_dump(mode="json")) == of.id


def test_a_step_is_the_same_again() -> None:
    one = step(3, reward=0.25, profile=profile(), evaluation=measured(5.0), seconds={"build": 0.5})
    plain = one.model_dump(mode="json")
    rest, code, counters = split_step(plain)
    columns = {name: plain[name] for name in ("run_id", "index", "round", "observation_id")}
    assert counters is not None
    assert join_step(rest, columns, code.plain, counters.plain) == plain
    assert not columns.keys() & rest.keys()


def test_shared_attempts_end_at_the_first_difference() -> None:
    assert shared_attempts(attempts(3), attempts(5)) == 3
    assert shared_attempts(attempts(5), attempts(3)) == 3
    assert shared_attempts((), attempts(3)) == 0
    changed = [*attempts(2), {"candidate_id": "2", "time_us": 9.0}, *attempts(5)[3:]]
    assert shared_attempts(attempts(5), changed) == 2


def test_figures_are_those_of_the_evaluation() -> None:
    evaluation = measured(5.0)
    assert isinstance(evaluation, Measured)
    found = figures(evaluation.model_dump(mode="json"))
    assert found == (evaluation.time_us, ratio_over(evaluation, AUTOTUNED), evaluation.environment.key)
    assert figures(unmeasured(3.0).model_dump(mode="json")) == (None, None, None)
    assert figures(evaluation.model_copy(update={"baselines": ()}).model_dump(mode="json")).speedup is None
