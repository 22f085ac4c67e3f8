"""What the schedule policy reaches on a task: a kept result of the same device, else its first schedule."""

from cudal2_agent.agent.bench.models.bench_figures import Reached, Yardstick, baselines_of, predicted, reached
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.store.store import Store


def yardstick(task: GemmTask, sandbox: Sandbox, store: Store) -> Yardstick:
    """The schedule policy's time and the baselines' times, where they are known.

    Raises: MachineError, WorkerError.
    """
    kept = _kept(task, sandbox, store)
    return kept if kept is not None else _first_schedule(task, sandbox)


def _kept(task: GemmTask, sandbox: Sandbox, store: Store) -> Yardstick | None:
    """The fastest winner of a campaign's race on the same device; None where there is none."""
    environment = sandbox.environment
    if environment is None:
        return None
    found = [one for one in store.results() if one.task == task and one.environment == environment.key]
    timed = [(one.best.time_us, one.baselines_us) for one in found if one.best is not None]
    if not timed:
        return None
    time_us, baselines_us = min(timed, key=lambda one: one[0])
    return Yardstick(schedule=Reached(us=time_us, basis="measured", by="campaign"), baselines_us=baselines_us)


def _first_schedule(task: GemmTask, sandbox: Sandbox) -> Yardstick:
    """The schedule that the prior puts first, measured on a GPU and predicted elsewhere."""
    observation = Observation(task=task, chip=sandbox.chip, round=1, seed=0)
    proposed = SchedulePolicy(families(task.arch), seed=0).propose(observation, 1)
    outcomes = [outcome for _, outcome in sandbox.build(proposed, task)]
    built = outcomes[0] if outcomes else None
    if not isinstance(built, Built):
        return Yardstick()
    if sandbox.can_measure:
        evaluation = sandbox.evaluate(built, task, "quick")
        return Yardstick(schedule=reached(evaluation), baselines_us=baselines_of(evaluation))
    return Yardstick(schedule=_as_of_a_model(proposed[0].source, task, sandbox) or predicted(sandbox.predict(built, task)))


def _as_of_a_model(source: str, task: GemmTask, sandbox: Sandbox) -> Reached | None:
    """The time of a schedule's source by the same model that predicts a language model's kernels; None where there is none."""
    candidate = Candidate.from_source(source, Origin(policy="schedule"))
    [(_, built)] = sandbox.build([candidate], task)
    return reached(sandbox.evaluate(built, task, "quick")) if isinstance(built, Built) else None
