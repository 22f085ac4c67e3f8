"""What becomes of the proposals for one task: all arms propose, each candidate is built and screened once, the best race twice.

The time of a candidate is the same for all arms that propose it, and all times come from one process and one ruler. The race
decides between candidates that are near each other: screened times alone would flatter an arm with many candidates, because
the best of short measurements are too good. What the race chose is measured in a second race, for the same reason.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event, Lock

from cudal2_agent.agent.bench.proposals.arms import BenchArm
from cudal2_agent.agent.bench.proposals.proposal_figures import contenders
from cudal2_agent.agent.bench.proposals.proposal_rows import ArmProposals, BenchSize, JudgedCandidate, ProposalRow
from cudal2_agent.agent.observe.attempts import outcome_of
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.protocols import Policy, Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation, Measured, Unmeasured
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.reward.reward import beyond_roofline
from cudal2_agent.contract.reward.speedup import ratio_over

RACE_MARGIN = 1.1  # candidates that the screen found so much slower than the best do not race: their screened ratio stands
MAX_FINALISTS = 16
FASTEST = 2  # candidates of an arm that race: the screen may have misjudged the order of the first two


class SharedScreens:
    """The candidates of a task, each built once and screened once. Safe to use from several threads."""

    def __init__(self, sandbox: Sandbox, task: GemmTask) -> None:
        self._sandbox, self._task = sandbox, task
        self._building, self._screening = Lock(), Lock()
        self._cancel = Event()  # of the build that goes on; each sets its own at its end
        self.stopped = False
        self.candidates: dict[str, AnyCandidate] = {}
        self.outcomes: dict[str, Built | Evaluation] = {}
        self.screened: dict[str, tuple[Evaluation, float]] = {}
        self.prepare_s = 0.0

    def build(self, candidates: Iterable[AnyCandidate]) -> None:
        with self._building:
            new = list({one.id: one for one in candidates if one.id not in self.outcomes}.values())
            self._cancel = Event()
            if not new or self.stopped:
                return
            for place, outcome in self._sandbox.build(new, self._task, self._cancel):
                self.outcomes[new[place].id] = outcome
            self.candidates |= {one.id: one for one in new}

    def stop(self) -> None:
        """End the builds that go on; for another thread. What was not built cannot be screened any more."""
        self.stopped = True
        self._cancel.set()

    def screen(self, ids: Iterable[str]) -> None:
        """The first call prepares operands and baseline, whose seconds are no candidate's."""
        with self._screening:
            new = [name for name in dict.fromkeys(ids) if name not in self.screened]
            self.screened |= {name: (found, 0.0) for name in new if not isinstance(found := self.outcomes[name], Built)}
            built = [found for name in new if isinstance(found := self.outcomes[name], Built)]
            if built and not self.prepare_s and self._sandbox.can_measure:
                begin_s = time.monotonic()
                list(self._sandbox.screen(built[:1], self._task))
                self.prepare_s = time.monotonic() - begin_s
            begin_s = time.monotonic()
            for place, evaluation in self._sandbox.screen(built, self._task) if built else ():
                now_s = time.monotonic()
                gpu_s = now_s - begin_s if self._sandbox.can_measure else 0.0
                self.screened[built[place].candidate.id] = (evaluation, gpu_s)
                begin_s = now_s

    def ratio(self, name: str) -> float | None:
        """Screened, over cuBLASLt-AutoTuning; None for what failed or was not measured, and for a time beyond the roofline."""
        return plausible_ratio(self.screened[name][0], self._task, self._sandbox)

    def race(self, ids: Sequence[str]) -> dict[str, Evaluation]:
        built = [found for name in ids if isinstance(found := self.outcomes[name], Built)]
        return dict(zip(ids, self._sandbox.race(built, self._task), strict=True)) if built else {}


