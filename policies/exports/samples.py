"""Training samples: what a policy was asked, what it wrote and what that earned, one per candidate of a run.

A candidate that was measured again counts by its later evaluation. A withheld reward stays None.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import Evaluation, Measured, Unmeasured, Wrong
from cudal2_agent.contract.records.exchange import Exchange, Message, Prompt
from cudal2_agent.contract.records.knowledge import NOTES
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.trajectory import Observation, Step, Trajectory
from cudal2_agent.contract.reward.reward import beyond_roofline, confirmed, gap_closed
from cudal2_agent.contract.reward.speedup import speedup_that_counts
from cudal2_agent.policies.chat.assignment import POLICY, SHOWN_EXEMPLARS, Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.prompts.quoting import inline
from cudal2_agent.policies.exports.counts import ExportCounts
from cudal2_agent.policies.exports.schedule_reply import write_reply
from cudal2_agent.policies.exports.seen import counters_json, hits_of, shown_json

OWN_LICENCE = "Apache-2.0"
FIRST_ROUND = 1

# What a reply to an observation, by its id, is asked for where no chat policy asked; None leaves the step out.
Assign = Callable[[str, Observation], Assignment | None]


class Provenance(Record):
    """Where a sample comes from. Texts are never null, because readers guess the type of a column from its first rows.

    `model`: empty where no language model wrote it. `environment`: empty where nothing was measured.
    `versions`: JSON object of package versions. `cutlass`: the release that the run could retrieve from.
    `licence`: of the kernel and of what the prompt quotes. `turn`: of the request in its conversation. `shown`: JSON list of
    the pieces of knowledge in the prompt with their marks. `counters`: JSON list of the counters that its diagnosis rests on.
    """

    run_id: str
    index: int
    round: int
    observation_id: str
    candidate_id: str
    policy: str
    model: str
    arch: str
    chip: str
    environment: str
    cutlass: str
    versions: str
    created_at: str
    licence: str
    turn: int = 0
    shown: str = "[]"
    counters: str = "[]"


class TrainingSample(Record):
    """One candidate of a run as a model could have written it.

    `prompt` and `completion` are those of the exchange with a chat server; for other policies they are in the same form.
    `verified`: executed, found right, confirmed where that is needed, and not faster than the roofline allows.
    `exemplars`: candidates that the prompt shows for contrast, with their score buckets. Unit of times: microseconds.
    `baseline_us`: cuBLASLt-AutoTuning in the same rounds, of a module the fastest of PyTorch's.
    """

    prompt: tuple[Message, ...]
    completion: str
    reward: float | None
    gap_closed: float | None
    speedup: float | None
    time_us: float | None
    baseline_us: float | None
    outcome: str
    verified: bool
    exemplars: dict[str, int]
    task: Task
    chip: Chip
    provenance: Provenance

    @property
    def group(self) -> tuple[str, str]:
        """Samples of one group answer the same prompt and were measured in the same environment."""
        return Prompt(messages=self.prompt).id, self.provenance.environment


def opening_assignment(_: str, observation: Observation) -> Assignment:
    """An improvement or a first kernel, with the exemplars of the observation."""
    best_id = observation.best.id if observation.best else None
    offered = [exemplar for exemplar in observation.exemplars if exemplar.candidate.id != best_id]
    return Assignment(0, None, tuple(offered[:SHOWN_EXEMPLARS]))


def samples_of(
    trajectory: Trajectory, prompts: Prompts, counts: ExportCounts, assign: Assign = opening_assignment
) -> Iterator[TrainingSample]:
    """The samples of a run in the order in which its candidates were first tried. What is left out is counted.

    A reply that gave several candidates is one sample: that of the candidate with the highest reward.
    """
    run = _SampledRun(trajectory, prompts, assign, counts)
    latest = latest_steps(trajectory.steps)
    counts.left_out["measured_again"] += len(trajectory.steps) - len(latest)
    best = _best_of_replies(latest, exchanges_by_candidate(trajectory))
    counts.left_out["duplicates"] += len(latest) - len(best)
    yield from (sample for step in best if (sample := run.sample(step)))


def latest_steps(steps: Sequence[Step]) -> list[Step]:
    """The last step of each candidate, in the order of the first ones."""
    return list({step.candidate.id: step for step in steps}.values())


def _best_of_replies(steps: Sequence[Step], exchanges: Mapping[str, Exchange]) -> list[Step]:
    """One step per reply, which is the one with the highest reward, and all steps that no reply gave."""
    best: dict[object, Step] = {}
    for step in steps:
        exchange = exchanges.get(step.candidate.id)
        of = exchange.place if exchange else step.index
        if of not in best or _reward_of(step) > _reward_of(best[of]):
            best[of] = step
    chosen = {step.index for step in best.values()}
    return [step for step in steps if step.index in chosen]


def _reward_of(step: Step) -> float:
    return step.reward if step.reward is not None else -math.inf


def environments(steps: Sequence[Step]) -> dict[int, str]:
    """The environment of each step by index.

    A step without a measurement has that of the last measured step before it, else of the first one after it. It is empty
    where nothing was measured.
    """
    own = {step.index: measured.environment.key for step in steps if (measured := _measurement(step.evaluation))}
    held = next(iter(own.values()), "")
    found = {}
    for step in steps:
        held = own.get(step.index, held)
        found[step.index] = held
    return found


def is_verified(step: Step, task: Task, chip: Chip) -> bool:
    """Whether the candidate was executed and found right, with the second witness that a model's kernel needs."""
    evaluation, origin = step.evaluation, step.candidate.origin
    if isinstance(evaluation, Measured):
        proved = confirmed(evaluation, origin) or step.reward is not None  # versions without a witness gave rewards
        return proved and not beyond_roofline(evaluation, task, chip)
    if isinstance(evaluation, Unmeasured):
        return evaluation.passed and (origin.trusted_writer or evaluation.verified_by == "emulator")
    return False


