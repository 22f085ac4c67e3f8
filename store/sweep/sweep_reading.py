"""Reads the lines of one sweep file."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cudal2_agent.contract.foreign import MAX_LINE_BYTES, parse_json
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step, Trajectory
from cudal2_agent.store.incoming import Incoming, IncomingStep, mark_of
from cudal2_agent.store.sweep.sweep_lines import (
    SEEN_VERSION,
    VERSION,
    SweepAxes,
    SweepBaseline,
    SweepEnvironment,
    SweepExchange,
    SweepHeader,
    SweepRun,
    SweepSeen,
    SweepStep,
)
from cudal2_agent.store.sweep.sweep_steps import reduced, restored, seen_in


class SweepReader:
    """`LineReader` of the sweep form. It keeps what the steps of the current run refer to."""

    def __init__(self) -> None:
        self._environments: list[Environment] = []
        self._axes: list[tuple[str, ...]] = []
        self._run: RunRecord | None = None
        self._baselines: list[SweepBaseline] = []
        self._seen: tuple[int, Observation, str] | None = None  # of the last round
        self._exchanges: list[Exchange] = []  # that travel with the next step
        self._declared: Counter[str] = Counter()  # kind of line → bytes that are kept

    def read(self, line: bytes) -> list[Incoming]:
        """Raises: ValueError for a line that is not of this form, or that names what no line before it declares."""
        plain = parse_json(line)
        kind = next(iter(plain), None) if isinstance(plain, dict) else None
        if kind in ("environment", "axes", "baseline", "exchange"):
            self._declared[kind] += len(line)
            if self._declared.total() > MAX_LINE_BYTES:
                raise ValueError(f"environments, axes, baselines and exchanges of more than {MAX_LINE_BYTES:,} bytes")
        match kind:
            case "format":
                _check_version(plain)
            case "environment":
                self._environments.append(SweepEnvironment.model_validate(plain).environment)
            case "axes":
                self._axes.append(SweepAxes.model_validate(plain).axes)
            case "baseline":
                self._baselines.append(SweepBaseline.model_validate(plain))
            case "seen":
                observation = Observation.model_validate(SweepSeen.model_validate(plain).seen)
                self._seen = observation.round, observation, observation.id
            case "exchange":
                self._exchanges.append(Exchange.model_validate(SweepExchange.model_validate(plain).exchange))
            case "run":
                self._run, self._baselines, self._seen = SweepRun.model_validate(plain).run, [], None
                self._exchanges = []
                del self._declared["baseline"], self._declared["exchange"]
                return [self._run]
            case "index":
                return [self._step(SweepStep.model_validate(plain))]
            case _:
                raise ValueError("not a line of a sweep")
        return []

    def marks(self, trajectory: Trajectory) -> dict[int, bytes]:
        return {step.index: _mark(reduced(step)) for step in trajectory.steps}

    def _step(self, line: SweepStep) -> IncomingStep:
        if self._run is None:
            raise ValueError("a step before the first run")
        if self._seen is None or self._seen[0] != line.round:
            observation = seen_in(self._run, line.round)
            self._seen = line.round, observation, observation.id
        _, observation, observation_id = self._seen
        step = restored(line, self._run, observation_id, self._axes, self._environments, self._baselines)
        exchanges, self._exchanges = tuple(self._exchanges), []
        del self._declared["exchange"]
        return IncomingStep(step, observation, exchanges, _mark(reduced(step)))


def _check_version(plain: Mapping[str, Any]) -> None:
    if plain.get("version") not in (VERSION, SEEN_VERSION):
        raise ValueError(
            f"sweep version {plain.get('version')} of cudal2-agent {plain.get('product')}; this version reads {SEEN_VERSION}: "
            "install that one"
        )
    SweepHeader.model_validate(plain)


def _mark(step: Step) -> bytes:
    return mark_of(step.model_dump_json(exclude={"observation_id"}))
