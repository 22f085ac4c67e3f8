"""What to look up before a round: a query from the task, the schedule in hand and the last diagnosis."""

from contract.candidate import AnyCandidate, Candidate, Origin
from contract.diagnosis import Diagnosis
from contract.knowledge import Hit, Query
from contract.task import GemmTask

HITS = 6
_SMALL = 256
_DEEP = 4


def query_for(task: GemmTask, best: AnyCandidate | None, diagnosis: Diagnosis | None, message: str) -> Query:
    """`message`: what went wrong in the last attempt that failed, empty where none did."""
    words = [*_task_words(task), *_schedule_words(best), *_diagnosis_words(diagnosis), message]
    return Query(words=" ".join(word for word in words if word), arch=task.arch, count=HITS)


def with_chunks(candidate: Candidate, hits: tuple[Hit, ...]) -> Candidate:
    """The candidate with the chunks its policy was shown, unless the policy has named those it used."""
    if candidate.origin.chunk_ids or not hits:
        return candidate
    origin = Origin.model_validate({**candidate.origin.model_dump(), "chunk_ids": tuple(hit.chunk.id for hit in hits)})
    return candidate.model_copy(update={"origin": origin})


def _task_words(task: GemmTask) -> list[str]:
    words = ["gemm", str(task.arch), str(task.element), f"accumulate {task.accumulate}", f"layout {task.layout}"]
    if max(task.m, task.n) <= _SMALL:
        words.append("small shape latency")
    if task.k >= _DEEP * max(task.m, task.n):
        words.append("split-K reduction")
    if task.k % 8 or task.n % 8:
        words.append("unaligned odd sizes")
    return words


def _schedule_words(candidate: AnyCandidate | None) -> list[str]:
    schedule = (candidate.origin.schedule if candidate else None) or {}
    used = [name for name, value in schedule.items() if isinstance(value, bool) and value]
    return [str(schedule.get("family", "")), *used]


def _diagnosis_words(diagnosis: Diagnosis | None) -> list[str]:
    if diagnosis is None:
        return []
    return [f"{finding.bottleneck} {finding.remedy}" for finding in diagnosis.findings[:2]]
