"""What the sweep form holds of a step, and a step as a line.

Held: candidate with source, plan and origin; status and fault; samples of the candidate, with and without programmatic
launch, and of its baselines to 1 ns; effort; side figures, notes and the verdict of the second witness; environment; resources
and tensor-core instructions of each kernel; reward; seconds and time of day to 1 ms.
Held of runs in which a model was asked: observation, diagnosis, profile, exchanges; not held of others.
Not held: test results but the one that failed and those that say how much of a
large task was run; telemetry; the ruler; opcodes, compiler output, warnings and the hash of the cubin.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import (
    FAULT_CHARS,
    FULL_SIZE,
    NOT_COVERED,
    CompileFailed,
    Crashed,
    Environment,
    Evaluation,
    Measured,
    Rejected,
    SideFigures,
    Telemetry,
    TestResult,
    TimedOut,
    Timing,
    Unmeasured,
    Wrong,
)
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.store.sweep.sweep_lines import SweepBaseline, SweepStep, SweepTimes

T = TypeVar("T")
Faulty = TypeVar("Faulty", TestResult, Rejected, CompileFailed, Crashed, TimedOut)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMED = {"timing", "baselines", "environment"}  # of a measured evaluation; `SweepTimes` holds them


def seen_in(run: RunRecord, number: int) -> Observation:
    """The observation of a round as far as the form knows it: the attempts that the policy saw are not held."""
    return Observation(task=run.task, chip=run.chip, round=number, seed=run.seed)


def reduced(step: Step, *, seen: bool = False) -> Step:
    """The step with what the form holds of it, which is what an import records. The observation's id is left as it is.

    `seen`: whether it is of a run in which a model was asked.
    """
    return step.model_copy(
        update={
            "evaluation": _reduced(step.evaluation, step.candidate.id),
            "diagnosis": step.diagnosis if seen else None,
            "profile": step.profile if seen else None,
            "seconds": {name: _ms(value) / 1000 for name, value in step.seconds.items()},
            "created_at": _at(_since_epoch(step.created_at)),
        }
    )


def compact(step: Step, run: RunRecord, times: SweepTimes | None, axes: int | None) -> SweepStep:
    """The line of a reduced step. `times`, `axes`: made by the writer, which numbers what they refer to."""
    origin = step.candidate.origin
    return SweepStep(
        index=step.index,
        round=step.round,
        created_ms=_since_epoch(step.created_at) - _since_epoch(run.created_at),
        seconds_ms={name: _ms(value) for name, value in step.seconds.items()},
        reward=step.reward,
        times=times,
        axes=axes,
        schedule=tuple((origin.schedule or {}).values()),
        evaluation=_plain(step.evaluation, _TIMED if times else set()) | {"status": step.evaluation.status},
        origin=_plain(origin, {"schedule"}),
        candidate=_plain(step.candidate, {"origin"}) | {"kind": step.candidate.kind},
        diagnosis=whole(step.diagnosis) if step.diagnosis else None,
        profile=whole(step.profile) if step.profile else None,
    )


def restored(
    line: SweepStep,
    run: RunRecord,
    observation_id: str,
    axes: Sequence[tuple[str, ...]],
    environments: Sequence[Environment],
    baselines: Sequence[SweepBaseline],
) -> Step:
    """The step of a line. Raises: ValueError where it names what was not declared, or is not a step."""
    schedule = None if line.axes is None else dict(zip(_at_number(axes, line.axes, "axes"), line.schedule, strict=True))
    step = Step.model_validate(
        {
            "run_id": run.run_id,
            "index": line.index,
            "round": line.round,
            "observation_id": observation_id,
            "candidate": line.candidate | {"origin": line.origin | {"schedule": schedule}},
            "evaluation": line.evaluation | _times(line.times, environments, baselines),
            "diagnosis": line.diagnosis,
            "profile": line.profile,
            "reward": line.reward,
            "seconds": {name: value / 1000 for name, value in line.seconds_ms.items()},
            "created_at": _at(_since_epoch(run.created_at) + line.created_ms),
        }
    )
    return reduced(step, seen=True)


def nanoseconds(timing: Timing) -> tuple[int, ...]:
    """Whole nanoseconds; at least 1, because a sample is never zero."""
    return tuple(max(1, round(sample * 1000)) for sample in timing.samples_us)


def _times(times: SweepTimes | None, environments: Sequence[Environment], baselines: Sequence[SweepBaseline]) -> dict[str, Any]:
    """The fields of a measured evaluation that `SweepTimes` holds."""
    if times is None:
        return {}
    found = [(_at_number(baselines, row[0] if row else -1, "baseline"), row[1:]) for row in times.baselines]
    return {
        "environment": _at_number(environments, times.environment, "environment"),
        "timing": {"name": "", "samples_us": _microseconds(times.samples)},
        "baselines": [{"name": one.baseline, "detail": one.detail, "samples_us": _microseconds(row)} for one, row in found],
    }


def _microseconds(samples: Sequence[int]) -> tuple[float, ...]:
    return tuple(sample / 1000 for sample in samples)


def _at_number(declared: Sequence[T], number: int, what: str) -> T:
    if not 0 <= number < len(declared):
        raise ValueError(f"names {what} {number}, which no line before it declares")
    return declared[number]


def _reduced(evaluation: Evaluation, candidate_id: str) -> Evaluation:
    match evaluation:
        case Measured():
            return _measured(evaluation, candidate_id)
        case Unmeasured():
            kept = tuple(test for test in evaluation.tests if test.name in (FULL_SIZE, NOT_COVERED))
            return evaluation.model_copy(update={"tests": kept, "inspection": _inspection(evaluation.inspection)})
        case Wrong():
            refused = evaluation.refused and _measured(evaluation.refused, candidate_id)
            test, inspection = _one_line(evaluation.test), _inspection(evaluation.inspection)
            return evaluation.model_copy(update={"test": test, "tests": (), "inspection": inspection, "refused": refused})
        case Crashed():
            return _one_line(evaluation.model_copy(update=_compiled(evaluation)))
        case TimedOut():
            return _one_line(evaluation.model_copy(update=_compiled(evaluation)))
        case CompileFailed():
            return _one_line(evaluation.model_copy(update={"log": ""}))
        case Rejected():
            return _one_line(evaluation)


def _measured(measured: Measured, candidate_id: str) -> Measured:
    side = {name: value and round(value * 1000) / 1000 for name, value in measured.side}
    witness = measured.witness and measured.witness.model_copy(update={"tests": ()})
    return measured.model_copy(
        update={
            "tests": (),
            "timing": Timing(name=candidate_id, samples_us=_microseconds(nanoseconds(measured.timing))),
            "baselines": tuple(
                timing.model_copy(update={"samples_us": _microseconds(nanoseconds(timing))}) for timing in measured.baselines
            ),
            "plain": measured.plain
            and measured.plain.model_copy(update={"samples_us": _microseconds(nanoseconds(measured.plain))}),
            "side": SideFigures(**side),
            "telemetry": Telemetry(),
            "inspection": _inspection(measured.inspection),
            "ruler": None,
            "witness": witness,
        }
    )


def _compiled(evaluation: Crashed | TimedOut) -> dict[str, Any]:
    return {"inspection": evaluation.inspection and _inspection(evaluation.inspection)}


def _inspection(inspection: Inspection) -> Inspection:
    return Inspection(
        cubin_sha256="",
        compile_seconds=0.0,
        kernels=inspection.kernels,
        opcodes={},
        opcode_source="",
        mma=inspection.mma,
        accumulators=inspection.accumulators,
    )


def _one_line(faulty: Faulty) -> Faulty:
    """With its message as in `Evaluation.fault`, in one line."""
    line = " ".join(faulty.message.split())
    return faulty.model_copy(update={"message": line if len(line) <= FAULT_CHARS else line[: FAULT_CHARS - 1] + "…"})


def _plain(record: Record, without: set[str]) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON holds them; NaN and infinities are strings."""
    plain: dict[str, Any] = json.loads(record.model_dump_json(exclude=without, exclude_defaults=True))
    return plain


def whole(record: Record) -> dict[str, Any]:
    """The record as JSON holds it; NaN and infinities are strings."""
    plain: dict[str, Any] = json.loads(record.model_dump_json())
    return plain


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _since_epoch(time: datetime) -> int:
    """Milliseconds; a time without a zone is taken as UTC."""
    passed = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return (passed + timedelta(microseconds=500)) // timedelta(milliseconds=1)


def _at(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