@dataclass(frozen=True)
class _Asked:
    """A prompt, and what it shows: exemplars with their score buckets, and chunks of the knowledge base."""

    messages: tuple[Message, ...]
    exemplars: dict[str, int]
    chunk_ids: tuple[str, ...]


class _SampledRun:
    """One trajectory, with what its samples share. A prompt that was not sent is rendered once for each observation."""

    def __init__(self, trajectory: Trajectory, prompts: Prompts, assign: Assign, counts: ExportCounts) -> None:
        self._trajectory, self._prompts, self._assign, self._counts = trajectory, prompts, assign, counts
        self._environments = environments(trajectory.steps)
        self._exchanges = exchanges_by_candidate(trajectory)
        self._rendered: dict[str, _Asked | None] = {}
        self._hits = hits_of(trajectory)

    def sample(self, step: Step) -> TrainingSample | None:
        """None where nothing was asked, or where the candidate cannot be written as a reply, such as a host candidate."""
        run, evaluation = self._trajectory.run, step.evaluation
        exchange = self._exchanges.get(step.candidate.id)
        observation = self._trajectory.observations[step.observation_id]
        if exchange is None and not self._is_held(observation):
            self._counts.left_out["unseen"] += 1
            return None
        asked = _sent(exchange, step, observation) if exchange else self._opening(step.observation_id, observation)
        if exchange is None and asked is not None and self._is_other_prompt(step, asked):
            self._counts.left_out["unseen"] += 1
            return None
        completion = exchange.reply if exchange and not _by_tools(exchange) else write_reply(step.candidate, observation)
        if asked is None or completion is None:
            self._counts.left_out["unwritable" if completion is None else "no_contrast"] += 1
            return None
        closed = gap_closed(evaluation, run.task, run.chip, step.candidate.origin) if step.reward is not None else None
        return TrainingSample(
            prompt=asked.messages,
            completion=completion,
            reward=step.reward,
            gap_closed=closed,
            speedup=speedup_that_counts(evaluation),
            time_us=evaluation.time_us,
            baseline_us=baseline_us(evaluation),
            outcome=evaluation.status,
            verified=is_verified(step, run.task, run.chip),
            exemplars=asked.exemplars,
            task=run.task,
            chip=run.chip,
            provenance=self._provenance(step, exchange, _quoted(observation, asked.chunk_ids)),
        )

    def _is_held(self, observation: Observation) -> bool:
        """Whether an observation holds what the policy saw. A sweep holds no attempts, and only a first round had none."""
        first = next((step.round for step in self._trajectory.steps if step.index == 0), FIRST_ROUND)
        return bool(observation.attempts) or observation.round <= first

    def _is_other_prompt(self, step: Step, asked: _Asked) -> bool:
        """Whether a chat server was sent another prompt than this one. Its own is not stored."""
        origin = step.candidate.origin
        return origin.policy == POLICY and origin.prompt_hash not in (None, Prompt(messages=asked.messages).id)

    def _opening(self, observation_id: str, observation: Observation) -> _Asked | None:
        """The prompt of the chat policy over an observation; None where nothing is assigned."""
        if observation_id not in self._rendered:
            assignment = self._assign(observation_id, observation)
            self._rendered[observation_id] = self._composed(observation, assignment) if assignment else None
        return self._rendered[observation_id]

    def _composed(self, observation: Observation, assignment: Assignment) -> _Asked:
        composed = self._prompts.first(observation, assignment)
        buckets = {one.candidate.id: one.bucket for one in assignment.exemplars}
        shown = {candidate_id: buckets[candidate_id] for candidate_id in composed.exemplar_ids}
        return _Asked(composed.prompt.messages, shown, composed.chunk_ids)

    def _provenance(self, step: Step, exchange: Exchange | None, quoted: Sequence[str]) -> Provenance:
        run = self._trajectory.run
        return Provenance(
            run_id=run.run_id,
            index=step.index,
            round=step.round,
            observation_id=step.observation_id,
            candidate_id=step.candidate.id,
            policy=step.candidate.origin.policy,
            model=exchange.model if exchange else "",
            arch=run.task.arch.value,
            chip=run.chip.name,
            environment=self._environments[step.index],
            cutlass=run.settings.cutlass,
            versions=json.dumps(run.versions, sort_keys=True),
            created_at=step.created_at.isoformat(timespec="microseconds"),  # whole seconds would be read as a time, not as text
            licence=_licence(step, exchange, quoted),
            turn=exchange.turn if exchange else 0,
            shown=shown_json(exchange, self._hits),
            counters=counters_json(self._trajectory.observations[step.observation_id].profile),
        )


