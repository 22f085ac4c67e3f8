"""The libraries that ship: whole, winning, and written today as they were measured.

A family whose source changed makes its entries stale: measure its shapes again, and build the library anew.
"""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

import cudal2
from agent.cli.main import main
from agent.library.entry_source import candidate_of
from cudal2.library.kernel_library import open_library
from cudal2.library.shipped_libraries import shipped_library, shipped_paths

ROOT = Path(__file__).parents[3]
H200 = ROOT / "cudal2" / "library" / "shipped" / "h200-offline-2026-11-23.jsonl.gz"
ROWS = [ROOT / "benchmarks" / "h200" / "rows" / f"{name}-2026-11-23.jsonl.gz" for name in ("offline", "blocks")]
TUNED = ROOT / "benchmarks" / "h200" / "rows" / "tuned-2026-11-23.jsonl"
SLOWER = ROOT / "benchmarks" / "library" / "slower_h200.txt"
MAX_BYTES = 3 * 2**20


@pytest.mark.parametrize("path", shipped_paths(), ids=lambda path: path.name)
def test_every_entry_wins_and_is_written_as_it_was_measured(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    library = open_library(path)
    assert len(library) > 100
    for entry in library:
        assert entry.wins
        assert not entry.programmatic
        assert candidate_of(entry).source


def test_the_library_of_a_chip() -> None:
    library = shipped_library("H200")
    assert library is not None
    assert library.path == H200
    assert shipped_library("A100") is None


def test_the_rows_give_the_library_that_ships(tmp_path: Path) -> None:
    out = tmp_path / "h200.jsonl.gz"
    rows = [word for file in ROWS for word in ("--rows", str(file))]
    words = ["--tuned", str(TUNED), "--without", str(SLOWER), "--out", str(out), "--name", "h200-2026-11-23"]
    assert main(["library", "build", *rows, *words]) == 0
    assert gzip.decompress(out.read_bytes()) == gzip.decompress(H200.read_bytes())


def test_it_imports_quickly_and_without_what_agents_need() -> None:
    code = (
        "import sys, time; begin_s = time.process_time(); import cudal2, cudal2.library.shipped_libraries; "
        "taken_s = time.process_time() - begin_s; "
        "heavy = {'torch', 'cupy', 'agent', 'sandbox', 'policies', 'sqlalchemy', 'typer'} & set(sys.modules); "
        "sys.exit(f'imported {heavy} in {taken_s:.2f} s' if heavy or taken_s > 1 else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_its_version_is_that_of_the_product() -> None:
    assert f'version = "{cudal2.__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")
