"""The observation of a round, from the steps so far. Pure."""

from collections.abc import Callable, Sequence

from cudal2_agent.agent.observe.exemplars import choose_exemplars, recent_right
from cudal2_agent.agent.observe.failures import unrepaired
from cudal2_agent.agent.observe.ranking import Ranked, leader
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.profile import Difference, Profile
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step

Explain = Callable[[Profile, Profile], tuple[Difference, ...]]

EXEMPLARS = 2
RECENT = 4
FAILURES = 4


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
    reads_code: bool,
) -> Observation:
    """The observation of round `number`. Only policies that read code get sources other than the leader's."""
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
        exemplars=choose_exemplars(ranked, EXEMPLARS, f"{run.seed}-{number}", best) if reads_code else (),
        recent=recent_right(ranked, RECENT, best) if reads_code else (),
        failures=unrepaired(ranked, FAILURES) if reads_code else (),
        hits=tuple(hits),
        seconds_left=seconds_left,
    )


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
