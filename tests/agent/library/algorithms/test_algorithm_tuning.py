"""`library tune`: what is chosen among suggestions, what its rows hold, and the library that comes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cudal2.library.kernel_library import KernelLibrary, open_library
from cudal2_agent.agent.campaign.result_files import write_results
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.algorithms.algorithm_tuning import FINALISTS, MIN_LOW, SHORTLIST, Suggestion, tune
from cudal2_agent.agent.library.algorithms.tuned_products import newest, read_tuned, tune_products
from cudal2_agent.agent.library.library_building import extend_library
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.evaluation import TORCH, Timing
from cudal2_agent.contract.records.task import GemmTask, Layout
from tests.doubles.campaign_rows import shape_result
from tests.doubles.libraries import CHIP, CONFIGURATION, library_entry, stored_algorithm, write_entries

TASK = GemmTask(m=64, n=128, k=256, layout=Layout.TN)
ENVIRONMENT = "H200 driver-580.1 toolkit-13.0 cublas-13.1.0"


class ScriptedBench:
    """Times by the number of a suggestion. A race adds to each round of a contender what `noise` says of its rounds."""

    def __init__(self, times_us: Sequence[float | None], torch_us: float = 10.0, wrong: Sequence[int] = ()) -> None:
        self._times = {Suggestion(f"layout tn, {CONFIGURATION}", f"{number:02x}"): us for number, us in enumerate(times_us)}
        self._torch_us, self._wrong = torch_us, {f"{number:02x}" for number in wrong}
        self.sampled: list[tuple[str, float]] = []
        self.races: list[tuple[str, ...]] = []

    def suggestions(self) -> Sequence[Suggestion]:
        return list(self._times)

    def sample_us(self, suggestion: Suggestion, duration_us: float) -> float | None:
        self.sampled.append((suggestion.opaque, duration_us))
        return self._times[suggestion]

    def fault(self, suggestion: Suggestion) -> str:
        return "an operand changed" if suggestion.opaque in self._wrong else ""

    def race(self, suggestions: Sequence[Suggestion], duration_us: float, rounds: int) -> Mapping[str, Timing]:  # noqa: ARG002
        self.races.append(tuple(one.opaque for one in suggestions))
        means = {one.opaque: self._times[one] for one in suggestions} | {TORCH: self._torch_us}
        noise = [1 + 0.001 * (round_ % 3) for round_ in range(rounds)]
        return {
            name: Timing(name=name, samples_us=tuple(mean * one for one in noise))
            for name, mean in means.items()
            if mean is not None
        }


def test_the_fastest_right_one_is_chosen_and_judged_by_another_race() -> None:
    bench = ScriptedBench([9.0, 8.0, None, 7.0, 8.5, 12.0], wrong=[3])
    found = tune(bench)
    assert found.best is not None
    assert (found.best.opaque, found.time_us, found.tried, found.faster) == ("01", pytest.approx(8.0, rel=0.01), 5, True)
    assert found.speedup is not None
    assert found.speedup.ratio == pytest.approx(1.25)
    assert found.faults == (f"layout tn, {CONFIGURATION}: an operand changed",)
    assert bench.races == [("01", "04", "00"), ("01",)]


def test_only_a_short_list_is_measured_for_longer() -> None:
    bench = ScriptedBench([10.0 - 0.1 * number for number in range(40)])
    tune(bench)
    durations = [duration for _, duration in bench.sampled]
    assert durations.count(min(durations)) == 40
    assert durations.count(max(durations)) == SHORTLIST
    assert [len(one) for one in bench.races] == [FINALISTS, 1]


@pytest.mark.parametrize(("time_us", "faster"), [(10.0 / (MIN_LOW + 0.002), True), (10.0, False), (11.0, False)])
def test_a_gain_is_the_whole_interval(time_us: float, faster: bool) -> None:
    assert tune(ScriptedBench([time_us])).faster is faster


@pytest.mark.parametrize("bench", [ScriptedBench([]), ScriptedBench([None, None]), ScriptedBench([5.0], wrong=[0])])
def test_nothing_right_is_nothing_found(bench: ScriptedBench) -> None:
    found = tune(bench)
    assert (found.best, found.faster, bench.races) == (None, False, [])


def test_rows_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    other = TASK.model_copy(update={"n": 256})
    file, opened = tmp_path / "rows.jsonl", list[GemmTask]()

    def bench_of(task: GemmTask) -> ScriptedBench:
        opened.append(task)
        return ScriptedBench([8.0] if task is TASK else [10.5])

    def rows(tasks: Sequence[GemmTask], environment: str = ENVIRONMENT) -> list[bool]:
        return [row.faster for row in tune_products(tasks, bench_of, file, chip=CHIP, environment=environment)]

    assert rows([TASK]) == [True]
    with file.open("a", encoding="utf-8") as torn:
        torn.write('{"task": {"m"')
    assert rows([TASK, other]) == [True, False]
    assert opened == [TASK, other]
    assert rows([TASK], "H200 driver-581 toolkit-13.0 cublas-13.2.0") == [True]
    assert opened == [TASK, other, TASK]
    assert [row.algorithm is None for row in read_tuned(file)] == [False, True, False]
    assert newest(read_tuned(file))[TASK].environment.endswith("13.2.0")


def test_a_product_that_does_not_fit_is_a_row(tmp_path: Path) -> None:
    def bench_of(_: GemmTask) -> ScriptedBench:
        raise UsageError("its operands do not fit into the GPU's memory")

    [row] = tune_products([TASK], bench_of, tmp_path / "rows.jsonl", chip=CHIP, environment=ENVIRONMENT)
    assert (row.tried, row.faster, row.algorithm) == (0, False, None)
    assert "do not fit" in row.note


def test_no_product_begins_after_the_end(tmp_path: Path) -> None:
    rows = tune_products(
        [TASK], lambda _: ScriptedBench([8.0]), tmp_path / "rows.jsonl", chip=CHIP, environment=ENVIRONMENT, end_s=0.0
    )
    assert list(rows) == []


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 1 is not a row of `library tune`"):
        read_tuned(file)


def tuned_rows(file: Path, times_us: Mapping[GemmTask, float]) -> Path:
    list(tune_products(list(times_us), lambda task: ScriptedBench([times_us[task]]), file, chip=CHIP, environment=ENVIRONMENT))
    return file


def test_a_library_keeps_what_it_has_and_gets_what_was_found(tmp_path: Path) -> None:
    with_kernel, slower, new = (TASK.model_copy(update={"n": 16 * size}) for size in (1, 2, 3))
    entry, before = library_entry(GemmTask(m=16, n=16, k=64)), stored_algorithm(slower)
    base = open_library(write_entries(tmp_path / "base", [entry], [before]))
    rows = read_tuned(tuned_rows(tmp_path / "rows.jsonl", {with_kernel: 8.0, slower: 10.2, new: 8.0}))
    extended(base, rows[1:], tmp_path / "more.jsonl.gz", {new})
    extended(None, rows, tmp_path / "alone", {with_kernel, new})
    assert extend_library(None, rows[1:2], tmp_path / "none", CHIP) is None


def test_an_entry_of_another_driver_does_not_keep_an_algorithm_out(tmp_path: Path) -> None:
    from cudal2_agent.agent.cli.library.library_tune import _served
    from tests.doubles.host_products import IDENTITY

    task = GemmTask(m=16, n=16, k=64, layout=Layout.TN)
    base = open_library(write_entries(tmp_path / "base", [library_entry(task)]))
    here = IDENTITY.model_copy(update={"gpu": CHIP, "driver": "580.1"})
    assert _served(base, task, here)
    assert not _served(base, task, here.model_copy(update={"driver": "590.2"}))
    assert not _served(None, task, here)
    rows = read_tuned(tuned_rows(tmp_path / "rows.jsonl", {task: 8.0}))
    manifest = extend_library(base, rows, tmp_path / "more", CHIP)
    assert manifest is not None
    assert (len(manifest.entries), len(manifest.algorithms), manifest.name) == (1, 1, "small-tuned")


def test_built_kernels_stay_with_a_library(tmp_path: Path) -> None:
    base_at = write_entries(tmp_path / "base", [library_entry(GemmTask(m=16, n=16, k=64))])
    (base_at / "cubins").mkdir()
    (base_at / "cubins" / "a.cubin").write_bytes(b"kernel")
    assert extend_library(open_library(base_at), [], tmp_path / "more", CHIP) is not None
    assert (tmp_path / "more" / "cubins" / "a.cubin").read_bytes() == b"kernel"
    with pytest.raises(UsageError, match="name a folder"):
        extend_library(open_library(base_at), [], tmp_path / "more.jsonl.gz", CHIP)


def extended(base: KernelLibrary | None, rows: Sequence[object], out: Path, tasks: set[GemmTask]) -> None:
    assert extend_library(base, rows, out, CHIP) is not None  # type: ignore[arg-type]
    found = open_library(out)
    assert {one.task for one in found.algorithms()} == tasks
    assert list(found) == (list(base) if base else [])


def test_a_build_takes_tuned_products_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    write_results(rows, [shape_result("64x64x64", environment=ENVIRONMENT, plain=0.9)])
    out = tmp_path / "built"
    arguments = ["library", "build", "--rows", str(rows), "--out", str(out), "--json"]
    file = tuned_rows(tmp_path / "tuned.jsonl", {TASK: 8.0})
    assert main([*arguments, "--tuned", str(file)]) == 0
    assert len(json.loads(capsys.readouterr().out)["algorithms"]) == 1
    assert main([*arguments, "--tuned", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    arguments = ["--shapes", "64x64x64", "--out", str(tmp_path / "out"), "--rows", str(tmp_path / "rows.jsonl")]
    assert main(["library", "tune", *arguments]) != 0
    assert "measuring products needs a GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
