"""Which measured kernels become entries, from rows and from a store, and how a library is written."""

import gzip
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cudal2.library.kernel_library import key_of, open_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.campaign.result_files import write_results
from cudal2_agent.agent.library.entry_choice import (
    BY_NVCC,
    EXCLUDED,
    NO_FAMILY,
    NO_SOURCE,
    NOT_FASTER,
    OTHER_TEXT,
    OWN_FLAGS,
    choose_entries,
    product_of,
)
from cudal2_agent.agent.library.entry_source import candidate_of, from_text
from cudal2_agent.agent.library.library_building import (
    BuildOptions,
    build_from_rows,
    build_from_store,
    extend_library,
    read_products,
)
from cudal2_agent.agent.library.measured_kernels import MeasuredKernel, Origins
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.plan.plan import render_plan
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured, Timing
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout, TimingMode
from cudal2_agent.contract.reward.speedup import Speedup
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.families.registry import written
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import Store, open_store
from tests.doubles import ENVIRONMENT, NOW, OBSERVATION, PLAN, measured, run_record, step
from tests.doubles.libraries import LATENCY, library_entry, small_tasks, write_entries

TASKS = small_tasks()
ROOT = Path(__file__).parents[3]
H200 = "H200 driver-580.1 toolkit-13.0 cublas-13.1"


def nothing(_: MeasuredKernel) -> Origins:
    return Origins()


def row(task: GemmTask, low: float = 1.2, **changes: Any) -> ShapeResult:
    """A row whose plain winner is today's kernel of the schedule."""
    winner: dict[str, Any] = {
        "candidate_id": written(LATENCY, task).id,
        "step_index": 3,
        "schedule": LATENCY,
        "programmatic": False,
        "time_us": 2.0,
        "speedup": Speedup(baseline=AUTOTUNED, ratio=low + 0.01, low=low, high=low + 0.02),
    }
    plain = Winner(**winner | changes.pop("winner", {}))
    fields: dict[str, Any] = {
        "task": task,
        "run_id": f"run-{task.shape}-{low}",
        "environment": H200,
        "best": plain.model_copy(update={"programmatic": True, "time_us": 1.5}),
        "best_without": plain,
        "baselines_us": {AUTOTUNED: 2.5},
        "floor_us": 1.0,
        "witness": "agreed",
        "finished_at": NOW,
    }
    return ShapeResult(**fields | changes)


def rows_in(path: Path, *rows: ShapeResult) -> Path:
    write_results(path, rows)
    return path


def kernels(*rows: ShapeResult) -> list[MeasuredKernel]:
    return [MeasuredKernel("H200", one.best_without, one) for one in rows if one.best_without]


def build(paths: list[Path], out: Path, **changes: Any) -> Any:
    settings = load_settings(home=out.parent / "home", compile_jobs=2)
    return build_from_rows(paths, out, BuildOptions(**changes), settings)


def test_an_entry_says_what_the_plain_launch_measured(tmp_path: Path) -> None:
    manifest, *_ = build([rows_in(tmp_path / "rows.jsonl.gz", row(TASKS[0]))], tmp_path / "h200")
    library = open_library(tmp_path / "h200")
    entry = library.find(key_of(TASKS[0]))
    assert entry is not None
    assert (manifest.name, manifest.chip, manifest.arch) == ("h200", "H200", "sm_90a")
    assert manifest.created == NOW.date()
    assert (entry.evaluation.time_us, entry.evaluation.speedup.low, entry.programmatic) == (2.0, 1.2, False)
    assert entry.evaluation.environment == H200
    assert entry.schedule == LATENCY
    assert candidate_of(entry).id == written(LATENCY, TASKS[0]).id


def test_of_several_kernels_for_a_task_the_best_lower_bound_is_taken() -> None:
    slow, fast = row(TASKS[0], 1.1), row(TASKS[0], 1.3, finished_at=NOW - timedelta(days=9))
    for order in ((slow, fast), (fast, slow)):
        [entry] = choose_entries(kernels(*order), nothing).entries
        assert entry.evaluation.speedup.low == 1.3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"low": 0.99}, NOT_FASTER),
        ({"low": 1.0}, NOT_FASTER),
        ({"winner": {"candidate_id": "0123456789abcdef"}}, OTHER_TEXT),
        ({"winner": {"schedule": LATENCY | {"family": "of_tomorrow"}}}, NO_FAMILY),
        ({"winner": {"schedule": LATENCY | {"block_m": 24}}}, NO_FAMILY),
        ({"winner": {"schedule": LATENCY | {"of_tomorrow": 1}}}, NO_FAMILY),
        ({"winner": {"schedule": None}}, NO_SOURCE),
    ],
)
def test_a_kernel_that_cannot_be_an_entry_is_left_out(changes: dict[str, Any], reason: str) -> None:
    choice = choose_entries(kernels(row(TASKS[0], **changes), row(TASKS[1])), nothing)
    assert [entry.task for entry in choice.entries] == [TASKS[1]]
    [left] = choice.left_out
    assert (left.task, left.reason) == (TASKS[0], reason)
    assert bool(left.detail) == (reason == NO_FAMILY)


