"""What a round looks up: questions from the task, the current schedule and the last diagnosis.

Notes and code are searched separately. In one search, the many pieces of code would displace the few notes. Code is looked up
with the words of the author and of the heaviest remedy, and shown only where these name something or say what the glossary
knows: it fills a prompt, and what nobody asked for is not used. What a model was shown is not shown to it again, but for the
best hit of the most urgent question.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.knowledge import Hit, Query, Retriever
from cudal2_agent.contract.records.module_graph import OperationClass, classes_of
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask, Task
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation

Place = tuple[str, str]  # path and symbol of a chunk; its lines and its text vary with what was asked

DOCUMENT_KINDS = ("section",)
CODE_KINDS = ("class", "function", "alias", "macro", "variable", "enum", "text")
NOTE_HITS, NOTE_TOKENS = 2, 1700
CODE_HITS, CODE_TOKENS = 1, 900
_MOST_SKIPPED = 12  # chunks that were shown before, beyond which a question has no more to give
_SMALL = 256
_DEEP = 4
_TILE, _WAVE = 128, 132  # rows and columns of an ordinary tile, and how many of them a Hopper GPU multiplies at once
_SHORT, _LONG = 512, 1024  # K
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
# What is asked for each class of a module's operations, in the words of the notes.
_OPERATIONS = {
    OperationClass.RECURRENCE: "Recurrent steps of an RNN, LSTM or GRU: each waits for the state of the one before.",
    OperationClass.ATTENTION: "Attention as one online softmax over tiles of keys, whose scores are never stored.",
    OperationClass.CONVOLUTION: "A convolution as an implicit GEMM: addresses, borders, transposed and grouped ones.",
    OperationClass.PRODUCT: "Epilogue algebra: what may be fused behind a product, and rewrites right for all inputs.",
    OperationClass.SCAN: "A scan such as cumsum along a row: in a warp, in a CTA, and along long rows.",
    OperationClass.SOFTMAX: "Softmax and logsumexp of a row with an online maximum and sum.",
    OperationClass.NORM: "A norm: mean and variance of a row by Welford, without cancellation.",
    OperationClass.POOL: "Pooling: windows of maxima and means, borders, NaN and padding.",
    OperationClass.REDUCTION: "A reduction over rows or columns: tree, split among CTAs, last block.",
    OperationClass.MOVEMENT: "A transpose, permute, gather or concatenation without uncoalesced reads.",
    OperationClass.POINTWISE: "A pointwise kernel at the rate of memory: bytes in flight, loads of 16 bytes.",
}
_CONVOLUTION = "aten.convolution.default"  # its last argument is the number of groups
# Of convolutions and products that have a note of their own.
_DEPTHWISE = "A depthwise convolution of one input channel for each output, bound by memory."
_IN_F32 = "An f32 matrix product by fused multiply-adds, where TF32 is refused."
# What multiplies on a target: the mark of a source that uses it, and what is asked about it, the most needed first.
_OF_CHIP = {
    Arch.SM_100A: (
        "tcgen05",
        (
            "How one thread issues tcgen05.mma, with its instruction descriptor, commit and fences.",
            "How tensor memory is allocated, and accumulators are loaded with tcgen05.ld.",
        ),
    ),
    Arch.SM_90A: ("wgmma", (f"How to write {_FAMILIES['wgmma_tma']}.",)),
}
_OF_OLDER_CHIPS = ("mma", (f"How to write {_FAMILIES['mma_sync']}.",))
_MADE_FOR_SM_90A = ("latency", "resident", "wgmma_tma")


def look_up(
    retriever: Retriever,
    questions: Sequence[str],
    task: Task,
    constructs: Sequence[str] = (),
    shown: Collection[Place] = (),
    *,
    sure: bool = True,
) -> list[Hit]:
    """Notes for the questions first, then code for the constructs, without what was `shown`.

    Each has its own limit of hits and tokens, and its questions take turns. The best note for the first question stays, shown
    or not: a prompt holds nothing of the prompts before it. `sure`: code only for what the knowledge base recognises.
    """
    notes = Query(words="", arch=task.arch, kinds=DOCUMENT_KINDS, count=NOTE_HITS, tokens=NOTE_TOKENS)
    code = Query(words="", arch=task.arch, kinds=CODE_KINDS, count=CODE_HITS, tokens=CODE_TOKENS, sure=sure)
    return [*_in_turn(retriever, questions, notes, shown, stays=1), *_in_turn(retriever, constructs, code, shown)]


def shown_in(exchanges: Sequence[Exchange], observations: Mapping[str, Observation]) -> frozenset[Place]:
    """The chunks that the prompts of a run showed. `observations`: at least those of the exchanges."""
    return frozenset(
        place_of(hit)
        for exchange in exchanges
        if exchange.shown
        for hit in observations[exchange.observation_id].hits
        if hit.chunk.id in exchange.shown
    )


def _in_turn(
    retriever: Retriever, questions: Sequence[str], query: Query, shown: Collection[Place], *, stays: int = 0
) -> list[Hit]:
    """The best hit of each question, then the second best, and so on, without duplicates. The first `stays` may be shown ones.

    One query for several topics finds text that holds a little of each and seldom answers one.
    """
    asked = questions[: query.count]
    extra = min(len(shown), _MOST_SKIPPED)
    tokens = query.tokens // max(len(asked), 1) * (query.count + extra) // query.count
    wide = query.model_copy(update={"tokens": tokens, "count": query.count + extra})
    answers = [retriever.search(wide.model_copy(update={"words": question})) for question in asked]
    hits: dict[Place, Hit] = {}
    left = query.tokens
    for hit in (hit for rank in zip_longest(*answers) for hit in rank if hit is not None):
        place = place_of(hit)
        fits = len(hits) < query.count and hit.chunk.tokens <= left
        if fits and place not in hits and (place not in shown or len(hits) < stays):
            hits[place] = hit
            left -= hit.chunk.tokens
    return list(hits.values())


def place_of(hit: Hit) -> Place:
    """What identifies a chunk from question to question."""
    return hit.chunk.path, hit.chunk.symbol


def constructs_of(task: Task, in_hand: AnyCandidate | None, diagnosis: Diagnosis | None) -> list[str]:
    """Questions for code, which is of matrix products: the author's own words, and the remedy of the heaviest finding."""
    if isinstance(task, ModuleTask):
        return []
    return [*_own_words(in_hand), *(finding.remedy for finding in (diagnosis.findings[:1] if diagnosis else ()))]


