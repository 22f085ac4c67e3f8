"""Damage is reported in one line with a remedy, and repaired if possible."""

import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.search.searcher import open_search
from cudal2_agent.knowledge.store import generations, open_store
from tests.knowledge.store.samples import TinyModel, add, filled, indexed, quiet, release, split_file

ROOT = Path(__file__).resolve().parents[3]


def sql(statement: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        connection = sqlite3.connect(folder / "knowledge.sqlite")
        connection.execute(statement)
        connection.commit()
        connection.close()

    return damage


def content(folder: Path) -> dict[str, bytes]:
    """All files except the shared-memory files of SQLite."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".sqlite-shm", ".sqlite-wal"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def garble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60:] = bytes((byte * 7 + 3) % 256 for byte in content[60:])
    path.write_bytes(content)


def without_vector(folder: Path) -> None:
    with open_store(folder, TinyModel()) as store:
        store._vectors.remove([next(each for each in indexed(store).values() if each)])


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a piece is gone": (sql("DELETE FROM pieces WHERE id = 1"), "should have 3 pieces but has 2"),
    "a text is another": (
        sql("UPDATE files SET text = (SELECT text FROM files WHERE id = 2) WHERE id = 1"),
        "differs from the one",
    ),
    "a text is garbled": (sql("UPDATE files SET text = x'00ff' WHERE id = 1"), "cannot be read"),
    "a digest is another": (sql("UPDATE pieces SET text_digest = 'x' WHERE id = 1"), "1 pieces of include/f0.hpp"),
    "a file is not listed": (sql("DELETE FROM members WHERE path = 'include/f1.hpp'"), "should list 4 files with 12 pieces"),
    "the index is garbled": (lambda folder: garble(folder / "lexical/1/columns.npz"), "lexical index .* is missing or damaged"),
    "a vector is gone": (without_vector, "1 of 8 vectors are missing"),
    "all vectors are gone": (lambda folder: shutil.rmtree(folder / "chroma-0"), "vectors cannot be read: Chroma folder"),
    "the vectors are garbled": (lambda folder: garble(folder / "chroma-0/chroma.sqlite3"), "vectors cannot be read"),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.values(), ids=list(DAMAGE))
def test_verify_names_each_kind_of_damage(tmp_path: Path, damage: Callable[[Path], None], sentence: str) -> None:
    filled(tmp_path)
    damage(tmp_path)
    with open_store(tmp_path, TinyModel(), read_only=True) as store:
        found = store.verify()
    assert any(re.search(sentence, line) for line in found), found
    assert all(line.endswith(".") and "\n" not in line for line in found)


@pytest.mark.parametrize(
    "damage", ["a vector is gone", "all vectors are gone", "the vectors are garbled", "the index is garbled"]
)
def test_making_the_vectors_anew_mends_them_and_the_index(tmp_path: Path, damage: str) -> None:
    filled(tmp_path)
    DAMAGE[damage][0](tmp_path)
    with open_store(tmp_path, TinyModel(), rebuild=True) as store:
        assert store.reembed() == 8
        assert store.verify() == []
        assert len(store.nearest(store.embed_query("x"), 9)) == 8


def test_a_missing_lexical_index_is_rebuilt_by_a_writer_and_told_to_a_reader(tmp_path: Path) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "lexical")
    with pytest.raises(KnowledgeError, match=r"lexical.1 is missing or damaged; run: cudal2-agent index update"):
        open_store(tmp_path, TinyModel(), read_only=True)
    with open_store(tmp_path, TinyModel()) as store:
        assert store.verify() == []
        assert len(indexed(store)) == 12


def test_a_search_before_the_first_release_is_finished_says_so(tmp_path: Path) -> None:
    open_store(tmp_path, TinyModel()).close()
    with (
        open_store(tmp_path, TinyModel(), read_only=True) as store,
        pytest.raises(KnowledgeError, match="is unfinished: no release is complete"),
    ):
        open_search(store, asker=TinyModel())


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("written", [b"no database at all" * 100, None])
def test_a_damaged_database_is_refused_and_left_alone(tmp_path: Path, written: bytes | None, read_only: bool) -> None:
    filled(tmp_path)
    database = tmp_path / "knowledge.sqlite"
    database.write_bytes(written or database.read_bytes()[:9000])
    before = database.read_bytes()
    with pytest.raises(KnowledgeError, match=r"is damaged \(.*\); move the folder away and run") as told:
        open_store(tmp_path, TinyModel(), read_only=read_only)
    assert "\n" not in str(told.value)
    assert database.read_bytes() == before


def test_a_newer_format_and_somebody_elses_tables_are_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    sql("UPDATE meta SET value = '99' WHERE key = 'format'")(tmp_path)
    with pytest.raises(KnowledgeError, match="has format 99, this version reads 1; install the version that wrote it"):
        open_store(tmp_path, TinyModel())
    other = tmp_path / "other"
    other.mkdir()
    sql("CREATE TABLE recipes (name)")(other)
    with pytest.raises(KnowledgeError, match="is not a knowledge base; set CUDAL2_KNOWLEDGE"):
        open_store(other, TinyModel())


def test_no_knowledge_base_is_told_with_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match=r"no knowledge base in .*; make one: cudal2-agent index add 4.2.0"):
        open_store(tmp_path / "none", TinyModel(), read_only=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(KnowledgeError, match="check the path, its permissions and space"):
        open_store(tmp_path / "file", TinyModel())


def test_a_reader_may_not_write(tmp_path: Path) -> None:
    filled(tmp_path)
    before = content(tmp_path)
    with open_store(tmp_path, TinyModel(), read_only=True) as store:
        for attempt in (lambda: store.stage([], quiet), lambda: store.publish(release("x"), {}), store.collect, store.reembed):
            with pytest.raises(KnowledgeError, match="open for reading"):
                attempt()
    assert content(tmp_path) == before


def test_a_disk_that_fills_up_while_the_index_is_built_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, _: object) -> None:
        (folder / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    filled(tmp_path)
    monkeypatch.setattr(generations, "build", full)
    with open_store(tmp_path, TinyModel()) as store:
        with pytest.raises(KnowledgeError, match=r"out of space; free some and run the command again"):
            add(store, "2.0", [split_file("new.hpp")])
        assert [found.name for found in store.releases()] == ["1.0"]
        assert store.verify() == []
    assert [path.name for path in (tmp_path / "lexical").iterdir()] == ["1"]


def test_a_limit_on_file_size_is_one_clear_error_and_the_old_state_stays(tmp_path: Path) -> None:
    filled(tmp_path)
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from cudal2_agent.contract.errors import KnowledgeError\n"
        "from tests.knowledge.store.samples import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with open_store(Path(sys.argv[1]), TinyModel()) as store:\n"
        "    splits = [split_file(f'big/{n}.hpp', 60, salt=str(n) * 3000) for n in range(30)]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        add(store, '2.0', splits)\n"
        "    except KnowledgeError as exc:\n"
        "        print(exc)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.count("\n") == 1, run.stdout + run.stderr
    assert "space" in run.stdout
    with open_store(tmp_path, TinyModel()) as store:
        assert [found.name for found in store.releases()] == ["1.0"]
        assert store.verify() == []
        assert len(store.nearest(store.embed_query("x"), 8)) == 8