class TaskBench:
    """`agent.bench.bench_engine.BenchJob`. `known`: gives the schedules that led earlier runs of the task."""

    def __init__(
        self,
        task: GemmTask,
        arms: Sequence[BenchArm],
        size: BenchSize,
        seed: int,
        sandbox: Sandbox,
        known: Callable[[], Sequence[AnyCandidate]],
        emit: Emit,
        commit: str = "",
    ) -> None:
        self.title = task.shape
        self._task, self._size, self._seed, self._sandbox = task, size, seed, sandbox
        self._known_of, self._emit, self._commit = known, emit, commit
        self._shared = SharedScreens(sandbox, task)
        self._arms = [ArmSeat(arm, task, size, seed, sandbox) for arm in arms]
        self._known: tuple[str, ...] = ()

    def prepare(self) -> None:
        """The first round of every arm; what it holds is built, and so are the schedules that are known to be good."""
        best = self._known_of()
        self._known = tuple(dict.fromkeys(one.id for one in best))
        rounds = [arm.propose({}) for arm in self._arms]
        self._shared.build([*best, *(one for proposed in rounds for one in proposed)])

    def stop(self) -> None:
        self._shared.stop()

    def run(self) -> ProposalRow:
        """The row, and a notice for each arm that failed. Raises: MachineError, WorkerError."""
        row = self._measured()
        for arm in row.arms:
            if arm.error:
                self._emit(Notice(message=f"arm {arm.name} at {self.title}: {arm.error}"))
        return row

    def _measured(self) -> ProposalRow:
        """Screen what was built, let the arms search on, race the best."""
        begin_s = time.monotonic()
        self._shared.screen([*self._known, *(name for arm in self._arms for name in arm.tried)])
        if self._size.searches and self._arms:
            with ThreadPoolExecutor(len(self._arms)) as pool:
                try:
                    list(pool.map(self._search, self._arms))
                except BaseException:
                    self._shared.stop()  # so that the other arms end
                    raise
        race_begin_s = time.monotonic()
        raced = self._shared.race(self._finalists()) if self._sandbox.can_measure else {}
        row = self._row(raced, {}, begin_s, race_begin_s)
        confirmed = self._shared.race(contenders(row, RACE_MARGIN)) if raced else {}
        return self._row(raced, confirmed, begin_s, race_begin_s) if confirmed else row

    def _row(
        self,
        raced: Mapping[str, Evaluation],
        confirmed: Mapping[str, Evaluation],
        begin_s: float,
        race_begin_s: float,
    ) -> ProposalRow:
        environment = self._sandbox.environment
        return ProposalRow(
            task=self._task,
            chip=self._sandbox.chip.name,
            environment=environment.key if environment else None,
            basis="measured" if self._sandbox.can_measure else "predicted",
            size=self._size,
            seed=self._seed,
            arms=tuple(arm.record() for arm in self._arms),
            candidates=tuple(self._judged(raced, confirmed)),
            known=self._known,
            prepare_s=self._shared.prepare_s,
            race_s=time.monotonic() - race_begin_s,
            seconds=time.monotonic() - begin_s,
            commit=self._commit,
            finished_at=datetime.now(UTC),
        )

    def _search(self, arm: "ArmSeat") -> None:
        """The further rounds of an arm. While the GPU works for one arm, the others propose and build."""
        while not self._shared.stopped and (proposed := arm.propose(self._evaluations(arm.tried))):
            self._shared.build(proposed)
            if not self._shared.stopped:
                self._shared.screen([one.id for one in proposed])

    def _evaluations(self, ids: Iterable[str]) -> Mapping[str, Evaluation]:
        return {name: self._shared.screened[name][0] for name in ids}

    def _finalists(self) -> list[str]:
        """The first proposal of each arm, and its fastest of the first round and of all; the fastest of the known ones."""
        ratios = {name: ratio for name in self._shared.screened if (ratio := self._shared.ratio(name)) is not None}
        groups: list[Sequence[str]] = [self._known]
        for arm in self._arms:
            first = arm.tried[: self._size.count]
            groups += [first[:1], first, arm.tried]
        chosen = {
            name for group in groups for name in sorted(set(group) & ratios.keys(), key=lambda name: -ratios[name])[:FASTEST]
        }
        limit = max(ratios.values(), default=0.0) / RACE_MARGIN
        return sorted((name for name in chosen if ratios[name] >= limit), key=lambda name: -ratios[name])[:MAX_FINALISTS]

    def _judged(self, raced: Mapping[str, Evaluation], confirmed: Mapping[str, Evaluation]) -> Iterator[JudgedCandidate]:
        for name, candidate in self._shared.candidates.items():
            evaluation, gpu_s = self._shared.screened[name]
            outcome, again, last = self._shared.outcomes[name], raced.get(name), confirmed.get(name)
            again = last if last is not None and last.failed else again
            yield JudgedCandidate(
                candidate_id=name,
                schedule=candidate.origin.schedule,
                status=evaluation.status,
                fault=again.fault if again is not None and again.failed else evaluation.fault,
                screened=self._shared.ratio(name),
                screened_us=evaluation.time_us,
                race_status=None if again is None else again.status,
                raced=None if again is None else plausible_ratio(again, self._task, self._sandbox),
                raced_us=None if again is None else again.time_us,
                confirmed=None if last is None else plausible_ratio(last, self._task, self._sandbox),
                predicted_us=_modelled_us(evaluation),
                build_s=outcome.seconds if isinstance(outcome, Built) else 0.0,
                gpu_s=gpu_s,
            )


