"""The libraries that ship: whole, winning, and written today as they were measured.

A family whose source changed makes its entries stale: measure its shapes again, and build the library anew.
"""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

import cudal2
from cudal2.dispatch.causes import FallbackCause
from cudal2.dispatch.decision import Choice, Decision, GpuIdentity
from cudal2.dispatch.dispatcher import Dispatcher, kind_code
from cudal2.dispatch.padded_m_rule import shipped_rule
from cudal2.library.kernel_library import open_library
from cudal2.library.shipped_libraries import shipped_library, shipped_paths
from cudal2_agent.agent.cli.library.library_source import opened
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.library.library_building import read_products
from cudal2_agent.agent.wiring import gpus
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, Layout, parse_shape

ROOT = Path(__file__).parents[3]
SHIPPED, ROWS = ROOT / "cudal2" / "library" / "shipped", ROOT / "benchmarks" / "campaigns"
SLOWER = ROOT / "benchmarks" / "library"
H200, H100 = SHIPPED / "h200-offline-2026-11-27.jsonl.gz", SHIPPED / "h100-offline-2026-11-27.jsonl.gz"
KINDS = ("offline", "offgrid", "tn", "nt", "blocks", "bf16")
H200_ROWS = sorted(path for kind in KINDS for path in (ROWS / "rows").glob(f"{kind}-*.jsonl.gz"))
H200_WORDS = [
    *(word for file in H200_ROWS for word in ("--rows", str(file))),
    *("--tuned", str(ROWS / "rows" / "tuned-2026-11-23.jsonl")),
    *("--tuned", str(ROWS / "rows" / "tuned-bf16-2026-11-27.jsonl")),
    *("--without", str(SLOWER / "slower_h200.txt"), "--name", "h200-2026-11-27"),
]
H100_WORDS = [
    *("--rows", str(ROWS / "h100" / "offline-2026-11-26.jsonl.gz")),
    *("--rows", str(ROWS / "h100" / "bf16-2026-11-27.jsonl.gz"), "--chip", "H100 80GB HBM3"),
    *("--without", str(SLOWER / "slower_h100.txt"), "--name", "h100-2026-11-27"),
]
MAX_BYTES = 3 * 2**20


@pytest.mark.parametrize("path", shipped_paths(), ids=lambda path: path.name)
def test_every_entry_wins_and_is_written_as_it_was_measured(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    library = open_library(path)
    assert len(library) > 50
    for entry in library:
        assert entry.wins
        assert not entry.programmatic
        assert candidate_of(entry).source


def test_the_library_of_a_chip() -> None:
    library = shipped_library("H200")
    assert library is not None
    assert library.path == H200 == shipped_paths()[0], "commands without a GPU read the largest"
    other = shipped_library("H100 80GB HBM3")
    assert other is not None
    assert other.path == H100
    assert shipped_library("A100") is None


@pytest.mark.parametrize(("shipped", "words"), [(H200, H200_WORDS), (H100, H100_WORDS)], ids=["H200", "H100"])
def test_the_rows_give_the_library_that_ships(tmp_path: Path, shipped: Path, words: list[str]) -> None:
    out = tmp_path / "built.jsonl.gz"
    assert main(["library", "build", *words, "--out", str(out)]) == 0
    assert gzip.decompress(out.read_bytes()) == gzip.decompress(shipped.read_bytes())


@pytest.mark.parametrize(
    ("shipped", "chip", "slower"),
    [(H200, "H200", "slower_h200.txt"), (H100, "H100 80GB HBM3", "slower_h100.txt")],
    ids=["H200", "H100"],
)
def test_products_in_bf16_are_served_but_those_that_were_slower(shipped: Path, chip: str, slower: str) -> None:
    gpu = GpuIdentity(gpu=chip, driver="580.159.04", arch=Arch.SM_90A, sms=132, cublas="13.1.0")
    dispatcher = Dispatcher(open_library(shipped), gpu, shipped_rule())

    def decide(shape: str, layout: Layout, element: ElementType) -> Decision:
        return dispatcher.decide(*parse_shape(shape), kind_code(layout, element, AccumulatorType.F32))

    served = decide("64x64x4096", Layout.NN, ElementType.BF16)
    assert served.choice is Choice.EXACT
    assert served.task is not None
    assert served.task.element is ElementType.BF16
    in_f16 = decide("64x64x4096", Layout.NN, ElementType.F16)
    assert in_f16.cause is (None if shipped == H200 else FallbackCause.NO_ENTRY), "the H100 searched it in BF16 only"
    products = read_products(SLOWER / slower)
    assert ElementType.BF16 in {element for _, _, element in products}
    assert {decide(*product).choice for product in products if product[2] is ElementType.BF16} == {Choice.HEURISTIC}


@pytest.mark.parametrize(("name", "chip"), [("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"), ("NVIDIA A100", "H200")])
def test_a_command_reads_the_library_of_the_gpu_at_hand(monkeypatch: pytest.MonkeyPatch, name: str, chip: str) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", lambda: [gpus.Gpu(index=0, name=name, arch=None)])
    assert opened(None).manifest.chip == chip


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
