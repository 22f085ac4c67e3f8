"""One sandbox that evaluates the red team's candidates one after another, and survives what they do to it."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.redteam_table import Row
from contract.build import Built
from contract.candidate import AnyCandidate, Candidate, Origin
from contract.chip import REFERENCE_CHIPS
from contract.errors import Cudal2Error, PlanError
from contract.evaluation import Evaluation, Prediction, Rejected
from contract.events import ignore
from contract.inspection import Inspection
from contract.options import CompileOptions, EmulateOptions, TimeOptions, VerifyOptions, WorkerOptions
from contract.roofline import roofline_us
from contract.task import GemmTask
from sandbox.local import LocalSandbox, open_sandbox
from tests.redteam.case import COMPARED, SEEDED, Case, label, message_of, verdict

ROUNDS = 7  # as a search measures
MESSAGE_CHARS = 240
UNKNOWN = "1ull"
KNOWN_SETS = 64  # sets whose data and whose comparison could be known if seeds were not secret
WARM_UP_S = 120.0
HANG_S = 5.0  # for a candidate that is there to be stopped
ENDED = "ENDED THE RUN"
# The first eight bytes of A that the timer makes of seed 0: what an author could know if seeds were not secret.
_SEEDED = """
from contract.options import TimeOptions
from contract.task import GemmTask
from sandbox.cuda.device import Device
from sandbox.cuda.timing.track import Track
import random, sys
track = Track(GemmTask.model_validate_json(sys.argv[1]), Device(0), TimeOptions())
track.pools.renew(random.Random(0))
print(*(int(a[0, :4].view('uint64')[0]) for a in track.pools.a[: int(sys.argv[2])]))
"""


@dataclass(frozen=True)
class Limits:
    """`candidate_s`: for compilation, proof and timing each. `secret`: a file that no compiler may open."""

    candidate_s: float
    cache: str
    secret: str


class Bench:
    """Opens its sandbox when it is first needed, and again where a candidate ended it."""

    def __init__(self, device: str, limits: Limits) -> None:
        self._device, self._limits = device, limits
        self._sandbox: LocalSandbox | None = None
        self._limit_s = limits.candidate_s
        self._honest_us: dict[tuple[str, str], float | None] = {}
        self._known: dict[str, dict[str, str]] = {}

    @property
    def gpu(self) -> str:
        environment = self._sandbox.environment if self._sandbox is not None else None
        return environment.gpu if environment is not None else ""

    def row(self, case: Case) -> Row:
        """What became of one case; where it ended the run, that is what became of it."""
        started = time.monotonic()
        self._limit(min(HANG_S, self._limits.candidate_s) if case.hangs else self._limits.candidate_s)
        task, gpu = case.task_on(self._clock), self._clock
        outcome = self._outcome(case)
        ended = isinstance(outcome, str)
        time_us = None if isinstance(outcome, str) else _median_us(outcome)
        honest_us = self._honest(case, task) if time_us is not None and case.base is not None else None
        ratio = time_us / honest_us if time_us is not None and honest_us is not None else None
        return Row(
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
        """Fill the compile cache with all cores."""
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
        """A message's beginning, without the folder that this machine chose."""
        return message.replace(self._limits.secret or "\0", "a forbidden file")[:MESSAGE_CHARS]

    def _limit(self, seconds: float) -> None:
        """Open the sandbox anew where its limit is another."""
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
        """The outcome, or the error of ours that a candidate brought about: `error Type: message`."""
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
        except PlanError as exc:  # a policy drops a reply whose plan cannot be read
            return Rejected(rule=exc.rule, message=str(exc))

    def _honest(self, case: Case, task: GemmTask) -> float | None:
        """The honest kernel's time on a task, measured once. Unit: microseconds."""
        assert case.base is not None
        key = (case.base, task.id)
        if key not in self._honest_us:
            base = Candidate.from_source(case.base, Origin(policy="redteam"))
            outcome = self._evaluated(base, task)
            self._honest_us[key] = None if isinstance(outcome, str) else _median_us(outcome)
        return self._honest_us[key]

    def _known_values(self, task: GemmTask) -> dict[str, str]:
        """What a reader of the public code can know of the timer's data and of the sets that it compares."""
        if task.id not in self._known:
            compared = random.Random(0).sample(range(KNOWN_SETS), 2)
            mask = sum(1 << each for each in compared)
            self._known[task.id] = {COMPARED: hex(mask), SEEDED: self._seeded(task, compared)}
        return self._known[task.id]

    def _seeded(self, task: GemmTask, compared: Sequence[int]) -> str:
        """The first words of the sets that are not compared, as C++ numbers; one that means nothing where they are unknown."""
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
    except Exception as exc:  # noqa: BLE001 (whatever a candidate does to the builder would have ended a run: that is the finding)
        return _error(exc)
    return outcome


def _error(exc: Exception) -> str:
    return f"error {type(exc).__name__}: {exc}"


def _median_us(outcome: Evaluation) -> float | None:
    return outcome.time_us


def _predict(candidate: AnyCandidate, task: GemmTask, inspection: Inspection) -> Prediction:  # noqa: ARG001 (only the task)
    """The roofline of the reference chip: nothing here is ranked by it."""
    floor = roofline_us(task, REFERENCE_CHIPS[task.arch])
    return Prediction(predicted_us=floor, model="roofline", floor_us=floor)