class ArmSeat:
    """An arm at one task. What its policy raises ends the arm, not the bench."""

    def __init__(self, arm: BenchArm, task: GemmTask, size: BenchSize, seed: int, sandbox: Sandbox) -> None:
        self._arm, self._task, self._size, self._seed, self._sandbox = arm, task, size, seed, sandbox
        self._policy: Policy | None = None
        self._candidates: dict[str, AnyCandidate] = {}
        self._rounds: list[tuple[str, ...]] = []
        self._seconds: list[float] = []
        self._error = ""

    @property
    def tried(self) -> list[str]:
        return list(self._candidates)

    def propose(self, evaluations: Mapping[str, Evaluation]) -> list[AnyCandidate]:
        """The next round; none once the budget is spent, and where the arm has nothing new. `evaluations`: of what it tried."""
        count = min(self._size.count, self._size.budget - len(self._candidates))
        if self._error or count < 1:
            return []
        begin_s = time.monotonic()
        attempts = tuple(outcome_of(one, evaluations[name]) for name, one in self._candidates.items())
        seen = Observation(
            task=self._task, chip=self._sandbox.chip, round=len(self._rounds) + 1, seed=self._seed, attempts=attempts
        )
        proposed: Sequence[AnyCandidate] = ()
        try:
            self._policy = self._policy or self._arm.open(self._task.arch, self._seed)
            proposed = self._policy.propose(seen, count)
        except Exception as exc:  # noqa: BLE001 (whatever a policy under test raises is its failure)
            self._error = f"{type(exc).__name__}: {exc}"
        new = list({one.id: one for one in proposed if one.id not in self._candidates}.values())[:count]
        self._candidates |= {one.id: one for one in new}
        if new:
            self._rounds.append(tuple(one.id for one in new))
            self._seconds.append(time.monotonic() - begin_s)
        return new

    def record(self) -> ArmProposals:
        rounds, seconds = tuple(self._rounds), tuple(self._seconds)
        return ArmProposals(name=self._arm.name, note=self._arm.note, rounds=rounds, propose_s=seconds, error=self._error)


def plausible_ratio(evaluation: Evaluation, task: GemmTask, sandbox: Sandbox) -> float | None:
    """Paired, over cuBLASLt-AutoTuning; None where nothing was measured, and where the time is beyond the roofline."""
    if not isinstance(evaluation, Measured) or beyond_roofline(evaluation, task, sandbox.chip):
        return None
    return ratio_over(evaluation, AUTOTUNED)


def _modelled_us(evaluation: Evaluation) -> float | None:
    """None where only the roofline stands in for a prediction."""
    is_floor = isinstance(evaluation, Unmeasured) and evaluation.prediction.is_floor
    return None if is_floor else evaluation.predicted_us