def test_a_library_names_what_was_searched_in_vain(tmp_path: Path) -> None:
    """By a race, or by who leaves it out; a stale kernel says nothing of its product. Tuning keeps the names."""
    three = small_tasks(4)
    rows = [row(three[0], 0.9), row(three[1], 1.2), row(three[2], winner={"candidate_id": "0123456789abcdef"}), row(three[3])]
    write_results(tmp_path / "rows.jsonl.gz", rows)
    without = frozenset({product_of(three[3])})
    build([tmp_path / "rows.jsonl.gz"], tmp_path / "small", without=without)
    manifest = open_library(tmp_path / "small").manifest
    assert manifest.no_faster == (f"{three[0].shape} nn f16/f32", f"{three[3].shape} nn f16/f32")
    assert manifest.version == 3
    extend_library(open_library(tmp_path / "small"), [], tmp_path / "more", "H200")
    assert open_library(tmp_path / "more").manifest.no_faster == manifest.no_faster
    build([tmp_path / "rows.jsonl.gz"], tmp_path / "all", winning_only=False)
    told = json.loads((tmp_path / "all/manifest.json").read_text("utf-8"))
    assert told["version"] == 1
    assert "no_faster" not in told, "older products read it"


def test_the_next_best_takes_the_place_of_a_kernel_that_cannot_be_written() -> None:
    stale = row(TASKS[0], 1.9, winner={"candidate_id": "0123456789abcdef"})
    [entry] = choose_entries(kernels(stale, row(TASKS[0], 1.2)), nothing).entries
    assert entry.evaluation.speedup.low == 1.2


def test_kernels_that_do_not_win_are_kept_where_they_are_wanted() -> None:
    choice = choose_entries(kernels(row(TASKS[0], 0.9)), nothing, winning_only=False)
    assert [entry.wins for entry in choice.entries] == [False]


def test_products_that_are_named_get_no_entry() -> None:
    twice = kernels(row(TASKS[0]), row(TASKS[1]))
    other = ElementType.BF16
    without = frozenset(
        {product_of(TASKS[0]), (TASKS[1].shape, Layout.TN, TASKS[1].element), (TASKS[1].shape, Layout.NN, other)}
    )
    choice = choose_entries(twice, nothing, without=without)
    assert [entry.task for entry in choice.entries] == [TASKS[1]]
    assert [(left.task, left.reason) for left in choice.left_out] == [(TASKS[0], EXCLUDED)]


