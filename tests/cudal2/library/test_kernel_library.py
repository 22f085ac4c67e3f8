"""A library is found by task, and everything wrong with its files is one line."""

import gzip
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cudal2
from cudal2.dispatch.decision import Choice, Decision, FallbackCause, GpuIdentity
from cudal2.dispatch.dispatcher import Dispatcher, kind_code
from cudal2.dispatch.padded_m_rule import shipped_rule
from cudal2.library.kernel_library import TaskKey, key_of, open_library, shipped_library, shipped_paths
from cudal2.library.library_form import cubin_name, plan_name
from cudal2_agent.agent.cli.library.library_source import opened
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.library.library_building import read_products
from cudal2_agent.agent.library.library_writing import manifest_of, write_library
from cudal2_agent.agent.wiring import gpus
from cudal2_agent.contract.base import canonical_json
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.records.library import LibraryEntry, product_words
from cudal2_agent.contract.records.task import (
    AccumulatorType,
    Activation,
    Arch,
    ElementType,
    GemmTask,
    Layout,
    TimingMode,
    parse_shape,
)
from tests.doubles.libraries import library_entry, m_range, prepared, small_tasks, write_entries

TASKS = small_tasks()


@pytest.fixture(params=["small", "small.jsonl.gz"], ids=["folder", "packed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_entries(tmp_path / request.param, [library_entry(task) for task in TASKS])


def test_an_entry_is_found_by_its_task(path: Path) -> None:
    library = open_library(path)
    assert len(library) == len(TASKS)
    for task in TASKS:
        assert library.find(key_of(task)) == library_entry(task)
    assert library.find(TaskKey(16, 16, 64, "nn", "f16", "f32")) is not None  # type: ignore[arg-type]
    assert set(library.keys()) == {key_of(task) for task in TASKS}


@pytest.mark.parametrize(
    "change", [{"layout": Layout.TN}, {"m": 17}, {"n": 17}, {"k": 65}, {"element": "bf16"}, {"accumulate": "f16"}], ids=str
)
def test_no_other_task_is_served(path: Path, change: dict[str, object]) -> None:
    assert open_library(path).find(key_of(TASKS[0])._replace(**change)) is None  # type: ignore[arg-type]


def test_an_entry_is_found_by_its_shortened_id(path: Path) -> None:
    library = open_library(path)
    for entry in library:
        assert library.entry(entry.id[:12]) == entry
    for wrong in ("", "abc", "zzzzzz"):
        with pytest.raises(UsageError, match="no entry whose id begins"):
            library.entry(wrong)


def test_another_chip_is_told(path: Path) -> None:
    library = open_library(path)
    assert library.unfit_for("H200") == ""
    assert library.unfit_for("H100") == "library small was measured on H200, and this GPU is H100"


def test_an_id_is_the_hash_of_a_line(tmp_path: Path) -> None:
    path = write_entries(tmp_path / "small", [library_entry(task) for task in TASKS])
    hashes = [hashlib.sha256(line).hexdigest()[:32] for line in (path / "entries.jsonl").read_bytes().splitlines()]
    assert hashes == [entry.id for entry in open_library(path)]


def rewritten(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """The same library with other lines: its manifest and then its entries."""
    if path.is_dir():
        manifest, entries = path / "manifest.json", path / "entries.jsonl"
        first, *rest = change([json.dumps(json.loads(manifest.read_text())), *entries.read_text().splitlines()])
        manifest.write_text(first)
        entries.write_text("\n".join(rest) + "\n")
    else:
        lines = change(gzip.decompress(path.read_bytes()).decode().splitlines())
        path.write_bytes(gzip.compress("\n".join(lines).encode()))


def manifest_with(**changes: object) -> Callable[[list[str]], list[str]]:
    return lambda lines: [json.dumps(json.loads(lines[0]) | changes), *lines[1:]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines[:2], lines[2][:40], *lines[3:]], "entry 2 of"),
        (lambda lines: [*lines[:2], lines[2].replace("1.3", "1.9", 1), *lines[3:]], "not the one that the manifest names"),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], "entry 1 of"),
        (lambda lines: lines[:-1], "has 2 entries and its manifest names 3"),
        (lambda lines: ["{", *lines[1:]], "is not JSON"),
        (lambda lines: ["[]", *lines[1:]], "not a kernel library"),
        (manifest_with(format="parquet"), "not a kernel library"),
        (manifest_with(version=8), "has version 8 of the format and this product reads up to 7"),
        (manifest_with(version=8, of_tomorrow=1), "has version 8"),
        (manifest_with(chip=7), "chip: Input should be a valid string"),
        (manifest_with(chip="H100"), "is of H200 (sm_90a), the library of H100"),
        (manifest_with(arch="sm_80"), "is of H200 (sm_90a)"),
    ],
)
def test_what_is_damaged_or_foreign_is_one_line(path: Path, change: Callable[[list[str]], list[str]], said: str) -> None:
    rewritten(path, change)
    with pytest.raises(LibraryError) as caught:
        open_library(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_packed_file_that_is_cut_is_told(tmp_path: Path) -> None:
    path = write_entries(tmp_path / "small.jsonl.gz", [library_entry(task) for task in TASKS])
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"PK\x03\x04 something else", gzip.compress(b""), b""):
        path.write_bytes(content)
        with pytest.raises(LibraryError, match=r"damaged|empty|is not JSON"):
            open_library(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_library(tmp_path / "nothing")
    path = write_entries(tmp_path / "small", [library_entry(TASKS[0])])
    (path / "entries.jsonl").unlink()
    with pytest.raises(LibraryError, match=r"it has no entries\.jsonl"):
        open_library(path)


def test_an_entry_of_another_mode_and_a_second_one_are_refused(tmp_path: Path) -> None:
    server = TASKS[0].model_copy(update={"mode": TimingMode.SERVER})
    with pytest.raises(LibraryError, match="server mode"):
        open_library(write_entries(tmp_path / "server", [library_entry(server)]))
    twice = [library_entry(TASKS[0]), library_entry(TASKS[0], ratio=1.5)]
    with pytest.raises(LibraryError, match="two entries of one task"):
        open_library(write_entries(tmp_path / "twice", twice))


def test_an_entry_with_an_unknown_field_is_told_when_it_is_used(tmp_path: Path) -> None:
    """Its id is right, as that of a later product's entry is."""
    path = write_entries(tmp_path / "small", [library_entry(TASKS[0])])

    def later(lines: list[str]) -> list[str]:
        entry = canonical_json(json.loads(lines[1]) | {"of_tomorrow": 1})
        id_ = hashlib.sha256(entry.encode()).hexdigest()[:32]
        return [json.dumps(json.loads(lines[0]) | {"entries": [id_]}), entry]

    rewritten(path, later)
    with pytest.raises(LibraryError, match="is not valid: of_tomorrow Extra inputs"):
        open_library(path).find(key_of(TASKS[0]))


CUBIN = b"\x7fELF kernel"


def with_cubin(tmp_path: Path) -> tuple[Path, LibraryEntry]:
    sha256 = hashlib.sha256(CUBIN).hexdigest()
    entry = library_entry(TASKS[0], cubin_sha256=sha256)
    files = {
        cubin_name(sha256): CUBIN,
        plan_name(sha256, entry.task, 132): prepared(entry, CUBIN, 132).model_dump_json().encode(),
    }
    write_library(tmp_path / "small", manifest_of((entry,), name="small", chip="H200"), (entry,), files)
    return tmp_path / "small", entry


def test_a_kernel_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path, entry = with_cubin(tmp_path)
    library = open_library(path)
    kernel = library.kernel(entry, 132)
    assert kernel is not None
    assert kernel.cubin == CUBIN
    assert not any(launch.programmatic for launch in kernel.plan.launches)
    assert library.kernel(entry, 114) is None
    assert library.kernel(library_entry(TASKS[1]), 132) is None
    with pytest.raises(LibraryError, match="the plan of another entry"):
        library.kernel(entry.model_copy(update={"source_sha256": "0" * 64}), 132)
    file = path / "cubins" / f"{entry.cubin_sha256}.cubin"
    file.write_bytes(CUBIN[:-1])
    with pytest.raises(LibraryError, match="is damaged: it is not the kernel of its plan; copy the library anew"):
        library.kernel(entry, 132)
    other = b"\x7fELF another"
    file.write_bytes(other)
    plan = path / "cubins" / plan_name(hashlib.sha256(CUBIN).hexdigest(), entry.task, 132)
    plan.write_text(prepared(entry, other, 132).model_dump_json())
    with pytest.raises(LibraryError, match="does not have the hash of its name"):
        library.kernel(entry, 132)
    file.unlink()
    with pytest.raises(LibraryError, match="is missing or damaged"):
        library.kernel(entry, 132)


def test_a_thousand_entries_open_in_less_than_a_tenth_of_a_second(tmp_path: Path) -> None:
    model = library_entry(TASKS[0])
    tasks = (GemmTask(m=16 * (1 + number % 32), n=16 * (1 + number // 32), k=64) for number in range(1000))
    path = write_entries(tmp_path / "many.jsonl.gz", [model.model_copy(update={"task": task}) for task in tasks])
    taken_s = []
    for _ in range(5):
        begin_s = time.process_time()
        assert len(open_library(path)) == 1000
        taken_s.append(time.process_time() - begin_s)
    assert min(taken_s) < 0.1


# The libraries that ship: whole, winning, and written today as they were measured.
#
# A family whose source changed makes its entries stale: measure its shapes again, and build the library anew.
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
        "import sys, time; begin_s = time.process_time(); import cudal2, cudal2.library.kernel_library; "
        "taken_s = time.process_time() - begin_s; "
        "heavy = {'torch', 'cupy', 'agent', 'sandbox', 'policies', 'sqlalchemy', 'typer'} & set(sys.modules); "
        "sys.exit(f'imported {heavy} in {taken_s:.2f} s' if heavy or taken_s > 1 else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_its_version_is_that_of_the_product() -> None:
    assert f'version = "{cudal2.__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize("name", ["small", "small.jsonl.gz"])
def test_ranges_of_m_are_found_by_weight(tmp_path: Path, name: str) -> None:
    small, large = (library_entry(TASKS[0].model_copy(update={"m": m})) for m in (16, 40))
    other = library_entry(TASKS[1])
    ranges = [m_range(small, 4), m_range(large, 12)]
    library = open_library(write_entries(tmp_path / name, [large, small, other], ranges=ranges))
    assert library.manifest.version == 5
    key = key_of(TASKS[0])
    found = {m: one and one.entry for m in range(1, 42) for one in [library.range_of(key._replace(m=m))]}
    assert [m for m, entry in found.items() if entry == small] == list(range(4, 16))
    assert [m for m, entry in found.items() if entry == large] == list(range(16, 40))
    assert [(one.entry, one.m_range) for one in library.ranges(key)] == list(zip((small, large), ranges, strict=True))
    assert library.ranges(key_of(TASKS[1])) == []
    assert library.range_of(key._replace(m=12, layout=Layout.TN)) is None
    assert (library.range_below(large), library.range_below(other)) == (ranges[1], None)


def test_a_gated_entry_is_found_by_its_own_key_alone(tmp_path: Path) -> None:
    """Earlier versions, which would take it for a layer with an activation, refuse its library."""
    alone = TASKS[0].model_copy(update={"layout": Layout.TN})
    activated = alone.model_copy(update={"activation": Activation.SILU})
    gated = activated.model_copy(update={"gated": True})
    of_gate = library_entry(TASKS[0]).model_copy(update={"task": gated})
    library = open_library(write_entries(tmp_path / "small", [of_gate], ranges=[m_range(of_gate, 4)]))
    assert library.manifest.version == 7
    assert library.find(key_of(gated)) == of_gate
    assert library.range_of(key_of(gated)._replace(m=5)) is not None
    for other in (alone, activated):
        assert library.find(key_of(other)) is None
        assert library.range_of(key_of(other)._replace(m=5)) is None
    assert product_words(gated) == "16x16x64 tn f16/f32 gated silu"


def test_a_library_without_ranges_is_written_as_before(tmp_path: Path) -> None:
    manifest = json.loads((write_entries(tmp_path / "small", [library_entry(TASKS[0])]) / "manifest.json").read_text())
    assert manifest["version"] == 1
    assert "ranges" not in manifest


def test_a_range_of_no_entry_is_damage(tmp_path: Path) -> None:
    path = write_entries(tmp_path / "small", [library_entry(TASKS[0])], ranges=[m_range(library_entry(TASKS[0]), 4)])
    file = path / "manifest.json"
    for change in ({"entry": "0" * 32}, {"smallest": 0}, {"unknown": 1}):
        manifest = json.loads(file.read_text())
        manifest["ranges"][0] |= change
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "manifest.json").write_text(json.dumps(manifest))
        (tmp_path / "other" / "entries.jsonl").write_bytes((path / "entries.jsonl").read_bytes())
        with pytest.raises(LibraryError, match=r"^the manifest of .* is damaged: ") as caught:
            open_library(tmp_path / "other")
        assert "\n" not in str(caught.value)
