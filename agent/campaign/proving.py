"""Proves the winners of a campaign on the emulator. A refuted winner gives way to the next best of its run, which is proved.

The verdict is recorded with the row and with the steps of the candidate. Where the store lacks these, a winner is written again
from its schedule; a refuted one then has no successor.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from cudal2_agent.agent.campaign.campaign_process import Doing, Tell, WorkerOrder, report_job
from cudal2_agent.agent.campaign.winners import baselines_beside, best_launches, deciding_steps
from cudal2_agent.agent.run.witnessing import WitnessVerdict, judged, verdict_of
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Measured, TestResult, Witness
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.reward import reward
from cudal2_agent.policies.schedule.families.registry import written
from cudal2_agent.processes.child import ParentLine
from cudal2_agent.store.campaign_results import ResultFilter, StoredResult, claim_unproved, replace_result
from cudal2_agent.store.store import Store, open_store

LOW_PRIORITY = 19


def run_prover(parent: ParentLine, order: WorkerOrder) -> None:
    """Entry of the process, which gives way to the searches."""
    with suppress(OSError):
        os.nice(LOW_PRIORITY)
    report_job(parent, lambda tell: _prove_while_wanted(order, tell))


def prove_all(store: Store, sandbox: Sandbox, wanted: ResultFilter) -> Iterator[ShapeResult]:
    """Prove the wanted winners, the fastest first. Yields each row with its verdict, which is in the store then."""
    while (stored := _claim(store, wanted)) is not None:
        yield _prove(store, sandbox, stored)


def _prove_while_wanted(order: WorkerOrder, tell: Tell) -> None:
    """Until it is interrupted: winners come as the searches end."""
    wanted = ResultFilter(campaigns=(order.campaign,))
    with open_store(order.settings.store_url) as store, open_sandbox_of(order.arch, order.settings, ignore) as sandbox:
        while True:
            tell(Doing(stage="waiting for winners"))
            if (stored := _claim(store, wanted)) is None:
                time.sleep(1.0)
                continue
            tell(Doing(task=stored.result.task.shape, stage="proving"))
            _prove(store, sandbox, stored)


def _claim(store: Store, wanted: ResultFilter) -> StoredResult | None:
    with store.writing() as connection:
        return claim_unproved(connection, wanted)


def _prove(store: Store, sandbox: Sandbox, stored: StoredResult) -> ShapeResult:
    result = proved(store, sandbox, stored.result)
    with store.writing() as connection:
        replace_result(connection, stored.key, result)
    return result


def proved(store: Store, sandbox: Sandbox, result: ShapeResult) -> ShapeResult:
    """The row after the proof of its winners."""
    stored = _stored(store, result)
    return _proved_by_row(sandbox, result) if stored is None else _proved_by_steps(store, sandbox, result, *stored)


def _stored(store: Store, result: ShapeResult) -> tuple[RunRecord, list[Step]] | None:
    """The run of a row with its steps; None where the store lacks those of the winners."""
    try:
        run = store.run(result.run_id or "")
    except UsageError:
        return None
    steps = store.steps(run.run_id)
    return (run, steps) if set(_by_id(result.best, result.best_without)) <= {step.candidate.id for step in steps} else None


def _by_id(*winners: Winner | None) -> dict[str, Winner]:
    """One kernel may win with and without programmatic launch."""
    return {winner.candidate_id: winner for winner in winners if winner is not None}


def _proved_by_steps(store: Store, sandbox: Sandbox, result: ShapeResult, run: RunRecord, steps: list[Step]) -> ShapeResult:
    """The next best kernels take the place of refuted ones."""
    verdicts, refuted = dict[str, WitnessVerdict](), list[str]()
    task = gemm(run.task, "a row of a campaign")
    while True:
        deciding = deciding_steps(steps, task, run.chip)
        best, best_without = best_launches(deciding)
        winners = _by_id(best, best_without)
        open_ = [id_ for id_ in winners if id_ not in verdicts]
        if not open_:
            break
        for id_ in open_:
            candidate = next(step.candidate for step in deciding if step.candidate.id == id_)
            verdicts[id_] = _verdict(sandbox, task, candidate)
            if isinstance(verdict := verdicts[id_], TestResult):
                refuted.append(_named(id_, verdict))
        steps = _recorded(store, run, steps, verdicts)
    said = [verdict for id_ in winners if isinstance(verdict := verdicts[id_], Witness)]
    if not refuted:  # imported steps lack what the row holds of its winners
        return result.model_copy(update={"witness": _summary(said, refuted)})
    found = {"best": best, "best_without": best_without, "baselines_us": baselines_beside(deciding, best), "explained": None}
    return result.model_copy(update={**found, "witness": _summary(said, refuted)})


def _proved_by_row(sandbox: Sandbox, result: ShapeResult) -> ShapeResult:
    """Where `best` is refuted, `best_without` takes its place: a plain launch is a launch, too."""
    winners = _by_id(result.best, result.best_without)
    verdicts = {id_: _verdict_of_row(sandbox, result, winner) for id_, winner in winners.items()}
    refuted = [_named(id_, verdict) for id_, verdict in verdicts.items() if isinstance(verdict, TestResult)]
    upheld = {id_: verdict for id_, verdict in verdicts.items() if isinstance(verdict, Witness)}
    changes: dict[str, object] = {"witness": _summary(list(upheld.values()), refuted)}
    if refuted:
        best, best_without = (
            one if one is not None and one.candidate_id in upheld else None for one in (result.best, result.best_without)
        )
        changes |= {"best": best or best_without, "best_without": best_without, "explained": None}
    return result.model_copy(update=changes)


def _verdict_of_row(sandbox: Sandbox, result: ShapeResult, winner: Winner) -> WitnessVerdict:
    """The verdict on a winner whose source is written from its schedule, if that gives the measured one."""
    missing = "the winner's step is not in this store"
    if winner.schedule is None:
        return Witness(status="unavailable", reason=missing)
    try:
        candidate = written(winner.schedule, result.task)
    except ValueError as exc:
        return Witness(status="unavailable", reason=f"{missing}, and its schedule cannot be written: {exc}")
    if candidate.id != winner.candidate_id:
        return Witness(status="unavailable", reason=f"{missing}, and its family writes another source today")
    return _verdict(sandbox, result.task, candidate)


def _verdict(sandbox: Sandbox, task: GemmTask, candidate: AnyCandidate) -> WitnessVerdict:
    try:
        [(_, built)] = sandbox.build([candidate], task)
        if not isinstance(built, Built):
            return Witness(status="unavailable", reason=f"the kernel could not be built again: {built.headline}")
        return verdict_of(sandbox.witness(built, task))
    except (MachineError, UsageError) as exc:
        return Witness(status="unavailable", reason=str(exc))


def _named(candidate_id: str, verdict: TestResult) -> str:
    return f"{candidate_id[:8]} {verdict.name}"


def _recorded(store: Store, run: RunRecord, steps: list[Step], verdicts: dict[str, WitnessVerdict]) -> list[Step]:
    """The steps with the verdicts, which are recorded with them."""
    found = []
    for step in steps:
        verdict = verdicts.get(step.candidate.id)
        if verdict is not None and isinstance(step.evaluation, Measured) and step.evaluation.witness is None:
            evaluation = judged(step.evaluation, verdict)
            reward_ = reward(evaluation, run.task, run.chip, step.candidate.origin)
            diagnosis = step.diagnosis if evaluation.passed else None
            step = step.model_copy(update={"evaluation": evaluation, "diagnosis": diagnosis, "reward": reward_})
            store.record_step(step)
        found.append(step)
    return found


def _summary(said: list[Witness], refuted: list[str]) -> str:
    """The weakest verdict of the winners, and which earlier winners were refuted."""
    weakest = max(said, key=lambda one: ("agreed", "in-part", "unavailable").index(one.status), default=None)
    status = weakest.status if weakest else "refuted"
    details = [*([weakest.reason] if weakest and weakest.reason else []), *(f"refuted {one}" for one in refuted)]
    return f"{status}: {'; '.join(details)}" if details else status