def questions_of(task: Task, in_hand: AnyCandidate | None, diagnosis: Diagnosis | None) -> list[str]:
    """Questions in plain words, the most urgent first. The words of an error message ask nothing: they match no note."""
    findings, words = _findings(diagnosis), _own_words(in_hand)
    if isinstance(task, ModuleTask):
        about = list(_operations(task))
        return [*about[:1], *findings[:1], *words, *findings[1:], *about[1:]]
    return [*_of_chip(task, in_hand), *findings[:1], *words, *findings[1:], *_shape(task), *_having(task, in_hand)]


def _of_chip(task: GemmTask, in_hand: AnyCandidate | None) -> tuple[str, ...]:
    """What the target multiplies with, unless the kernel in hand uses it. Hopper's families have what they need."""
    mark, questions = _OF_CHIP.get(task.arch, _OF_OLDER_CHIPS)
    if in_hand is None:
        return questions if task.arch is Arch.SM_100A else ()  # elsewhere the shape says what is asked first
    made_for_it = task.arch is Arch.SM_90A and _family(in_hand) in _MADE_FOR_SM_90A
    return () if made_for_it or mark in in_hand.source else questions


def _own_words(in_hand: AnyCandidate | None) -> list[str]:
    """What the model that wrote the kernel in hand, or chose its schedule, says of it."""
    origin = in_hand.origin if in_hand else None
    return [origin.note] if origin and origin.prompt_hash and origin.note else []


def _operations(task: ModuleTask) -> Iterator[str]:
    """A question for each class of operations, those that shape a plan most first, then what the task's kind of them needs."""
    classes = classes_of(task.graph)
    if any(node.op == _CONVOLUTION and node.args[-1:] not in ((1,), ()) for node in task.graph.nodes):
        yield _DEPTHWISE
    yield from (_OPERATIONS[kind] for kind in classes)
    if OperationClass.PRODUCT in classes and task.arithmetic in (Arithmetic.F32, Arithmetic.TF32):
        yield _IN_F32


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


def _family(candidate: AnyCandidate) -> str:
    return str((candidate.origin.schedule or {}).get("family", ""))


def _having(task: GemmTask, in_hand: AnyCandidate | None) -> list[str]:
    """How the kernel in hand is made; before the first one, what the shape needs."""
    return (_schedule(in_hand) if in_hand else []) or [f"How to write {_leading(task)}."]


def _schedule(candidate: AnyCandidate) -> list[str]:
    schedule = candidate.origin.schedule or {}
    used = [words for axis, words in _AXES.items() if _in_use(schedule.get(axis))]
    family = _FAMILIES.get(_family(candidate))
    parts = list(dict.fromkeys([*([family] if family else []), *used]))
    return [f"How to write {part}." for part in parts]


def _leading(task: GemmTask) -> str:
    """What the question before the first candidate is about. For sm_90a the prompt has a pipeline of TMA and wgmma already."""
    if task.arch is not Arch.SM_90A:
        return _FAMILIES["mma_sync"]
    if -(-task.m // _TILE) * -(-task.n // _TILE) < _WAVE:
        return _FAMILIES["latency"] if task.k <= _LONG else _AXES["cluster_k"]
    if task.k <= _SHORT:
        return "large outputs of short K, where the epilogue takes the bytes per clock of shared memory"
    return "a persistent grid with a raster order that reuses L2"


def _in_use(value: ScheduleValue | None) -> bool:
    return value is True or (isinstance(value, int) and value > 1)


def _shape(task: GemmTask) -> list[str]:
    """What is unusual about the shape."""
    said = []
    if max(task.m, task.n) <= _SMALL:
        said.append("A small shape: load all operands at once, since latency of launch, prologue and epilogue dominates.")
    if task.k >= _DEEP * max(task.m, task.n):
        said.append("K is much larger than M and N: split-K or stream-K spreads the reduction over more SMs.")
    if task.k % 8 or task.n % 8:
        said.append("Odd sizes: rows are not aligned to 16 bytes, residue tiles need predication.")
    return said
