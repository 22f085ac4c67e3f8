"""After a kill of the writer at any point, readers see the old state, and the next writer continues."""

import subprocess
import sys
from pathlib import Path

import pytest

from cudal2_agent.knowledge.store import open_store
from tests.knowledge.store.killed import added
from tests.knowledge.store.samples import TinyModel, add, indexed

ROOT = Path(__file__).resolve().parents[3]
PLACES = {
    "after one batch": False,
    "between vectors and rows": False,
    "while the lexical index is built": False,
    "between rename and commit": False,
    "before old generations are deleted": True,
    "while vectors are made anew": False,
}


@pytest.fixture(scope="module")
def killed_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store per point in the code at which its writer was killed."""
    root = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.knowledge.store.killed", *(str(root / place) for place in PLACES)]
    subprocess.run(command, cwd=ROOT, check=True)
    return root


@pytest.mark.parametrize(("place", "published"), PLACES.items())
def test_a_killed_writer_leaves_a_whole_state_and_the_next_goes_on(killed_in: Path, place: str, published: bool) -> None:
    folder = killed_in / place
    with open_store(folder, TinyModel(), read_only=True) as store:
        assert [found.name for found in store.releases()] == (["1.0", "2.0"] if published else ["1.0"])
        assert len(indexed(store)) == (6 + 48 if published else 6)
        assert store.verify() == []
    model = TinyModel()
    with open_store(folder, model) as store:
        counts = add(store, "2.0", added())
        assert store.verify() == []
        assert store.collect() == 0
        assert len(indexed(store)) == 54
        assert len(model.asked) == counts.embedded
    assert not list((folder / "lexical").glob("*building*"))
    if place == "after one batch":
        assert 0 < counts.pieces < 48
    if place == "between vectors and rows":
        assert counts.pieces == 48
        assert counts.embedded == 16  # the killed run's first batch is reused


def test_vectors_made_anew_by_a_killed_run_are_kept_for_the_next(killed_in: Path) -> None:
    folder = killed_in / "while vectors are made anew"
    with open_store(folder, TinyModel()) as store:
        before = set(store.manifest("1.0").values())
        model = TinyModel()
    with open_store(folder, model) as store:
        store.remove("2.0")
        store.collect()
        assert store.reembed() == 4
        assert model.asked == []
        assert set(store.manifest("1.0").values()) == before
        assert store.verify() == []
    assert [path.name for path in folder.glob("chroma-*")] == ["chroma-1"]


def test_two_processes_write_one_after_the_other(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from cudal2_agent.contract.errors import KnowledgeBusy\n"
        "from tests.knowledge.store.samples import *\n"
        "name, end = sys.argv[1], time.monotonic() + 60\n"
        "while True:\n"
        "    try:\n"
        "        filled(Path(sys.argv[2]), name)\n"
        "        break\n"
        "    except KnowledgeBusy:\n"
        "        assert time.monotonic() < end\n"
        "        time.sleep(0.05)\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, name, str(tmp_path)], cwd=ROOT) for name in ("a", "b")]
    assert [process.wait() for process in running] == [0, 0]
    with open_store(tmp_path, TinyModel(), read_only=True) as store:
        assert [found.name for found in store.releases()] == ["a", "b"]
        assert len(indexed(store)) == 12
        assert store.verify() == []
