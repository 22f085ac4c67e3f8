"""Explains the slowest results by counters: Nsight Compute profiles the winner and cuBLASLt's kernel of the same race.

Covered: winners whose steps are in the store. Not covered: programmatic launch, which the profiler makes ordinary; clocks and
caches as they are in a race. The counters name a bottleneck; they are no measurement of time.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from cudal2_agent.agent.campaign.report.figures import slowest
from cudal2_agent.agent.campaign.report.panel import kinds_of
from cudal2_agent.agent.campaign.report.reasons import explanation
from cudal2_agent.agent.campaign.result_files import counting
from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable, UsageError
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.campaign import Explanation, ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.speedup import baseline_of
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built
from cudal2_agent.sandbox.diagnosis.differences import explain as differences_between
from cudal2_agent.store.campaign_results import StoredResult, replace_result
from cudal2_agent.store.store import Store


class CountingSandbox(Sandbox, Protocol):
    """A sandbox that also profiles kernels of cuBLASLt."""

    def profile_library(self, detail: str, task: GemmTask) -> Profile: ...


class Explained(NamedTuple):
    """A row, with its explanation or the reason why it has none."""

    row: ShapeResult
    why_not: str = ""


def worst_of(stored: Sequence[StoredResult], count: int, environment: str | None = None) -> list[StoredResult]:
    """The slowest results that count, `count` of each mode, layout and type. Raises: UsageError, as `counting`."""
    rows = counting([one.result for one in stored], environment)
    slow = {(row.task, row.finished_at) for members in kinds_of(rows).values() for row in slowest(members, count)}
    return [one for one in stored if (one.result.task, one.result.finished_at) in slow]


def explain_rows(store: Store, sandbox: CountingSandbox, wanted: Sequence[StoredResult]) -> Iterator[Explained]:
    """Explain rows, one after another; each is in the store when it is yielded. A row that has an explanation keeps it.

    Raises: ProfilerUnavailable where nothing can be profiled here.
    """
    if not sandbox.can_measure:
        raise ProfilerUnavailable("there is no GPU here whose counters could be read; run this on a machine with one")
    for one in wanted:
        row = one.result
        if row.explained is None:
            try:
                row = row.model_copy(update={"explained": _explained(store, sandbox, row)})
            except (ProfileFailed, UsageError) as exc:
                yield Explained(row, str(exc))
                continue
            with store.writing() as connection:
                replace_result(connection, one.key, row)
        yield Explained(row)


def _explained(store: Store, sandbox: CountingSandbox, row: ShapeResult) -> Explanation:
    """Profile a winner, record that with its step, and profile cuBLASLt's kernel. Raises: ProfileFailed, UsageError."""
    step = _winner(store, row)
    [(_, built)] = sandbox.build([step.candidate], row.task)
    if not isinstance(built, Built):
        raise ProfileFailed(f"the kernel could not be built again: {built.headline}")
    profile = sandbox.profile(built, row.task)
    diagnosis = diagnose_built(built, row.task, sandbox.chip, step.evaluation, profile)
    store.record_step(step.model_copy(update={"profile": profile, "diagnosis": diagnosis}))
    library, why_not = _library(sandbox, step, row.task)
    return explanation(
        profile,
        diagnosis,
        environment=sandbox.environment.key if sandbox.environment else "",
        library=library,
        why_not=why_not,
        differences=differences_between(library, profile) if library else (),
    )


def _winner(store: Store, row: ShapeResult) -> Step:
    """The winner's step. Raises: UsageError where the store lacks it."""
    missing = f"the steps of run {row.run_id} are not in this store; add them with `cudal2-agent trajectories import`"
    if row.best is None or row.run_id is None:
        raise UsageError("the row names no kernel of a run")
    try:
        store.run(row.run_id)
    except UsageError as exc:
        raise UsageError(missing) from exc
    found = next((step for step in store.steps(row.run_id) if step.index == row.best.step_index), None)
    if found is None:
        raise UsageError(missing)
    return found


def _library(sandbox: CountingSandbox, step: Step, task: GemmTask) -> tuple[Profile | None, str]:
    """The profile of the algorithm that the winner raced against, or why there is none."""
    measured = step.evaluation
    timing = baseline_of(measured, AUTOTUNED) if isinstance(measured, Measured) else None
    if timing is None or not timing.detail:
        return None, "the race does not name cuBLASLt's algorithm"
    try:
        return sandbox.profile_library(timing.detail, task), ""
    except ProfileFailed as exc:
        return None, f"cuBLASLt's kernel could not be profiled: {exc}"
