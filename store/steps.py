"""Trajectories as JSON lines, one step per line, each self-contained. Schema: docs/internals/trajectories.md."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from cudal2_agent.contract.base import Record, RunId
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.trajectory import Observation, Trajectory


class ExportedStep(Record):
    """One line of an export: task, observation, candidate, evaluation and reward of a step.

    `exchange`: the one that gave the candidate. `others`: those that gave none and belong here, such as calls of tools and
    replies in a wrong form; empty in lines of older versions.
    """

    schema_version: Literal[1] = 1
    run_id: RunId
    index: int
    round: int
    seed: int
    task: Task
    chip: Chip
    observation: Observation
    candidate_id: str
    candidate: AnyCandidate
    evaluation: Evaluation
    diagnosis: Diagnosis | None
    profile: Profile | None = None
    exchange: Exchange | None = None
    others: tuple[Exchange, ...] = ()
    reward: float | None
    seconds: dict[str, float]
    versions: dict[str, str]
    created_at: datetime


def export_steps(trajectory: Trajectory) -> Iterator[ExportedStep]:
    """The steps of a trajectory in order, each with its observation, its exchange and the fields of its run."""
    run = trajectory.run
    exchange_of = {id_: exchange for exchange in trajectory.exchanges for id_ in exchange.candidate_ids}
    others = exchanges_without_candidate(trajectory)
    for step in trajectory.steps:
        yield ExportedStep(
            run_id=step.run_id,
            index=step.index,
            round=step.round,
            seed=run.seed,
            task=run.task,
            chip=run.chip,
            observation=trajectory.observations[step.observation_id],
            candidate_id=step.candidate.id,
            candidate=step.candidate,
            evaluation=step.evaluation,
            diagnosis=step.diagnosis,
            profile=step.profile,
            exchange=exchange_of.get(step.candidate.id),
            others=others.get(step.index, ()),
            reward=step.reward,
            seconds=step.seconds,
            versions=run.versions,
            created_at=step.created_at,
        )


def exchanges_without_candidate(trajectory: Trajectory) -> dict[int, tuple[Exchange, ...]]:
    """Step's index → the exchanges that gave no candidate and travel with it: of its round, and of rounds without a candidate
    before it. The first step of a round has them; those behind the last one travel with the last step.

    Of a round whose candidates are not in the trajectory they are left out.
    """
    first: dict[int, int] = {}
    for step in trajectory.steps:
        first.setdefault(step.round, step.index)
    fruitful = {exchange.round for exchange in trajectory.exchanges if exchange.candidate_ids}
    found: dict[int, tuple[Exchange, ...]] = {}
    for exchange in trajectory.exchanges:
        if exchange.candidate_ids or not first or (exchange.round in fruitful and exchange.round not in first):
            continue
        later = [number for number in first if number >= exchange.round]
        place = first[min(later)] if later else trajectory.steps[-1].index
        found[place] = (*found.get(place, ()), exchange)
    return found


def to_line(step: ExportedStep) -> str:
    """One line of JSON without a newline; NaN and infinities are strings, which strict readers accept."""
    return step.model_dump_json()
