"""Contrastive exemplars: different buckets, different sources, the better ones more often, the same for the same seed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.agent.observe.observation import choose_exemplars, newest, recent_right
from cudal2_agent.agent.observe.ranking import Ranked, rank
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation, Prediction, Unmeasured, Witness
from cudal2_agent.contract.records.profile import Difference, Profile
from tests.doubles import CHIP, INSPECTION, TASK, candidate, measured, number_of, step, unmeasured


def ranked(*evaluations: Evaluation) -> list[Ranked]:
    """One candidate each, numbered from 0."""
    return [rank(step(n, n, evaluation=evaluation), TASK, CHIP) for n, evaluation in enumerate(evaluations)]


def chosen(history: list[Ranked], count: int = 2, seed: int | str = 0, shown: Candidate | None = None) -> list[int]:
    return [number_of(exemplar.candidate) for exemplar in choose_exemplars(history, count, seed, shown)]


def test_two_exemplars_contrast() -> None:
    """Two groups of similar times: a draw never takes two of one group."""
    history = ranked(*(measured(us) for us in (5.0, 5.01, 5.02, 9.0, 9.01)))
    for seed in range(50):
        better, worse = choose_exemplars(history, 2, seed)
        assert better.bucket > worse.bucket
        assert better.attempt.time_us is not None
        assert worse.attempt.time_us is not None
        assert better.attempt.time_us < 6 < worse.attempt.time_us


def test_the_better_bucket_is_drawn_more_often_and_the_worse_ones_too() -> None:
    history = ranked(*(measured(us) for us in (5.0, 8.0, 12.0)))  # a bucket each
    drawn = Counter(chosen(history, 1, seed)[0] for seed in range(400))
    assert drawn[0] > drawn[1] > drawn[2] > 0


def test_the_draw_follows_the_exponential_law() -> None:
    """Two buckets about 1.25 temperatures apart: frequencies follow the exponential weights within the error of 2000 draws."""
    history = ranked(measured(5.0), measured(10.0))  # ln 2 apart; width ln 2 / 4, temperature ln 2 / 2
    share = sum(chosen(history, 1, seed) == [0] for seed in range(2000)) / 2000
    assert share == pytest.approx(1 / (1 + 2.718281828**-2), abs=0.04)


def test_the_same_seed_chooses_the_same() -> None:
    history = ranked(*(measured(5.0 * 1.1**n) for n in range(20)))
    assert choose_exemplars(history, 3, "7:4") == choose_exemplars(history, 3, "7:4")
    assert len({tuple(chosen(history, 3, seed)) for seed in range(20)}) > 5


def test_the_newest_kernel_is_told_beside_the_leader_unless_it_leads() -> None:
    """Of the last round's kernels the fastest, with what its counters say beside the leader's."""
    finding = Finding(bottleneck="spills", evidence="e", remedy="r", weight=0.25)
    free = [candidate(n).model_copy(update={"origin": Origin(policy="chat")}) for n in range(3)]
    profile = Profile(tool="ncu", metric_set="sm_90", seconds=1.0, launches=())
    told = {"profile": profile, "diagnosis": Diagnosis(basis="counters", findings=(finding,))}

    def history(*times_us: float) -> list[Ranked]:
        steps = [step(n, candidate=free[n], evaluation=measured(us)) for n, us in enumerate(times_us)]
        return [rank(one.model_copy(update={**told, "round": min(one.index, 1)}), TASK, CHIP) for one in steps]

    changed = (Difference(quantity="q", before=1.0, after=2.0, unit="", meaning="m"),)

    slower = history(5.0, 7.0, 6.0)
    seen = newest(slower, slower[0].step, lambda *_: changed)
    assert seen is not None
    assert (seen.candidate_id, seen.diagnosis.findings, len(seen.differences)) == (free[2].id, (finding,), 1)
    faster = history(5.0, 7.0, 4.0)
    assert newest(faster, faster[2].step, lambda *_: changed) is None


def test_like_times_make_one_bucket_and_nothing_makes_none() -> None:
    assert len(chosen(ranked(*(measured(us) for us in (5.0, 5.001, 5.002))), 3)) == 1
    assert chosen([], 2) == []
    assert chosen(ranked(CompileFailed(message="", log="")), 2) == []
    assert chosen(ranked(measured(5.0)), 0) == []


def test_one_hopeless_kernel_does_not_squeeze_the_others_into_one_bucket() -> None:
    history = ranked(*(measured(us) for us in (5.0, 5.3, 5.6, 6.0, 5000.0)))
    buckets = {exemplar.bucket for exemplar in choose_exemplars(history, 9, 0)}
    assert len(buckets) >= 4


def test_what_fails_later_or_is_too_fast_is_no_exemplar() -> None:
    history = [*ranked(measured(5.0), measured(8.0), measured(1e-6))]
    history.append(rank(step(3, 0, evaluation=CompileFailed(message="", log="")), TASK, CHIP))
    assert {n for seed in range(20) for n in chosen(history, 3, seed)} == {1}


def test_without_a_gpu_modelled_times_count_and_floors_do_not() -> None:
    floor = Unmeasured(
        verified_by="nothing", prediction=Prediction(predicted_us=2.0, model="roofline", floor_us=2.0), inspection=INSPECTION
    )
    assert chosen(ranked(unmeasured(5.0), unmeasured(9.0), floor), 3) == [0, 1]
    assert chosen(ranked(unmeasured(5.0), measured(9.0)), 3) == [1]


def test_times_count_where_a_baseline_is_missing_somewhere() -> None:
    """A speedup is never compared with a time: 0 has the better speedup, 1 the better time."""
    odd = measured(9.0, baseline_us=90.0), measured(5.0, baselines=())
    assert chosen(ranked(*odd), 2) == [1, 0]


def test_equal_source_is_shown_once() -> None:
    twin = candidate(0).model_copy(update={"flags": ("-DX",)})
    history = [*ranked(measured(5.0)), rank(step(1, candidate=twin, evaluation=measured(9.0)), TASK, CHIP)]
    assert twin.id != candidate(0).id
    assert len(choose_exemplars(history, 2, 0)) == 1


def test_what_is_shown_anyway_is_not_chosen_but_differed_from() -> None:
    def source(number: int, *lines: str) -> Candidate:
        return candidate(number).model_copy(update={"source": "\n".join((f"// candidate {number}", *lines))})

    best, like, unlike = source(0, "a", "b", "c"), source(1, "a", "b", "d"), source(2, "x", "y", "z", "long")
    history = [rank(step(n, candidate=one, evaluation=measured(5.0)), TASK, CHIP) for n, one in enumerate((best, like, unlike))]
    assert {tuple(chosen(history, 2, seed, shown=best)) for seed in range(10)} == {(2,)}


@given(st.lists(st.floats(min_value=1.0, max_value=1e6), max_size=25), st.integers(0, 6), st.integers())
def test_any_history_gives_distinct_buckets_in_order(times_us: list[float], count: int, seed: int) -> None:
    exemplars = choose_exemplars(ranked(*(measured(us) for us in times_us)), count, seed)
    buckets = [exemplar.bucket for exemplar in exemplars]
    assert buckets == sorted(set(buckets), reverse=True)
    assert len(exemplars) <= count
    assert bool(exemplars) == bool(times_us and count)
    scores = [exemplar.attempt.speedup or 0.0 for exemplar in exemplars]
    assert scores == sorted(scores, reverse=True)


def test_predictions_that_tie_show_no_contrast() -> None:
    close = ranked(unmeasured(5.0, "emulator"), unmeasured(5.12, "emulator"))
    assert all(len(chosen(close, seed=seed)) == 1 for seed in range(20))
    assert len(chosen(ranked(measured(5.0), measured(5.12)))) == 2, "measured times are told apart more finely"


def test_a_kernel_that_was_not_executed_is_no_exemplar_beside_those_that_were_found_right() -> None:
    assert chosen(ranked(unmeasured(2.0), unmeasured(9.0, "emulator"))) == [1]
    assert chosen(ranked(unmeasured(2.0), unmeasured(9.0))) == [0, 1]


def test_the_latest_right_kernels_of_a_model_are_kept_for_differences() -> None:
    evaluations = (unmeasured(5.0, "emulator"), unmeasured(4.0), CompileFailed(message="", log=""), unmeasured(6.0, "emulator"))
    written = [candidate(n).model_copy(update={"origin": Origin(policy="chat")}) for n in range(6)]
    steps = [step(n, candidate=one, evaluation=each) for n, (one, each) in enumerate(zip(written, evaluations, strict=False))]
    steps += [step(4, 7, evaluation=unmeasured(3.0, "emulator")), step(5, candidate=written[5], evaluation=measured(9.0))]
    history = [rank(one, TASK, CHIP) for one in steps]
    shown = [number_of(one) for one in recent_right(history, 4, written[5])]
    assert shown == [3, 0], "right, written by a model, and not the one that is shown already"
    assert len(recent_right(history, 1, written[5])) == 1


def test_a_kernel_that_waits_for_its_proof_and_would_lead_is_not_shown() -> None:
    written = [candidate(n).model_copy(update={"origin": Origin(policy="chat")}) for n in range(3)]
    proved = measured(5.0).model_copy(update={"witness": Witness(status="agreed")})
    evaluations = (proved, measured(4.0), measured(6.0))
    history = [rank(step(n, candidate=written[n], evaluation=each), TASK, CHIP) for n, each in enumerate(evaluations)]
    assert [number_of(one) for one in recent_right(history, 4)] == [2, 0]
