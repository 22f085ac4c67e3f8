"""What a round looks up: questions from the task, the current schedule and the last diagnosis.

Notes and code are searched separately. In one search, the many pieces of code would displace the few notes.
"""

from collections.abc import Sequence
from itertools import zip_longest

from contract.candidate import AnyCandidate, Candidate, Origin, ScheduleValue
from contract.diagnosis import Diagnosis
from contract.knowledge import Hit, Query, Retriever
from contract.task import Arch, GemmTask

DOCUMENT_KINDS = ("section",)
CODE_KINDS = ("class", "function", "alias", "macro", "variable", "enum", "text")
NOTE_HITS, NOTE_TOKENS = 3, 2500
CODE_HITS, CODE_TOKENS = 5, 4500
_SMALL = 256
_DEEP = 4
# The topic of each axis of a schedule, in the words of the documents. Other axes add no question.
_AXES = {
    "cluster_k": "sums over K through distributed shared memory of a cluster",
    "cluster_m": "a thread block cluster with TMA multicast",
    "cluster_n": "a thread block cluster with TMA multicast",
    "persistent": "a persistent tile scheduler",
    "pingpong": "ping-pong consumer warpgroups",
    "programmatic": "programmatic dependent launch",
    "split_k": "split-K with a reduction of partial sums",
    "splits": "split-K with a reduction of partial sums through a workspace",
    "tma_store": "an epilogue with TMA stores from shared memory",
}
_FAMILIES = {
    "latency": "a kernel for small shapes that loads all operands at once and pushes partial sums within a cluster",
    "mma_sync": "a cp.async multistage pipeline with ldmatrix and mma.sync",
    "wgmma_tma": "a warp-specialised TMA and mbarrier pipeline that feeds wgmma",
}


def look_up(retriever: Retriever, questions: Sequence[str], task: GemmTask) -> list[Hit]:
    """Notes first, then code. Each has its own limit of hits and tokens, and the questions take turns."""
    notes = Query(words="", arch=task.arch, kinds=DOCUMENT_KINDS, count=NOTE_HITS, tokens=NOTE_TOKENS)
    code = Query(words="", arch=task.arch, kinds=CODE_KINDS, count=CODE_HITS, tokens=CODE_TOKENS)
    return [hit for query in (notes, code) for hit in _in_turn(retriever, questions, query)]


def _in_turn(retriever: Retriever, questions: Sequence[str], query: Query) -> list[Hit]:
    """The best hit of each question, then the second best, and so on, without duplicates.

    One query for several topics finds text that holds a little of each and seldom answers one.
    """
    asked = questions[: query.count]
    share = query.model_copy(update={"tokens": query.tokens // max(len(asked), 1)})
    answers = [retriever.search(share.model_copy(update={"words": question})) for question in asked]
    hits: dict[tuple[str, int], Hit] = {}
    left = query.tokens
    for hit in (hit for rank in zip_longest(*answers) for hit in rank if hit is not None):
        place = hit.chunk.path, hit.chunk.start_line
        if len(hits) < query.count and place not in hits and hit.chunk.tokens <= left:
            hits[place] = hit
            left -= hit.chunk.tokens
    return list(hits.values())


def questions_of(task: GemmTask, in_hand: AnyCandidate | None, diagnosis: Diagnosis | None, message: str) -> list[str]:
    """Questions in plain words, the most urgent first. `message`: the fault of the last attempt, empty where it had none."""
    having = _schedule(in_hand) or [f"How to write {_leading(task)}."]
    asked = [message, *_findings(diagnosis), *_shape(task), *having]
    return [question for question in asked if question]


def with_chunks(candidate: Candidate, hits: tuple[Hit, ...]) -> Candidate:
    """The candidate with the chunks of its round. A candidate from a prompt keeps the chunks that its policy names."""
    if candidate.origin.chunk_ids or candidate.origin.prompt_hash or not hits:
        return candidate
    origin = Origin.model_validate({**candidate.origin.model_dump(), "chunk_ids": tuple(hit.chunk.id for hit in hits)})
    return candidate.model_copy(update={"origin": origin})


def _findings(diagnosis: Diagnosis | None) -> list[str]:
    """The two findings with the highest weight, without figures: numbers do not help a search."""
    found = diagnosis.findings[:2] if diagnosis else ()
    return [f"{finding.bottleneck.replace('-', ' ').capitalize()}: {finding.remedy}." for finding in found]


def _schedule(candidate: AnyCandidate | None) -> list[str]:
    schedule = (candidate.origin.schedule if candidate else None) or {}
    used = [words for axis, words in _AXES.items() if _in_use(schedule.get(axis))]
    family = _FAMILIES.get(str(schedule.get("family", "")))
    parts = list(dict.fromkeys([*([family] if family else []), *used]))
    return [f"How to write {part}." for part in parts]


def _leading(task: GemmTask) -> str:
    """The fastest kernel family of the target, for the question before the first candidate."""
    return _FAMILIES["wgmma_tma" if task.arch is Arch.SM_90A else "mma_sync"]


def _in_use(value: ScheduleValue | None) -> bool:
    return value is True or (isinstance(value, int) and value > 1)


def _shape(task: GemmTask) -> list[str]:
    """What is unusual about the shape."""
    said = []
    if max(task.m, task.n) <= _SMALL:
        said.append("The shape is small: latency of launch, prologue and epilogue dominates.")
    if task.k >= _DEEP * max(task.m, task.n):
        said.append("K is much larger than M and N: split-K or stream-K spreads the reduction over more SMs.")
    if task.k % 8 or task.n % 8:
        said.append("Odd sizes: rows are not aligned to 16 bytes, residue tiles need predication.")
    return said
