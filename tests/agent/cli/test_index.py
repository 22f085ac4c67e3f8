"""`index` end to end over small real trees: real splitting, real store, a small embedder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.knowledge.store import open_store
from tests.doubles import WordEmbedder
from tests.doubles.small_base import RING, plant, use_small_parts

GUIDE = "# Guide\n\n## Bank conflicts\n\nPad the rows of a tile or swizzle them.\n\n## Fences\n\nOne fence a batch.\n"


class Base:
    """A knowledge base in a temporary home, and the commands on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.stderr = ""

    def run(self, *words: str, code: int = 0) -> str:
        """The output of a command."""
        ended = main(["index", *words])
        captured = self.capsys.readouterr()
        self.stderr = captured.err
        assert ended == code, captured.err
        return captured.out

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))

    def refused(self, *words: str, code: int = 2) -> str:
        """The one line of a refused command."""
        assert self.run(*words, code=code) == ""
        [line] = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        return line

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `home` has the notes and the release `ring-1.0`."""
    folder = tmp_path_factory.mktemp("template")
    plant(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        settle(monkeypatch, folder)
        assert main(["index", "add", "tree", "--name", "ring-1.0"]) == 0
    return folder


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Base:
    """An empty index."""
    plant(tmp_path)
    settle(monkeypatch, tmp_path)
    made = Base(tmp_path, capsys)
    made.write("guide/guide.md", GUIDE)
    return made


@pytest.fixture
def built(base: Base, template: Path) -> Base:
    shutil.copytree(template / "home", base.folder / "home")
    return base


def own(base: Base) -> Base:
    """A base whose release comes from a tree that the test may change."""
    base.run("add", "tree", "--name", "ring-1.0")
    return base


def settle(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(folder / "home"))
    monkeypatch.setenv("CUDAL2_INDEX_JOBS", "1")
    monkeypatch.chdir(folder)
    use_small_parts(monkeypatch, folder)


def test_add_takes_in_the_release_and_the_notes(base: Base) -> None:
    reports = base.json("add", "tree", "--name", "ring-1.0")["releases"]
    assert [report["release"] for report in reports] == ["notes", "ring-1.0"]
    assert reports[1]["files"] == 1
    assert reports[1]["pieces"] >= 2
    assert "ring-1.0: splitting files" in base.stderr
    assert {release["name"]: release["kind"] for release in base.json("list")} == {"notes": "documents", "ring-1.0": "code"}


def test_the_same_files_again_cost_nothing(built: Base) -> None:
    [report] = built.json("add", "tree", "--name", "ring-1.0")["releases"]
    assert (report["split"], report["reused"], report["embedded"]) == (0, 1, 0)


def test_add_says_what_it_did_in_a_line(built: Base) -> None:
    (line,) = built.run("add", "guide", "--name", "guide").splitlines()
    assert line.startswith("guide: 1 files (1 new), ")


def test_update_of_a_checkout_that_moved_on_names_the_version_that_it_holds(base: Base) -> None:
    def holds(minor: int) -> None:
        macros = f"#define CUTLASS_MAJOR 9\n#define CUTLASS_MINOR {minor}\n#define CUTLASS_PATCH 0\n"
        base.write("checkout/include/cutlass/version.h", macros)

    holds(1)
    base.run("add", "checkout")
    base.run("add", "checkout", "--name", "mine")
    holds(2)
    base.run("update")
    assert "cutlass-9.1.0 is cutlass-9.2.0 now" in base.stderr
    assert [(one["name"], one["version"]) for one in base.json("list") if one["kind"] == "code"] == [
        ("cutlass-9.2.0", "9.2.0"),
        ("mine", "9.2.0"),
    ]
    base.run("update")
    assert " now: " not in base.stderr
    assert "sound" in base.run("verify")


def test_update_follows_what_changed(base: Base) -> None:
    built = own(base)
    built.write("tree/ring/ring.hpp", RING.replace("release_buffer", "hand_back"))
    reports = built.json("update", "ring-1.0")["releases"]
    assert [(report["release"], report["split"]) for report in reports] == [("ring-1.0", 1)]
    assert "hand_back" in built.run("search", "hand back", "--release", "ring-1.0")
    assert [report["split"] for report in built.json("update")["releases"]] == [0]


def test_update_goes_on_past_an_origin_that_is_gone(base: Base) -> None:
    built = own(base)
    built.run("add", "guide", "--name", "guide")
    (built.folder / "guide/guide.md").unlink()
    built.write("tree/ring/other.hpp", "struct Other {};\n")
    assert main(["index", "update", "--json"]) == 1
    captured = built.capsys.readouterr()
    assert [report["release"] for report in json.loads(captured.out)["releases"]] == ["ring-1.0"]
    assert "error: guide: " in captured.err
    assert {release["name"] for release in built.json("list")} == {"guide", "notes", "ring-1.0"}


def test_a_version_in_the_registry_is_not_fetched_again(built: Base) -> None:
    with open_store(built.folder / "home/knowledge", WordEmbedder()) as store:
        [release] = [each for each in store.releases() if each.kind == "code"]
        store.publish(release.model_copy(update={"origin": "9.9.9"}), store.manifest("ring-1.0"))
    assert built.json("update") == {"releases": []}
    assert "ring-1.0: a version in a package registry does not change" in built.stderr
    with open_store(built.folder / "home/knowledge", WordEmbedder()) as store:
        fields = {"origin": "/nowhere", "splitter": "an older one"}
        store.publish(release.model_copy(update=fields), store.manifest("ring-1.0"))
    assert "error: ring-1.0: " in built.refused("update", code=1)


def test_changed_notes_are_taken_in_by_any_update(built: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.index.indexing.NOTES_FOLDER", built.folder / "guide")
    assert [report["release"] for report in built.json("update", "ring-1.0")["releases"]] == ["notes", "ring-1.0"]
    assert built.json("search", "bank conflicts", "--release", "notes")["hits"][0]["chunk"]["path"] == "guide.md"


def test_remove(built: Base) -> None:
    assert built.json("remove", "ring-1.0") == {"removed": "ring-1.0", "files": 1}
    assert [release["name"] for release in built.json("list")] == ["notes"]
    assert "'ring-1.0' is not indexed; indexed releases: notes" in built.refused("remove", "ring-1.0")


def test_diff_by_area(built: Base) -> None:
    built.write("next/ring/ring.hpp", RING.replace("release_buffer", "hand_back"))
    built.run("add", "next", "--name", "ring-2.0")
    shown = built.run("diff", "ring-1.0", "ring-2.0")
    assert "ring::hand_back" in shown
    assert "ring::release_buffer" in shown
    assert "ring::hand_back" not in built.run("diff", "ring-1.0", "ring-2.0", "--area", "elsewhere")
    assert built.json("diff", "ring-1.0", "ring-2.0")
    assert "'ring-3.0' is not indexed" in built.refused("diff", "ring-1.0", "ring-3.0")


def test_status_tells_what_the_default_index_lacks(built: Base) -> None:
    status = built.json("status")
    assert status["lacking"] == ["CUTLASS 4.2.0"]
    assert status["model"] == WordEmbedder.identity
    assert "lacks CUTLASS 4.2.0" in built.run("status")


def test_status_tells_how_much_of_the_glossary_leads_somewhere(built: Base) -> None:
    """An invented library defines none of the names; a future CUTLASS may drop some."""
    status = built.json("status")
    assert 0 <= status["placed"] < status["concepts"] / 2
    assert f"{status['placed']:,} of {status['concepts']:,} concepts" in built.run("status")


def test_verify_finds_damage(built: Base) -> None:
    assert built.json("verify") == {"sound": True, "found": []}
    for generation in (built.folder / "home/knowledge/lexical").iterdir():
        shutil.rmtree(generation)
    assert "lexical index" in built.refused("verify", code=1)


def test_another_model_is_refused_until_rebuilt(built: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordEmbedder, "identity", "other-8")
    for words in (["search", "buffer"], ["add", "guide"], ["status"]):
        refusal = built.refused(*words)
        assert "words-8" in refusal
        assert "index rebuild" in refusal
    assert built.json("rebuild")["model"] == "other-8"
    assert built.json("search", "buffer")["hits"]


def test_search_for_a_person(built: Base) -> None:
    first, *lines = built.run("search", "hands a buffer back to the loader", "--kind", "function").splitlines()
    assert first.split()[0] == "1"
    assert "ring/ring.hpp:" in first
    assert "release_buffer" in first
    assert "(ring-1.0)" in first
    assert any("release_buffer(int stage)" in line for line in lines)


def test_search_filters(built: Base) -> None:
    built.run("add", "guide", "--name", "guide")
    assert {hit["chunk"]["release"] for hit in built.json("search", "fences", "--release", "guide")["hits"]} == {"guide"}
    assert {hit["chunk"]["path"] for hit in built.json("search", "stage", "--path", "ring/")["hits"]} == {"ring/ring.hpp"}
    assert len(built.json("search", "wgmma fence", "-k", "2")["hits"]) == 2
    assert all(Hit.model_validate(hit) for hit in built.json("search", "wgmma fence", "--arch", "sm_90")["hits"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give words to search for, or --queries FILE"),
        (["  "], "the query is empty"),
        (["x", "--queries", "y"], "give words to search for, or --queries FILE"),
        (["x", "--arch", "sm_70"], "--arch 'sm_70'"),
        (["x", "--kind", "klass"], "--kind 'klass' is not known; choose from class"),
        (["x", "--release", "4.3"], "release '4.3' is not indexed; indexed releases: notes, ring-1.0"),
        (["x", "-k", "0"], "-k"),
        (["--queries", "absent.jsonl"], "absent.jsonl cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_search_refuses(words: list[str], said: str, built: Base) -> None:
    assert said in built.refused("search", *words)


def test_a_file_of_questions(built: Base) -> None:
    lines = ['{"id": "b", "query": "release buffer", "kind": "extra fields are fine"}', "", '{"id": 7, "query": "producer"}']
    built.write("questions.jsonl", "\n".join(lines))
    answers = [json.loads(line) for line in built.run("search", "--queries", "questions.jsonl").splitlines()]
    assert [answer["id"] for answer in answers] == ["b", 7]
    for answer in answers:
        assert answer["results"]
        for result in answer["results"]:
            assert set(result) == {"path", "symbol", "start_line", "end_line", "score", "release"}
            assert result["path"] == "ring/ring.hpp"
            assert result["release"] == "ring-1.0"
            assert 1 <= result["start_line"] <= result["end_line"] < result["start_line"] + 150
    notes = json.loads(built.run("search", "--queries", "questions.jsonl", "--release", "notes", "-k", "1").splitlines()[0])
    assert [result["release"] for result in notes["results"]] == ["notes"]


@pytest.mark.parametrize("line", ["no json", "[1]", '{"id": "x"}', '{"query": "x"}', '{"id": "x", "query": 3}', "\x00", '"x"'])
def test_a_line_that_is_no_question(line: str, built: Base) -> None:
    built.write("questions.jsonl", '{"id": "a", "query": "stage"}\n\n' + line + "\n")
    out = built.run("search", "--queries", "questions.jsonl", code=2)
    assert [json.loads(answer)["id"] for answer in out.splitlines()] == ["a"]
    assert "questions.jsonl line 3: " in built.stderr
    assert len(built.stderr.splitlines()) == 1


@pytest.mark.parametrize("verb", [["search", "x"], ["list"], ["status"], ["verify"], ["diff", "a", "b"]])
def test_without_an_index_the_way_to_one_is_said(verb: list[str], base: Base) -> None:
    assert "cudal2-agent index add 4.2.0" in base.refused(*verb, code=1)
    assert not (base.folder / "home").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("absent", "'absent' is not a file or folder"),
        ("empty", "no C++, CUDA, Python or document file"),
        ("fake.zip", "fake.zip"),
    ],
)
def test_bad_sources_leave_no_trace(source: str, said: str, base: Base) -> None:
    (base.folder / "empty").mkdir()
    base.write("fake.zip", "no archive")
    assert said in base.refused("add", source)
    assert not (base.folder / "home/knowledge").exists()


@pytest.mark.parametrize("name", ["notes", "", "a b", "../up"])
def test_bad_names(name: str, base: Base) -> None:
    assert name in base.refused("add", "tree", "--name", name)


def test_one_writer_at_a_time(built: Base) -> None:
    with open_store(built.folder / "home/knowledge", WordEmbedder()):
        assert "is being written by" in built.refused("add", "guide", code=1)
        assert built.json("search", "buffer")["hits"]


def test_an_interrupt_leaves_the_old_state_and_says_so(built: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cudal2_agent.agent.index.indexing.index_tree", interrupted)
    built.run("add", "guide", code=130)
    assert "the index is unchanged" in built.stderr
    assert [release["name"] for release in built.json("list")] == ["notes", "ring-1.0"]
