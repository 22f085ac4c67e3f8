"""What a round looks up in the knowledge base."""

from cudal2_agent.agent.observe.retrieval import (
    CODE_HITS,
    CODE_KINDS,
    CODE_TOKENS,
    DOCUMENT_KINDS,
    NOTE_HITS,
    NOTE_TOKENS,
    constructs_of,
    look_up,
    questions_of,
    shown_in,
    with_chunks,
)
from cudal2_agent.contract.records.candidate import Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.knowledge import Hit, Piece, Query
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from tests.doubles import CHIP, TASK, ScriptedRetriever, candidate
from tests.sandbox.emulator.modules.graphs import linear_norm

ORDINARY = GemmTask(m=8192, n=8192, k=8192)
DIAGNOSIS = Diagnosis(
    basis="timed",
    findings=(
        Finding(bottleneck="tail-wave", evidence="8 CTAs", remedy="use a persistent grid", weight=0.9),
        Finding(bottleneck="occupancy", evidence="4 CTAs", remedy="use fewer registers", weight=0.5),
        Finding(bottleneck="spills", evidence="12 bytes", remedy="use smaller tiles", weight=0.1),
    ),
)
EXCHANGE = {
    "round": 1, "sample": 0, "turn": 0, "prompt": {"messages": []}, "model": "m", "parameters": {}, "status": "complete",
    "reply": "", "usage": {"prompt_tokens": 1, "completion_tokens": 1, "counted": "server"}, "cost": 0, "seconds": 1,
    "created_at": "2026-11-23T00:00:00Z",
}  # fmt: skip


def scheduled(**schedule: ScheduleValue) -> Candidate:
    return candidate(0).model_copy(update={"origin": Origin(policy="schedule", schedule=schedule)})


def test_the_questions_follow_the_shape() -> None:
    def asked(m: int, n: int, k: int) -> str:
        return " ".join(questions_of(GemmTask(m=m, n=n, k=k), None, None))

    assert "latency" in asked(64, 64, 64)
    assert "split-K" in asked(128, 128, 16384)
    assert "Odd sizes" in asked(1000, 1001, 1000)
    assert questions_of(ORDINARY, None, None) == ["How to write a persistent grid with a raster order that reuses L2."]
    assert "short K" in asked(4096, 4096, 512)
    assert "loads all operands at once" in asked(256, 512, 1024)
    assert "distributed shared memory" in asked(512, 512, 16384)
    older = ORDINARY.model_copy(update={"arch": Arch.SM_80})
    assert questions_of(older, None, None) == ["How to write a cp.async multistage pipeline with ldmatrix and mma.sync."]


BLACKWELL = ORDINARY.model_copy(update={"arch": Arch.SM_100A})


def test_the_questions_follow_the_chip_until_a_kernel_uses_what_it_has() -> None:
    first = questions_of(BLACKWELL, None, None)
    assert ["tcgen05.mma" in first[0], "tensor memory" in first[1]] == [True, True]
    older_family = scheduled(family="mma_sync")
    assert questions_of(BLACKWELL, older_family, DIAGNOSIS)[: len(first[:2])] == first[:2]
    uses_it = candidate(0).model_copy(update={"source": 'asm("tcgen05.mma.cta_group::1");'})
    assert questions_of(BLACKWELL, uses_it, DIAGNOSIS)[0] == "Tail wave: use a persistent grid."
    assert "wgmma" in questions_of(ORDINARY, free("no tensor cores"), DIAGNOSIS)[0]
    assert "wgmma" not in questions_of(ORDINARY, scheduled(family="latency"), DIAGNOSIS)[0]


def free(note: str) -> Candidate:
    return candidate(0).model_copy(update={"origin": Origin(policy="chat", note=note, prompt_hash="1")})


def test_the_authors_own_words_are_asked_behind_the_heaviest_finding() -> None:
    in_hand = free("Warps take turns with the tensor cores").model_copy(update={"source": "wgmma"})
    assert questions_of(ORDINARY, in_hand, DIAGNOSIS)[:3] == [
        "Tail wave: use a persistent grid.",
        "Warps take turns with the tensor cores",
        "Occupancy: use fewer registers.",
    ]
    assert "take turns" in questions_of(linear_norm(3, 4, 5), in_hand, DIAGNOSIS)[2]


def test_what_went_wrong_is_asked_first_and_figures_not_at_all() -> None:
    asked = questions_of(ORDINARY, None, DIAGNOSIS)
    assert asked[:2] == [
        "Tail wave: use a persistent grid.",
        "Occupancy: use fewer registers.",
    ]
    assert not any("8 CTAs" in question or "smaller tiles" in question for question in asked)


def test_a_module_asks_about_its_first_operation_then_what_went_wrong_and_for_no_code_of_products() -> None:
    asked = questions_of(linear_norm(3, 4, 5), None, DIAGNOSIS)
    assert [question.split(":")[0] for question in asked[:3]] == ["Epilogue algebra", "Tail wave", "Occupancy"]
    assert "Welford" in asked[3]
    assert constructs_of(linear_norm(3, 4, 5), None, DIAGNOSIS) == []


def test_the_schedule_is_asked_about_in_words() -> None:
    in_hand = scheduled(family="wgmma_tma", cluster_m=2, cluster_n=2, splits=1, pingpong=True, programmatic=False, stages=4)
    asked = questions_of(ORDINARY, in_hand, None)
    assert [next(word for word in ("mbarrier", "multicast", "ping-pong") if word in question) for question in asked] == [
        "mbarrier",
        "multicast",
        "ping-pong",
    ]
    assert questions_of(ORDINARY, scheduled(family="latency"), None) != questions_of(ORDINARY, None, None)


def test_notes_and_code_are_asked_apart() -> None:
    retriever = Library(300)
    task = GemmTask(m=1, n=1, k=1, arch=Arch.SM_80)
    assert len(look_up(retriever, ["warps"], task, ["How to write a swizzle."])) == NOTE_HITS + CODE_HITS
    notes, code = retriever.queries
    assert (notes.kinds, code.kinds) == (DOCUMENT_KINDS, CODE_KINDS)
    assert (notes.words, code.words) == ("warps", "How to write a swizzle.")
    assert {query.arch for query in retriever.queries} == {Arch.SM_80}
    assert all(query.tokens > 0 for query in retriever.queries)


def test_code_is_looked_up_with_the_authors_words_or_the_heaviest_remedy() -> None:
    assert constructs_of(ORDINARY, None, None) == []
    assert constructs_of(ORDINARY, None, DIAGNOSIS) == ["use a persistent grid"]
    assert constructs_of(ORDINARY, free("a swizzled layout"), DIAGNOSIS) == ["a swizzled layout", "use a persistent grid"]
    retriever = Library(300)
    look_up(retriever, questions_of(ORDINARY, None, None), ORDINARY, constructs_of(ORDINARY, None, None))
    assert {query.kinds for query in retriever.queries} == {DOCUMENT_KINDS}


def test_code_nobody_asked_for_must_be_recognised() -> None:
    for sure in (True, False):
        retriever = Library(300)
        look_up(retriever, ["a"], TASK, ["b"], sure=sure)
        assert [query.sure for query in retriever.queries] == [False, sure]


def test_nothing_is_shown_twice_but_the_best_note_for_the_first_question() -> None:
    first = look_up(Library(300), ["a", "b"], TASK)
    [exchange, failed] = [
        Exchange.model_validate({**EXCHANGE, "observation_id": "o", "shown": shown})
        for shown in ([hit.chunk.id for hit in first], [])
    ]
    observation = Observation(task=TASK, chip=CHIP, round=1, seed=0, hits=tuple(first))
    shown = shown_in([exchange, failed], {"o": observation})
    assert shown == {("a.hpp", "x"), ("b.hpp", "x")}
    again = [hit.chunk.path for hit in look_up(Library(300), ["a", "b"], TASK, ["a"], shown)]
    assert again == ["a.hpp", "shared.hpp", "shared.hpp"], "a note stays, another is new, and so is the code"
    assert shown_in([failed], {}) == frozenset()


def test_a_question_asks_for_as_much_more_as_was_shown_before() -> None:
    library = Library(300)
    look_up(library, ["a"], TASK, (), {(str(number), "") for number in range(3)})
    [query] = library.queries
    assert (query.count, query.tokens) == (NOTE_HITS + 3, NOTE_TOKENS * (NOTE_HITS + 3) // NOTE_HITS)


class Library:
    """Answers every query with its own chunks and one chunk that is in every answer."""

    def __init__(self, characters: int) -> None:
        self.queries: list[Query] = []
        self._text = "x" * characters

    def search(self, query: Query) -> list[Hit]:
        self.queries.append(query)
        return [self._hit(f"{query.words}.hpp"), self._hit("shared.hpp"), self._hit(f"more {query.words}.hpp")]

    def _hit(self, path: str) -> Hit:
        chunk = ScriptedRetriever().hit.chunk.model_copy(update={"path": path, "text": self._text})
        return Hit(chunk=chunk, score=1.0)


def test_each_question_has_its_best_hit_before_any_has_more() -> None:
    found = [hit.chunk.path for hit in look_up(Library(300), ["a", "b"], TASK, ["c"])]
    assert found == ["a.hpp", "b.hpp", "c.hpp"]


def test_no_more_is_asked_than_can_be_shown() -> None:
    library = Library(300)
    many = [str(number) for number in range(20)]
    look_up(library, many, TASK, many)
    assert len(library.queries) == NOTE_HITS + CODE_HITS
    assert sum(query.tokens for query in library.queries) <= NOTE_TOKENS + CODE_TOKENS


def test_the_hits_stay_within_the_tokens() -> None:
    hits = look_up(Library(3500), ["a", "b"], TASK, ["c"])
    assert len(hits) == NOTE_TOKENS // 1000 + CODE_TOKENS // 1000


def test_every_kind_of_piece_is_asked_for_once() -> None:
    known = Piece.model_fields["kind"].annotation
    assert sorted(DOCUMENT_KINDS + CODE_KINDS) == sorted(known.__args__)  # type: ignore[union-attr]


def test_the_chunks_that_a_policy_named_are_kept() -> None:
    hits = tuple(ScriptedRetriever().search(Query(words="")))
    assert with_chunks(candidate(0), hits).origin.chunk_ids == (hits[0].chunk.id,)
    own = candidate(0).model_copy(update={"origin": Origin(policy="chat", chunk_ids=("mine",))})
    assert with_chunks(own, hits).origin.chunk_ids == ("mine",)
    bare = candidate(0).model_copy(update={"origin": Origin(policy="chat", prompt_hash="1")})
    assert with_chunks(bare, hits).origin.chunk_ids == (), "its prompt had no room for chunks"
    assert with_chunks(candidate(0), hits).id == candidate(0).id
