"""Doubles for what needs a GPU or a compiler: a scripted policy and a scripted sandbox. The graph and the store are real."""

import time
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from threading import Event
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.plan.plan import Launch, LaunchPlan, TensorArg
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import (
    AUTOTUNED,
    BASELINES,
    CompileFailed,
    Environment,
    Evaluation,
    Measured,
    Prediction,
    TestResult,
    Timing,
    Unmeasured,
)
from cudal2_agent.contract.records.inspection import Inspection, KernelResources
from cudal2_agent.contract.records.knowledge import Chunk, Hit, Query
from cudal2_agent.contract.records.profile import Difference, LaunchProfile, Profile
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.contract.settings.options import Effort

TASK = GemmTask(m=256, n=256, k=256)
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
ENVIRONMENT = Environment(
    gpu="scripted",
    arch="sm_90a",
    sms=132,
    l2_bytes=1,
    memory_bytes=1,
    driver="0",
    cuda="13",
    nvrtc="13",
    cublas="13",
    python="3.11",
    platform="test",
)
LAUNCH = Launch(
    entry="gemm",
    grid=("ceil(N/64)", "ceil(M/64)", 1),
    block=(128, 1, 1),
    args=(TensorArg(tensor="D", access="write"),),
)
PLAN = LaunchPlan(arch=Arch.SM_80, launches=(LAUNCH,))
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OBSERVATION = Observation(task=TASK, chip=CHIP, round=1, seed=0)
INSPECTION = Inspection(
    cubin_sha256="0" * 64,
    compile_seconds=0.1,
    kernels=(
        KernelResources(
            entry="gemm",
            registers=128,
            spill_store_bytes=0,
            spill_load_bytes=0,
            stack_bytes=0,
            static_smem_bytes=0,
            dynamic_smem_bytes=0,
            threads=128,
            ctas_per_sm=4,
            occupancy=0.25,
            occupancy_limiter="registers",
        ),
    ),
    opcodes={"HMMA": 64},
    opcode_source="sass",
    mma=("HMMA.16816.F32",),
    accumulators=(AccumulatorType.F32,),
)
PASSED = TestResult(tier="exact", name="zero-one", passed=True)


def candidate(number: int, padding: int = 0) -> Candidate:
    """The `number`th candidate of a script; `padding`: additional characters of source."""
    schedule: dict[str, ScheduleValue] = {"family": "mma_sync", "block_m": 64, "block_n": 64, "block_k": 32, "number": number}
    source = f"// candidate {number}\n" + "x" * padding
    return Candidate(source=source, plan=PLAN, origin=Origin(policy="scripted", schedule=schedule))


def number_of(scripted: AnyCandidate) -> int:
    return int(scripted.source.splitlines()[0].split()[-1])


def measured(
    time_us: float, baseline_us: float = 10.0, baselines: Sequence[str] = (AUTOTUNED,), effort: Effort | None = None
) -> Measured:
    """A measurement of steady samples, so that its speedup is baseline_us / time_us."""
    return Measured(
        mode=TASK.mode,
        effort=effort,
        tests=(PASSED,),
        timing=Timing(name="candidate", samples_us=(time_us,) * 5),
        baselines=tuple(Timing(name=name, samples_us=(baseline_us,) * 5) for name in baselines),
        environment=ENVIRONMENT,
        inspection=INSPECTION,
    )


def run_record(run_id: str = "run-1", **changes: object) -> RunRecord:
    fields = {"task": TASK, "chip": CHIP, "policy": "scripted", "seed": 0, "settings": {}, "versions": {}}
    return RunRecord.model_validate({"run_id": run_id, "status": "running", "created_at": NOW, **fields, **changes})


def step(index: int, number: int = 0, run_id: str = "run-1", **changes: object) -> Step:
    fields = {"round": 1, "observation_id": OBSERVATION.id, "candidate": candidate(number), "evaluation": measured(5.0)}
    return Step.model_validate({"run_id": run_id, "index": index, "created_at": NOW, **fields, **changes})


def unmeasured(predicted_us: float, verified_by: Literal["nothing", "emulator"] = "nothing") -> Unmeasured:
    prediction = Prediction(predicted_us=predicted_us, model="scripted", floor_us=1.0)
    tests = (PASSED,) if verified_by == "emulator" else ()
    return Unmeasured(verified_by=verified_by, tests=tests, prediction=prediction, inspection=INSPECTION)


def diagnose(_: Built, __: GemmTask, ___: Chip, evaluation: Evaluation, profile: Profile | None = None) -> Diagnosis:
    """A tail wave by counters, else low occupancy."""
    if profile is not None:
        finding = Finding(bottleneck="tail-wave", evidence="2 waves", remedy="use whole waves", weight=1.0)
        return Diagnosis(basis="counters", findings=(finding,))
    finding = Finding(bottleneck="occupancy", evidence="4 CTAs", remedy="use fewer registers", weight=1.0)
    return Diagnosis(basis="timed" if isinstance(evaluation, Measured) else "static", findings=(finding,))


def explain(before: Profile, after: Profile) -> tuple[Difference, ...]:
    counts = [one.launches[0].metrics["duration_ns"] for one in (before, after)]
    return (Difference(quantity="duration_ns", before=counts[0], after=counts[1], unit="ns", meaning="it takes another time"),)


def profile(duration_ns: float = 5000.0) -> Profile:
    launch = LaunchProfile(entry="gemm", grid=(4, 4, 1), block=(128, 1, 1), metrics={"duration_ns": duration_ns})
    return Profile(tool="scripted 1.0", metric_set="sm_90a", launches=(launch,), seconds=0.1)


