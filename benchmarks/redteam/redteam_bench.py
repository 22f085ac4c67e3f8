"""One sandbox that evaluates the candidates of the red team one after another and survives them."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.redteam.redteam_table import RedteamRow
from cudal2_agent.contract.errors import Cudal2Error, PlanError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, Origin
from cudal2_agent.contract.records.evaluation import Evaluation, Prediction, Rejected
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import CompileOptions, EmulateOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox
from tests.redteam.case import COMPARED, SEEDED, Case, label, message_of, verdict

ROUNDS = 7  # as a search measures
MESSAGE_CHARS = 240
UNKNOWN = "1ull"
KNOWN_SETS = 64  # operand sets that an author could predict if seeds were not secret
WARM_UP_S = 120.0
HANG_S = 5.0  # limit for a candidate that is meant to hang
ENDED = "ENDED THE RUN"
# Prints the first eight bytes of each A that the timer makes from seed 0. An author could know them if seeds were not secret.
_SEEDED = """
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.timing.track import Track
import random, sys
track = Track(GemmTask.model_validate_json(sys.argv[1]), Device(0), TimeOptions())
track.pools.renew(random.Random(0))
a = track.pools.a
print(*(int(a[index][0, :4].view('uint64')[0]) for index in range(min(len(a), int(sys.argv[2])))))
"""


@dataclass(frozen=True)
class RedteamLimits:
    """`candidate_s`: limit of compilation, proof and timing, each. `secret`: a file that no compiler may open."""

    candidate_s: float
    cache: str
    secret: str


class RedteamBench:
    """Evaluates cases. It opens its sandbox on first use and reopens it if a candidate ended it."""

    def __init__(self, device: str, limits: RedteamLimits) -> None:
        self._device, self._limits = device, limits
        self._sandbox: LocalSandbox | None = None
        self._limit_s = limits.candidate_s
        self._honest_us: dict[tuple[str, str], float | None] = {}
        self._known: dict[str, dict[str, str]] = {}

    @property
    def gpu(self) -> str:
        environment = self._sandbox.environment if self._sandbox is not None else None
        return environment.gpu if environment is not None else ""

    def row(self, case: Case) -> RedteamRow:
        """The row of one case. A case that ends the run has that as its outcome."""
        started = time.monotonic()
        self._limit(min(HANG_S, self._limits.candidate_s) if case.hangs else self._limits.candidate_s)
        task, gpu = case.task_on(self._clock), self._clock
        outcome = self._outcome(case)
        ended = isinstance(outcome, str)
        time_us = None if isinstance(outcome, str) else _median_us(outcome)
        honest_us = self._honest(case, task) if time_us is not None and case.base is not None else None
        ratio = time_us / honest_us if time_us is not None and honest_us is not None else None
        return RedteamRow(
            name=case.id,
            group=case.group,
            honest=case.honest,
            blind=case.blind,
            digest=case.digest,
            why=case.why,
            task=task,
            layers=case.layers(gpu),
            layer=outcome.partition(":")[0] if isinstance(outcome, str) else label(outcome),
            message=self._shown(outcome if isinstance(outcome, str) else message_of(outcome)),
            verdict=ENDED if ended else verdict(case, outcome, gpu=gpu, ratio=ratio),  # type: ignore[arg-type]
            time_us=time_us,
            honest_us=honest_us,
            ratio=ratio,
            seconds=time.monotonic() - started,
        )

    def build_ahead(self, cases: Sequence[Case]) -> None:
        """Fill the compile cache, using all cores."""
        sandbox = self._opened(cases[0].task_on(self._clock)) if cases else None

        def build(case: Case) -> None:
            task = case.task_on(self._clock)
            if sandbox is not None and not case.hangs and not isinstance(candidate := self._candidate(case, task), Rejected):
                _built(sandbox, candidate, task)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(build, cases))

    def warm_up(self, case: Case) -> None:
        """Have the sandbox compile its own kernels, which takes seconds the first time and must count against no candidate."""
        self._limit(WARM_UP_S)
        self._outcome(case)
        self._limit(self._limits.candidate_s)

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox = None

    def _shown(self, message: str) -> str:
        """The beginning of a message, without temporary paths of this machine."""
        return message.replace(self._limits.secret or "\0", "a forbidden file")[:MESSAGE_CHARS]

    def _limit(self, seconds: float) -> None:
        """Close the sandbox if the limit changes, so that it is reopened."""
        if seconds != self._limit_s:
            self.close()
        self._limit_s = seconds

    @property
    def _clock(self) -> bool:
        return self._device != "emulator"

    def _outcome(self, case: Case) -> Evaluation | str:
        task = case.task_on(self._clock)
        candidate = self._candidate(case, task)
        return candidate if isinstance(candidate, Rejected) else self._evaluated(candidate, task)

    def _evaluated(self, candidate: AnyCandidate, task: GemmTask) -> Evaluation | str:
        """The evaluation, or the internal error that a candidate caused: `error Type: message`."""
        sandbox = self._opened(task)
        outcome = _built(sandbox, candidate, task)
        if not isinstance(outcome, Built):
            return outcome
        try:
            return sandbox.evaluate(outcome, task, "quick")
        except Cudal2Error as exc:
            self.close()
            return _error(exc)

    def _candidate(self, case: Case, task: GemmTask) -> Candidate | Rejected:
        known = self._known_values(task) if SEEDED in case.source or COMPARED in case.source else {}
        try:
            return case.candidate(self._limits.secret, known)
        except PlanError as exc:  # a policy drops a reply with an unreadable plan
            return Rejected(rule=exc.rule, message=str(exc))

    def _honest(self, case: Case, task: GemmTask) -> float | None:
        """The time of the honest kernel on a task, measured once. Unit: microseconds."""
        assert case.base is not None
        key = (case.base, task.id)
        if key not in self._honest_us:
            base = Candidate.from_source(case.base, Origin(policy="redteam"))
            outcome = self._evaluated(base, task)
            self._honest_us[key] = None if isinstance(outcome, str) else _median_us(outcome)
        return self._honest_us[key]

    def _known_values(self, task: GemmTask) -> dict[str, str]:
        """What a reader of the public code could know of the timer's data and of the compared sets."""
        if task.id not in self._known:
            compared = random.Random(0).sample(range(KNOWN_SETS), 2)
            mask = sum(1 << each for each in compared)
            self._known[task.id] = {COMPARED: hex(mask), SEEDED: self._seeded(task, compared)}
        return self._known[task.id]

    def _seeded(self, task: GemmTask, compared: Sequence[int]) -> str:
        """The first words of the sets that are not compared, as C++ numbers; a placeholder if they are unknown."""
        if not self._clock:
            return UNKNOWN
        command = [sys.executable, "-c", _SEEDED, task.model_dump_json(), str(KNOWN_SETS)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        words = ended.stdout.split() if ended.returncode == 0 else []
        return ", ".join(f"{word}ull" for index, word in enumerate(words) if index not in compared) or UNKNOWN

    def _opened(self, task: GemmTask) -> LocalSandbox:
        if self._sandbox is None:
            limit = self._limit_s
            quick = TimeOptions(rounds=ROUNDS, all_baselines=False, side=False, timeout_s=limit)
            self._sandbox = open_sandbox(
                arch=task.arch,
                device=self._device,
                compile_options=CompileOptions(cache_dir=self._limits.cache, jobs=os.cpu_count() or 1, timeout_s=limit),
                verify_options=VerifyOptions(timeout_s=limit),
                quick=quick,
                full=quick,
                worker=WorkerOptions(),
                predict=_predict,
                emit=ignore,
                emulate=EmulateOptions(timeout_s=limit),
            )
        return self._sandbox


def _built(sandbox: LocalSandbox, candidate: AnyCandidate, task: GemmTask) -> Built | Evaluation | str:
    try:
        ((_, outcome),) = sandbox.build([candidate], task)
    except Exception as exc:  # noqa: BLE001 (any error that a candidate causes in the builder is the finding)
        return _error(exc)
    return outcome


def _error(exc: Exception) -> str:
    return f"error {type(exc).__name__}: {exc}"


def _median_us(outcome: Evaluation) -> float | None:
    return outcome.time_us


def _predict(candidate: AnyCandidate, task: Task, inspection: Inspection) -> Prediction:  # noqa: ARG001 (only the task)
    """The roofline of the reference chip. Nothing here is ranked by it."""
    floor = roofline_us(task, REFERENCE_CHIPS[task.arch])
    return Prediction(predicted_us=floor, model="roofline", floor_us=floor)