def test_a_file_names_products(tmp_path: Path) -> None:
    file = tmp_path / "slower.txt"
    file.write_text("# slower today\n512x4096x64 tn  # 0.97\n\n64_64_64\n64x64x8 nt bf16\n")
    half = ElementType.F16
    named = {("512x4096x64", Layout.TN, half), ("64x64x64", Layout.NN, half), ("64x64x8", Layout.NT, ElementType.BF16)}
    assert read_products(file) == named
    told = (
        ("64x64", "line 1"),
        ("64x64x64 tt", "write a shape, a layout"),
        ("64x64x64 nn f8", "1"),
        ("64x64x64 nn f16 2", "1"),
    )
    for line, said in told:
        file.write_text(line)
        with pytest.raises(UsageError, match=said):
            read_products(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_products(tmp_path)


def test_equal_rows_give_equal_bytes_in_any_order(tmp_path: Path) -> None:
    rows = [row(task, low) for task in TASKS for low in (1.1, 1.2)]
    for name, order in (("a", rows), ("b", rows[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in order))
        build([tmp_path / name / "rows.jsonl"], tmp_path / f"{name}.jsonl.gz")
        build([tmp_path / name / "rows.jsonl"], tmp_path / f"{name}-folder")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    for file in ("manifest.json", "entries.jsonl"):
        assert (tmp_path / "a-folder" / file).read_bytes() == (tmp_path / "b-folder" / file).read_bytes()


def test_rows_of_the_server_mode_and_without_an_environment_are_not_taken(tmp_path: Path) -> None:
    server = row(TASKS[0].model_copy(update={"mode": TimingMode.SERVER}))
    nowhere = row(TASKS[1], environment=None)
    build([rows_in(tmp_path / "rows.jsonl.gz", server, nowhere, row(TASKS[2]))], tmp_path / "h200")
    assert [entry.task for entry in open_library(tmp_path / "h200")] == [TASKS[2]]
    with pytest.raises(UsageError, match="no kernel was measured with plain launches"):
        build([rows_in(tmp_path / "other.jsonl.gz", server, nowhere)], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_library_is_of_one_chip(tmp_path: Path) -> None:
    h100 = row(TASKS[1], environment=H200.replace("H200", "H100 PCIe"))
    rows = [rows_in(tmp_path / "rows.jsonl.gz", row(TASKS[0]), h100)]
    with pytest.raises(UsageError, match="several chips were measured: H100 PCIe, H200; choose one with --chip"):
        build(rows, tmp_path / "both")
    with pytest.raises(UsageError, match="no kernel was measured on 'A100'"):
        build(rows, tmp_path / "both", chip="A100")
    manifest, *_ = build(rows, tmp_path / "h100", chip="H100 PCIe")
    assert (manifest.name, manifest.chip) == ("h100-pcie", "H100 PCIe")
    assert [entry.task for entry in open_library(tmp_path / "h100")] == [TASKS[1]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'home' / 'trajectories.sqlite'}"


def from_store(url: str, out: Path) -> Any:
    return build_from_store(out, BuildOptions(), load_settings(store=url))


SOURCE = render_plan(PLAN) + '\nextern "C" __global__ void gemm(void* d) {}\n'


def measured_at(time_us: float, baseline_us: float = 10.0) -> Measured:
    """A measurement on an H200, beside a named algorithm."""
    found = measured(time_us, baseline_us, effort="race")
    timing = Timing(name=AUTOTUNED, samples_us=(baseline_us,) * 5, detail="layout tn, algorithm 66, tile 64x32; best of 6")
    environment = ENVIRONMENT.model_copy(update={"gpu": "H200"})
    return found.model_copy(update={"baselines": (timing,), "environment": environment})


def stored_run(store: Store, task: GemmTask, candidate: Candidate, time_us: float, **changes: Any) -> str:
    run = run_record(f"run-{task.shape}", task=task, **{"status": "finished", **changes})
    store.start_run(run)
    store.record_observation(run.run_id, OBSERVATION)
    evaluation = measured_at(time_us)
    store.record_step(step(0, run_id=run.run_id, candidate=candidate, evaluation=evaluation))
    return run.run_id


def test_a_store_gives_rows_single_runs_and_the_algorithm_of_autotuning(url: str, tmp_path: Path) -> None:
    row_task, run_task, open_task = TASKS
    with open_store(url) as store:
        queue = CampaignQueue(store, "main")
        queue.open(RunSettings())
        queue.take_over([row(row_task)])
        tuned = {"layout": "nn", "algorithm": "00ff", "detail": "layout nn, algorithm 7", "suggestions": 8, "time_us": 6.0}
        store.keep(TunedBaseline.model_validate({"task": row_task, "environment": H200, **tuned}))
        plain = written(LATENCY | {"programmatic": False}, run_task)
        run_id = stored_run(store, run_task, plain, 8.0)
        stored_run(store, open_task, plain, 8.0, status="interrupted")
    manifest, *_ = from_store(url, tmp_path / "h200")
    library = open_library(tmp_path / "h200")
    assert len(manifest.entries) == 2
    entry = library.find(key_of(row_task))
    assert entry is not None
    assert entry.autotuned == "layout nn, algorithm 7"
    entry = library.find(key_of(run_task))
    assert entry is not None
    assert (entry.evaluation.run_id, entry.evaluation.speedup.ratio) == (run_id, 1.25)
    assert entry.autotuned == "layout tn, algorithm 66, tile 64x32"
    first = (tmp_path / "h200" / "entries.jsonl").read_bytes()
    from_store(url, tmp_path / "h200")
    assert (tmp_path / "h200" / "entries.jsonl").read_bytes() == first


def test_a_kernel_without_a_schedule_is_kept_by_its_source(url: str, tmp_path: Path) -> None:
    with open_store(url) as store:
        stored_run(store, TASKS[0], from_text(SOURCE), 8.0)
        stored_run(store, TASKS[1], from_text(SOURCE).model_copy(update={"flags": ("-DX=1",)}), 8.0)
        stored_run(store, TASKS[2], from_text(SOURCE.replace('"arch"', '"compiler": "nvcc", "arch"', 1)), 8.0)
    _, choice, _ = from_store(url, tmp_path / "h200")
    [entry] = open_library(tmp_path / "h200")
    assert (entry.schedule, entry.source) == (None, SOURCE)
    assert candidate_of(entry).source == SOURCE
    assert not candidate_of(entry).origin.trusted_writer
    assert [(one.task, one.reason) for one in choice.left_out] == [(TASKS[1], OWN_FLAGS), (TASKS[2], BY_NVCC)]


def test_an_empty_store_is_told(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="campaign run"):
        from_store(url, tmp_path / "h200")
    assert not (tmp_path / "h200").exists()


def test_a_library_with_kernels_needs_no_compiler(tmp_path: Path) -> None:
    rows, out = [rows_in(tmp_path / "rows.jsonl.gz", *(row(task) for task in TASKS))], tmp_path / "h200"
    build(rows, out, cubins=True)
    library, kernels = open_library(out), PreparedKernels(tmp_path / "home" / "cache" / "library")
    for entry in library:
        assert library.kernel(entry, 132) == kernels.find(entry, 132)
        assert library.kernel(entry, 114) is None
    build(rows[:1], out, cubins=True)
    assert len(list((out / "cubins").iterdir())) == 2 * len(TASKS)
    build([rows_in(tmp_path / "fewer.jsonl.gz", row(TASKS[0]))], out)
    assert list((out / "cubins").iterdir()) == []
    with pytest.raises(UsageError, match="one packed file, which holds no kernels"):
        build(rows, tmp_path / "h200.jsonl.gz", cubins=True)


def test_a_stale_entry_is_not_written_again() -> None:
    with pytest.raises(LibraryError, match="is stale: its source today is not the one that was measured"):
        candidate_of(library_entry(TASKS[0], source_sha256="0" * 64))
    with pytest.raises(LibraryError, match="there is no kernel family 'of_tomorrow'"):
        candidate_of(library_entry(TASKS[0], schedule={"family": "of_tomorrow"}))
    with pytest.raises(LibraryError, match="no launch plan comment"):
        candidate_of(library_entry(TASKS[0]).model_copy(update={"schedule": None, "source": "// nothing"}))


def test_what_is_not_a_library_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"holds 'thesis\.tex', so it is not a library"):
        write_entries(tmp_path / "mine", [library_entry(TASKS[0])])
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file; name a folder"):
        write_entries(tmp_path / "file", [library_entry(TASKS[0])])


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file/h200", "file/h200.jsonl.gz"):
        with pytest.raises(UsageError, match=r"cannot be written .* choose another place with --out"):
            write_entries(tmp_path / name, [library_entry(TASKS[0])])


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.doubles.libraries import library_entry, small_tasks, write_entries
files, replace = [], Path.replace
def counted(self, target):
    if len(files) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    files.append(target)
    return replace(self, target)
Path.replace = counted
write_entries(Path(sys.argv[1]), [library_entry(task, ratio=1.5) for task in small_tasks(3)])
"""


@pytest.mark.parametrize("form", ["h200", "h200.jsonl.gz"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_killed_build_leaves_the_old_library_or_says_so(form: str, after: int, tmp_path: Path) -> None:
    """Killed before file `after` takes the place of the old one."""
    out = write_entries(tmp_path / form, [library_entry(TASKS[0])])
    command = [sys.executable, "-c", KILLED, str(out), str(after)]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    if form.endswith(".gz") and after == 1:
        assert ended.returncode == 0, "one file is replaced at once"
        assert len(open_library(out)) == 3
        return
    assert ended.returncode == -signal.SIGKILL
    if after == 0:
        assert len(open_library(out)) == 1
    else:
        with pytest.raises(LibraryError, match="has 3 entries and its manifest names 1; build it again"):
            open_library(out)
    write_entries(out, [library_entry(task, ratio=1.5) for task in TASKS])
    assert len(open_library(out)) == 3
    if out.is_dir():
        assert {file.name for file in out.iterdir()} == {"manifest.json", "entries.jsonl", ".building.lock"}


def test_rows_that_are_damaged_are_told_by_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(f"{row(TASKS[0]).model_dump_json()}\n{json.dumps({'m': 1})}\n".encode()))
    with pytest.raises(UsageError, match="line 2 is not a campaign result"):
        build([path], tmp_path / "h200")