class ScriptedPolicy:
    """Proposes the candidates of a list round by round, after those already attempted."""

    name = "scripted"
    exhausted = ""

    def __init__(self, script: Sequence[Candidate], *, reads_code: bool = False) -> None:
        self._script = list(script)
        self.reads_code = reads_code
        self.seen: list[Observation] = []

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        self.seen.append(observation)
        tried = {attempt.candidate_id for attempt in observation.attempts}
        return [new for new in self._script if new.id not in tried][:count]


class ScriptedSandbox:
    """Answers from a table by candidate number: `failures` at build, `times_us` when evaluated, at the end 10 % slower.

    `emulates`: every execution is right, with predicted `times_us`. `witness`: the emulator's verdicts beside the GPU;
    candidates not listed are right.
    """

    def __init__(
        self,
        times_us: dict[int, float] | None = None,
        *,
        failures: Sequence[int] = (),
        can_execute: bool = True,
        emulates: bool = False,
        evaluate_s: float = 0.0,
        outcomes: dict[int, Evaluation] | None = None,
        profile_error: Cudal2Error | None = None,
        profile_s: float = 0.0,
        witness: dict[int, Evaluation] | None = None,
    ) -> None:
        self._times_us = times_us or {}
        self._failures = set(failures)
        self._can_execute = can_execute
        self._emulates = emulates
        self._evaluate_s = evaluate_s
        self._outcomes = outcomes or {}
        self._profile_error = profile_error
        self._profile_s = profile_s
        self._witness = witness or {}
        self.witnessed: list[int] = []
        self.profiled: list[int] = []
        self.evaluated: list[tuple[int, Effort]] = []
        self.closed = False

    @property
    def chip(self) -> Chip:
        return CHIP

    @property
    def can_execute(self) -> bool:
        return self._can_execute

    @property
    def can_measure(self) -> bool:
        return self._can_execute and not self._emulates

    @property
    def waited_s(self) -> float:
        return 0.0

    @property
    def queued_s(self) -> float:
        return 0.0

    builds_cutlass = False  # an attribute, which a test may change

    @property
    def environment(self) -> Environment | None:
        return ENVIRONMENT if self.can_measure else None

    def build(
        self,
        candidates: Sequence[AnyCandidate],
        task: GemmTask,
        cancel: Event | None = None,
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        for position, one in reversed(list(enumerate(candidates))):  # out of order, as in a parallel build
            if position == 0 and cancel is not None:
                cancel.set()  # as the builder does at its end
            if number_of(one) in self._failures:
                yield position, CompileFailed(message=f"line 1: error in {number_of(one)} for {task.shape}", log="long log")
            else:
                yield position, Built(candidate=one, inspection=INSPECTION, artifact_path="", cached=False, seconds=0.01)

    def evaluate(self, built: Built, _: GemmTask, effort: Effort) -> Evaluation:
        number = number_of(built.candidate)
        time.sleep(self._evaluate_s)
        self.evaluated.append((number, effort))
        if number in self._outcomes:
            return self._outcomes[number]
        time_us = self._times_us.get(number, 20.0)
        if not self.can_measure:
            return unmeasured(time_us, "emulator" if self._emulates else "nothing")
        final = effort in ("race", "full")
        return measured(time_us * (1.1 if final else 1.0), baselines=BASELINES if final else (AUTOTUNED,), effort=effort)

    def screen(self, built: Sequence[Built], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
        for position, one in enumerate(built):
            yield position, self.evaluate(one, task, "screen")

    def race(self, built: Sequence[Built], task: GemmTask) -> list[Evaluation]:
        return [self.evaluate(one, task, "race") for one in built]

    def predict(self, built: Built, _: GemmTask) -> Prediction:
        predicted_us = self._times_us.get(number_of(built.candidate), 20.0)
        return Prediction(predicted_us=predicted_us, model="scripted", floor_us=1.0)

    def witness(self, built: Built, _: GemmTask, seconds: float | None = None) -> Evaluation:  # noqa: ARG002
        self.witnessed.append(number_of(built.candidate))
        return self._witness.get(self.witnessed[-1], unmeasured(20.0, "emulator"))

    def profile(self, built: Built, _: GemmTask) -> Profile:
        self.profiled.append(number_of(built.candidate))
        time.sleep(self._profile_s)
        if self._profile_error is not None:
            raise self._profile_error
        return profile(1000.0 * self._times_us.get(self.profiled[-1], 20.0))

    def artifact(self, built: Built) -> bytes | None:
        return None if number_of(built.candidate) in self._failures else b"cubin of %d" % number_of(built.candidate)

    def close(self) -> None:
        self.closed = True


class ScriptedRetriever:
    """Returns one hit for every query and keeps the queries."""

    def __init__(self) -> None:
        self.queries: list[Query] = []
        chunk = Chunk(release="builtin", path="x.md", start_line=1, end_line=2, symbol="x", kind="section", text="read me")
        self.hit = Hit(chunk=chunk, score=1.0)

    def search(self, query: Query) -> list[Hit]:
        self.queries.append(query)
        return [self.hit]


class WordEmbedder:
    """An embedder without weights: texts that share words have similar vectors. Deterministic and fast."""

    identity = "words-8"
    dimensions = 8

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.full((len(texts), self.dimensions), 0.01, np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32(word.encode()) % self.dimensions] += 1.0
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows
