"""The names that the benchmark draws stand in one file, and equal inputs draw equal names."""

from benchmarks.retrieval.symbols import FORMS, Name, draw, missed
from cudal2_agent.contract.records.knowledge import Hit, Query
from tests.doubles import ScriptedRetriever

TEXTS = {
    "inc/ring.hpp": "struct Ring { int kDepth; }; int take_slot(); // sharedWord",
    "inc/pool.hpp": "struct Pool { int take_slot(); }; std::string file_name = to_string(sharedWord);",
    "src/pool.hpp": "#define only_here 1\nplainword ring",
}
SYMBOLS = [
    ("ns::Ring", "inc/ring.hpp"),
    ("ns::take_slot", "inc/ring.hpp"),
    ("ns::Pool::take_slot", "inc/pool.hpp"),
    ("ns::Pooled<A>::giveBack", "inc/pool.hpp"),
    ("ns::Pooled<B>::giveBack", "inc/pool.hpp"),
]


def drawn(kind: str, count: int = 200) -> dict[str, str]:
    return {name.name: name.path for name in draw(SYMBOLS, TEXTS, count) if name.kind == kind}


def test_each_kind_has_what_one_file_has() -> None:
    assert drawn("symbol") == {"giveBack": "inc/pool.hpp"}, "Ring is short, two files define take_slot"
    assert drawn("path") == {"ring.hpp": "inc/ring.hpp"}, "two files are called pool.hpp"
    mentions = {"kDepth": "inc/ring.hpp", "only_here": "src/pool.hpp", "file_name": "inc/pool.hpp", "to_string": "inc/pool.hpp"}
    assert drawn("mention") == mentions, "sharedWord stands in two files, plainword is no compound"


def test_the_draw_is_by_the_names_alone() -> None:
    few = drawn("mention", 2)
    turned = {path: TEXTS[path] for path in reversed(TEXTS)}
    assert len(few) == 2
    assert few == {name.name: name.path for name in draw(SYMBOLS[::-1], turned, 2) if name.kind == "mention"}


def test_a_question_has_its_name_in_one_of_the_forms() -> None:
    names = draw(SYMBOLS, TEXTS)
    assert all(name.question in [form.format(name.name) for form in FORMS] for name in names)


def test_a_name_whose_file_is_not_first_is_missed() -> None:
    class Empty:
        def search(self, query: Query) -> list[Hit]:
            assert query.count == 1
            return []

    path = ScriptedRetriever().hit.chunk.path
    right, wrong = (Name(kind="symbol", name="Ring", path=each) for each in (path, "elsewhere.hpp"))
    assert list(missed(ScriptedRetriever(), "r", [right, wrong])) == [(wrong, path)]
    assert list(missed(Empty(), "r", [right])) == [(right, "")]