def exchanges_by_candidate(trajectory: Trajectory) -> dict[str, Exchange]:
    """The exchange that wrote each candidate, the first one where several did."""
    return {id_: exchange for exchange in reversed(trajectory.exchanges) for id_ in exchange.candidate_ids}


def _sent(exchange: Exchange, step: Step, observation: Observation) -> _Asked:
    """The prompt that was sent, with what the candidate's origin says that it showed."""
    origin = step.candidate.origin
    buckets = {one.candidate.id: one.bucket for one in observation.exemplars}
    shown = {name: buckets[name] for name in origin.exemplar_ids or () if name in buckets}
    messages = exchange.prompt.messages
    opening = next((place for place, message in enumerate(messages) if message.calls), len(messages))
    return _Asked(messages[:opening], shown, origin.chunk_ids)


def _by_tools(exchange: Exchange) -> bool:
    """Whether the model called tools before this reply, which may then name a kernel of a call in place of its code, or
    handed the kernel in by a call.

    Such a sample has the prompt before the first call, and the candidate as a whole reply.
    """
    return bool(exchange.calls) or any(message.calls for message in exchange.prompt.messages)


def _measurement(evaluation: Evaluation) -> Measured | None:
    return evaluation.refused if isinstance(evaluation, Wrong) else evaluation if isinstance(evaluation, Measured) else None


def baseline_us(evaluation: Evaluation) -> float | None:
    """The paired time of the baseline that counts: the candidate's time multiplied by its speedup."""
    ratio = speedup_that_counts(evaluation)
    return ratio * evaluation.time_us if ratio is not None and evaluation.time_us is not None else None


def _quoted(observation: Observation, chunk_ids: Sequence[str]) -> list[str]:
    """The releases that a prompt quotes, without the notes of this project, and the file of a module's problem."""
    releases = {hit.chunk.release for hit in observation.hits if hit.chunk.id in chunk_ids}
    problem = [f"the problem {inline(observation.task.name)}"] if isinstance(observation.task, ModuleTask) else []
    return [*sorted(releases - {NOTES}), *problem]


def _licence(step: Step, exchange: Exchange | None, quoted: Sequence[str]) -> str:
    own = step.candidate.origin.trusted_writer
    by = f"model {exchange.model}" if exchange else f"policy {step.candidate.origin.policy}"
    code = f"kernel {OWN_LICENCE}" if own else f"kernel under the terms of {by}"
    named = (f"{name} (BSD-3-Clause)" if name.startswith("cutlass") else f"{name} (its own licence)" for name in quoted)
    return "; ".join([code, *(f"prompt quotes {name}" for name in named)])
