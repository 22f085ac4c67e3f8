"""What the author of a candidate had seen, from the round's observation and the candidate's origin. Pure."""

from collections.abc import Mapping

from cudal2_agent.agent.report.one_line import result_of
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.knowledge import Chunk
from cudal2_agent.contract.records.profile import Difference
from cudal2_agent.contract.records.trajectory import Exemplar, Observation, Step

FINDINGS = 3


class ChunkSeen(Record):
    release: str
    path: str
    start_line: int
    end_line: int
    symbol: str

    @property
    def place(self) -> str:
        return f"{self.release} {self.path}:{self.start_line}-{self.end_line}"


class ExemplarSeen(Record):
    candidate_id: str
    label: str
    bucket: int
    speedup: float | None
    time_us: float | None


class Seen(Record):
    """What the author of a candidate saw.

    `diagnosed`: the candidate that `diagnosis` and `differences` describe. `repaired`: failed parents with their faults.
    """

    chunks: tuple[ChunkSeen, ...] = ()
    exemplars: tuple[ExemplarSeen, ...] = ()
    diagnosed: str | None = None
    diagnosis: Diagnosis | None = None
    differences: tuple[Difference, ...] = ()
    repaired: tuple[str, ...] = ()


def seen_by(step: Step, observations: Mapping[str, Observation], first: Mapping[str, Step]) -> Seen:
    """The chunks that the origin names, and a model's exemplars. A model that repairs sees the failure instead."""
    origin, observation = step.candidate.origin, observations[step.observation_id]
    prompted = origin.prompt_hash is not None
    parents = [first[parent] for parent in origin.parents if parent in first]
    failed = [parent for parent in parents if parent.evaluation.failed and parent.index < step.index]
    chunks = tuple(_chunk(hit.chunk) for hit in observation.hits if hit.chunk.id in origin.chunk_ids)
    if prompted and failed:
        reasons = tuple(f"{parent.candidate.id[:8]}, {result_of(parent.evaluation)}" for parent in failed)
        return Seen(chunks=chunks, repaired=reasons)
    return Seen(
        chunks=chunks,
        exemplars=tuple(_exemplar(exemplar) for exemplar in observation.exemplars if _shown(exemplar, step)),
        diagnosed=observation.diagnosed,
        diagnosis=_heaviest(observation.diagnosis),
        differences=observation.differences,
    )


def _shown(exemplar: Exemplar, step: Step) -> bool:
    """Whether a candidate's author saw an exemplar. Where its policy did not record which, it saw all of them."""
    origin = step.candidate.origin
    if origin.exemplar_ids is None:
        return origin.prompt_hash is not None
    return exemplar.candidate.id in origin.exemplar_ids


def _heaviest(diagnosis: Diagnosis | None) -> Diagnosis | None:
    return diagnosis.model_copy(update={"findings": diagnosis.findings[:FINDINGS]}) if diagnosis else None


def _chunk(chunk: Chunk) -> ChunkSeen:
    return ChunkSeen(
        release=chunk.release,
        path=chunk.path,
        start_line=chunk.start_line,
        end_line=chunk.end_line,
        symbol=chunk.symbol,
    )


def _exemplar(exemplar: Exemplar) -> ExemplarSeen:
    return ExemplarSeen(
        candidate_id=exemplar.candidate.id,
        label=exemplar.candidate.label,
        bucket=exemplar.bucket,
        speedup=exemplar.attempt.speedup,
        time_us=exemplar.attempt.time_us,
    )
