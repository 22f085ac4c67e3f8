"""The observation of a round, from the steps so far, with earlier kernels for contrast. Pure."""

import math
from collections.abc import Callable, Sequence

from cudal2_agent.agent.observe.failures import unrepaired
from cudal2_agent.agent.observe.ranking import Ranked, leader, newest_written
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.profile import Difference, Profile
from cudal2_agent.contract.records.trajectory import Exemplar, Newest, Observation, RunRecord, Step
from cudal2_agent.contract.reward.contrast import MIN_WIDTH, draw_contrast
from cudal2_agent.contract.reward.speedup import TIE

Explain = Callable[[Profile, Profile], tuple[Difference, ...]]
EXEMPLARS = 2
RECENT = 4
FAILURES = 4


def choose_exemplars(
    ranked: Sequence[Ranked], count: int, seed: int | str, shown: AnyCandidate | None = None
) -> tuple[Exemplar, ...]:
    """At most `count` candidates of different buckets and different sources, best bucket first.

    `shown`: a candidate that the prompt shows already. It is not chosen, and the chosen ones differ from it.
    """
    measured = any(one.trusted for one in ranked)
    narrowest = MIN_WIDTH if measured else math.log(1 + TIE)
    drawn = draw_contrast(_scored(ranked), count, seed, _source_of, shown.source if shown else None, min_width=narrowest)
    return tuple(Exemplar(candidate=one.step.candidate, attempt=one.attempt, bucket=number) for number, one in drawn)


def recent_right(ranked: Sequence[Ranked], count: int, shown: AnyCandidate | None = None) -> tuple[AnyCandidate, ...]:
    """At most `count` candidates that were found right, latest first. `shown`: a candidate that the prompt shows already.

    Kernels written from a schedule are left out: the axes of their schedules say what differs.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}.values()
    right = [*_comparable([one for one in latest if one.plausible]), *(one for one in latest if _untimed(one))]
    free = [one for one in right if one.step.candidate.origin.schedule is None and one.step.candidate != shown]
    return tuple(one.step.candidate for one in sorted(free, key=lambda one: -one.step.index)[:count])


def _untimed(one: Ranked) -> bool:
    """Whether it was executed and found right, and not timed."""
    return one.proven and one.attempt.time_us is None


def _source_of(one: Ranked) -> str:
    return one.step.candidate.source


def _scored(ranked: Sequence[Ranked]) -> list[tuple[float, Ranked]]:
    """Each source that passed, with its score. A candidate counts by its latest evaluation, equal sources by the best.

    The score is the log of the speedup over AutoTuning where all have one, otherwise −log of the time. Where nothing was
    measured, the modelled time takes its place; there a candidate that was not executed counts only where none was.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}.values()
    trusted = _comparable([one for one in latest if one.plausible])
    paired = [(math.log(one.attempt.speedup), one) for one in trusted if one.attempt.speedup is not None]
    if trusted:
        scored = paired if len(paired) == len(trusted) else [(-math.log(one.time_us), one) for one in trusted]
    else:
        right = [one for one in latest if one.proven] or latest
        scored = [(-math.log(one.predicted_us), one) for one in right if one.estimated]
    scored.sort(key=lambda pair: pair[0])
    return list({one.step.candidate.source: (score, one) for score, one in scored}.values())


def _comparable(plausible: Sequence[Ranked]) -> list[Ranked]:
    """Without the candidates that wait for a second witness and are faster than every trusted one."""
    best_us = min((one.time_us for one in plausible if one.trusted), default=math.inf)
    return [one for one in plausible if one.trusted or one.time_us >= best_us]


def in_hand(ranked: Sequence[Ranked]) -> Step | None:
    """The step that the next round starts from: the leader's, or else the last."""
    best = leader(ranked)
    return (best or ranked[-1]).step if ranked else None


def observe(
    run: RunRecord,
    ranked: Sequence[Ranked],
    number: int,
    hits: Sequence[Hit],
    explain: Explain,
    *,
    seconds_left: float | None,
    candidates_left: int | None = None,
    reads_code: bool,
    cutlass: bool = False,
) -> Observation:
    """The observation of round `number`. Only policies that read code get sources other than the leader's. `cutlass`: whether
    the sandbox builds it.
    """
    step = in_hand(ranked)
    proven = step if step and step.evaluation.passed else None
    best = proven.candidate if proven else None
    return Observation(
        task=run.task,
        chip=run.chip,
        round=number,
        seed=run.seed,
        attempts=tuple(one.attempt for one in ranked),
        best=best,
        best_evaluation=proven.evaluation if proven else None,
        diagnosis=step.diagnosis if step else None,
        diagnosed=step.candidate.id if step and step.diagnosis else None,
        profile=step.profile if step else None,
        differences=differences(ranked, step, explain),
        newest=newest(ranked, step, explain) if reads_code else None,
        exemplars=choose_exemplars(ranked, EXEMPLARS, f"{run.seed}-{number}", best) if reads_code else (),
        recent=recent_right(ranked, RECENT, best) if reads_code else (),
        failures=unrepaired(ranked, FAILURES) if reads_code else (),
        hits=tuple(hits),
        seconds_left=seconds_left,
        candidates_left=candidates_left,
        cutlass=cutlass,
    )


def newest(ranked: Sequence[Ranked], hand: Step | None, explain: Explain) -> Newest | None:
    """What limits the last round's kernel where it is not the one in hand, beside that one's profile."""
    found = newest_written(ranked)
    if found is None or hand is None or found.step.diagnosis is None or found.step.candidate.id == hand.candidate.id:
        return None
    before, after = hand.profile, found.step.profile
    changed = explain(before, after) if before and after else ()
    return Newest(candidate_id=found.step.candidate.id, diagnosis=found.step.diagnosis, differences=changed)


def differences(ranked: Sequence[Ranked], step: Step | None, explain: Explain) -> tuple[Difference, ...]:
    """What changed from the profile of the fastest other candidate to this step's profile."""
    if step is None or step.profile is None:
        return ()
    own_id = step.candidate.id
    others = [one for one in ranked if one.step.profile and one.plausible and one.attempt.candidate_id != own_id]
    if not others:
        return ()
    before = min(others, key=lambda one: one.time_us).step.profile
    assert before is not None
    return explain(before, step.profile)
