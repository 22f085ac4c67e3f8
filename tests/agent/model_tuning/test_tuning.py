"""The stages of `tune` over a scripted GPU: what is searched, judged, tuned and held, and what a later call repeats."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cudal2.dispatch.decision import GpuIdentity
from cudal2.library.kernel_library import EntryRange, key_of, open_library
from cudal2_agent.agent.cli.render.tune_table import answer_lines, plan_lines
from cudal2_agent.agent.library.advise.known_kernels import Target
from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.library.preparing import PreparedEntry
from cudal2_agent.agent.model_tuning.gpu_stages import TimePass
from cudal2_agent.agent.model_tuning.tune_folder import TuneFolder
from cudal2_agent.agent.model_tuning.tune_records import (
    GpuShares,
    JudgedProduct,
    JudgedRange,
    OutputErrors,
    PassTimes,
    TuneAnswer,
    WayTimes,
)
from cudal2_agent.agent.model_tuning.tuned_model import open_model
from cudal2_agent.agent.model_tuning.tuning import TuneOptions, Tuning
from cudal2_agent.contract.errors import UsageError, WorkerError
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.library import LibraryEntry, MRange
from cudal2_agent.contract.records.task import Activation, Arch, GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.processes.child import ChildLost
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import open_store
from tests.doubles.libraries import CONFIGURATION, GATED, LATENCY, library_entry, range_point, write_entries

MODEL = """
import torch
class Added(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(48, 16))
    def forward(self, x):
        return torch.addmm(x[:, :16], x, self.weight)
def model():
    layers = [torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(32, 48, bias=False), Added()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 80, bias=False)).half()
def inputs(tokens):
    return (torch.ones(tokens, 64).half(),)
"""
ENVIRONMENT = "H200 driver-580.1 toolkit-13.0 cublas-13.1"
OTHER_DRIVER = "H200 driver-999.9 toolkit-13.0 cublas-13.1"
IDENTITY = GpuIdentity(gpu="H200", driver="580.1", arch=Arch.SM_90A, sms=132)
H200 = Target(name="H200", arch=Arch.SM_90A)
FIRST, SECOND, LAST = (GemmTask(m=16, n=n, k=k, layout=Layout.TN, arch=Arch.SM_90A) for n, k in ((32, 64), (48, 32), (80, 16)))


class ScriptedGpu:
    """`ratios`: over torch.mm, by shape; None for a kernel that ends the process. `asked`: what was asked, in order.

    `down_to`: the smallest M of a range, by shape; 0 for none; None for a kernel that ends the process.
    `ends_after`: the number of ways after which the process of the model ends; 0 for never.
    """

    ratios: Mapping[str, float | None]
    algorithms: Mapping[str, float | None]
    down_to: Mapping[str, int | None]
    error: str
    ends_after: int
    library_error: float
    asked: list[str]

    def __enter__(self) -> "ScriptedGpu":
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("end")

    def identity(self) -> tuple[GpuIdentity, str]:
        return IDENTITY, ENVIRONMENT

    def judged(self, entries: Sequence[LibraryEntry], cache: Path) -> Iterator[JudgedProduct]:
        assert cache.name == "library"
        for entry in entries:
            self.asked.append(f"judge {entry.task.shape}")
            ratio = self.ratios.get(entry.task.shape, 1.3)
            if ratio is None:
                raise ChildLost("signal 11")
            yield JudgedProduct(
                task=entry.task,
                entry=entry.id,
                chip="H200",
                environment=ENVIRONMENT,
                speedup=speedup(ratio),
                time_us=2.0,
                torch_us=2.0 * ratio,
                measured_at=datetime.now(UTC),
            )

    def ranged(self, asked: Sequence[EntryRange], cache: Path) -> Iterator[JudgedRange]:
        assert cache.name == "library"
        for entry, one in asked:
            self.asked.append(f"range {entry.task.shape} from {one.smallest}")
            down_to = self.down_to.get(entry.task.shape, one.smallest)
            if down_to is None:
                raise ChildLost("signal 11")
            points = tuple(range_point(m, 1.2) for m in (entry.task.m - 1, down_to or 1))
            measured = one.model_copy(update={"smallest": down_to, "points": points}) if down_to else None
            yield JudgedRange(
                entry=entry.id,
                floor=one.smallest,
                chip="H200",
                environment=ENVIRONMENT,
                m_range=measured,
                measured_at=datetime.now(UTC),
            )

    def tuned(self, tasks: Sequence[GemmTask]) -> Iterator[TunedProduct]:
        for task in tasks:
            self.asked.append(f"tune {task.shape}")
            ratio = self.algorithms.get(task.shape, 1.0)
            if ratio is None:
                raise ChildLost("exit code 1")
            yield TunedProduct(
                task=task,
                chip="H200",
                environment=f"{ENVIRONMENT}.0",
                tried=9,
                faster=ratio > 1,
                words=f"layout {task.layout}, {CONFIGURATION}",
                opaque="00",
                time_us=2.0,
                torch_us=2.0 * ratio,
                speedup=speedup(ratio),
                seconds=0.1,
                measured_at=datetime.now(UTC),
            ).model_copy(update={"environment": ENVIRONMENT})

    def timed(self, asked: TimePass) -> Iterator[PassTimes]:
        self.asked.append(f"time {asked.tokens}")
        assert open_library(asked.library).manifest.entries
        if self.error == "lost":
            raise WorkerError("the process that ran the model ended: signal 9")
        if self.error:
            raise UsageError(self.error)
        ways = tuple(WayTimes(way=way, before_us=1100.0, after_us=1000.0, speedup=speedup(1.1)) for way in asked.ways)
        whole = PassTimes(
            tokens=asked.tokens,
            library_sha256=asked.library_sha256,
            environment=ENVIRONMENT,
            ways=ways,
            served=2,
            asked=4,
            outputs=OutputErrors(torch=1e-3, library=self.library_error),
            start_s=0.25,
            memory_bytes=3 * 2**20,
            shares=GpuShares(served_us=30, other_us=20, batched_us=0, attention_us=40, grouped_us=0, rest_us=10),
            notes=("compile: not measured: Unsupported: a graph break",) if asked.tokens == 16 else (),
            measured_at=datetime.now(UTC),
        )
        for count in range(1, len(ways) + 1):
            yield whole.model_copy(update={"ways": ways[:count]})
            if self.ends_after == count:
                raise WorkerError("the process that ran the model ended: signal 9")


def speedup(ratio: float) -> Speedup:
    return Speedup(baseline="torch", ratio=ratio, low=ratio - 0.01, high=ratio + 0.01)


class Lines:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []

    def stage(self, words: str) -> None:
        self.stages.append(words)

    def judged(self, row: JudgedProduct) -> None: ...
    def ranged(self, entry: LibraryEntry, row: JudgedRange) -> None: ...
    def tuned(self, row: TunedProduct) -> None: ...
    def timed(self, row: PassTimes) -> None: ...

    def note(self, words: str) -> None:
        self.notes.append(words)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda task, _: float(task.n))
    (tmp_path / "model.py").write_text(MODEL)
    return load_settings(compile_jobs=1)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedGpu]:
    for name, value in (
        ("ratios", {}),
        ("algorithms", {}),
        ("down_to", {}),
        ("error", ""),
        ("ends_after", 0),
        ("library_error", 1e-3),
        ("asked", []),
    ):
        monkeypatch.setattr(ScriptedGpu, name, value, raising=False)
    return ScriptedGpu


def tuning(tmp_path: Path, settings: Settings, **changes: Any) -> Tuning:
    """With a library that has an entry for FIRST."""
    ratio, base_environment = changes.pop("base_ratio", 1.3), changes.pop("base_environment", ENVIRONMENT)
    entry = library_entry(FIRST, ratio)
    entry = entry.model_copy(update={"evaluation": entry.evaluation.model_copy(update={"environment": base_environment})})
    base = open_library(write_entries(tmp_path / "base.jsonl.gz", [entry, library_entry(GemmTask(m=16, n=16, k=64))]))
    model = open_model(tmp_path / "model.py", changes.pop("tokens", (16,)))
    folder, display = TuneFolder(tmp_path / "tuned"), changes.pop("display", Lines())
    target = changes.pop("target", H200)
    options = TuneOptions(**{"ranges": False, **changes})
    return Tuning(model, target, base, folder, settings, options, display, stages=ScriptedGpu)  # type: ignore[arg-type]


def found(settings: Settings, ratios: Mapping[GemmTask, float]) -> Callable[..., None]:
    """A search that finds kernels of these ratios over AutoTuning, and nothing for others."""

    def search(name: str, wanted: Mapping[GemmTask, float], seconds: float | None) -> None:
        with open_store(settings.store_url) as store:
            queue = CampaignQueue(store, name)
            queue.open(settings.recorded())
            queue.take_over([row(task, ratios[task]) for task in wanted if task in ratios])
        search.asked.append((list(wanted), seconds))  # type: ignore[attr-defined]

    search.asked = []  # type: ignore[attr-defined]
    return search


def row(task: GemmTask, ratio: float) -> ShapeResult:
    winner = Winner(
        candidate_id=candidate_of(library_entry(task)).id,
        step_index=3,
        schedule=GATED if task.gated else LATENCY,
        programmatic=False,
        time_us=2.5 / ratio,
        speedup=Speedup(baseline=AUTOTUNED, ratio=ratio, low=ratio - 0.01, high=ratio + 0.01),
    )
    return ShapeResult(
        task=task,
        run_id=f"run-{task.shape}",
        environment=ENVIRONMENT,
        best=winner,
        best_without=winner,
        baselines_us={AUTOTUNED: 2.5},
        floor_us=1.0,
        witness="agreed",
        candidates=8,
        gpu_seconds=1.0,
        seconds=2.0,
        reason="budget",
        finished_at=datetime.now(UTC),
    )


def run(tuning: Tuning, search: Callable[..., None]) -> tuple[TuneAnswer, str]:
    answer = tuning.run(search)
    return answer, "\n".join(answer_lines(answer))


def test_what_is_missing_is_searched_what_is_slower_left_out_and_the_rest_tuned(tmp_path: Path, settings: Settings) -> None:
    """FIRST is in the library, SECOND is found and slower than torch.mm here, LAST is searched in vain. The bias is outside."""
    ScriptedGpu.ratios, ScriptedGpu.algorithms = {SECOND.shape: 0.97}, {SECOND.shape: 1.05}
    search = found(settings, {SECOND: 1.2, LAST: 0.9})
    answer, shown = run(tuning(tmp_path, settings), search)
    assert search.asked == [([LAST, SECOND], None)]  # type: ignore[attr-defined]
    judged, tuned = ScriptedGpu.asked[:2], ScriptedGpu.asked[2:4]
    assert (sorted(judged), sorted(tuned)) == (
        sorted(f"judge {one.shape}" for one in (FIRST, SECOND)),
        sorted(f"tune {one.shape}" for one in (SECOND, LAST)),
    )
    assert ScriptedGpu.asked[4:] == ["time 16", "end"]
    held = open_library(tmp_path / "tuned" / "library.jsonl.gz")
    assert {one.task for one in held} == {FIRST, GemmTask(m=16, n=16, k=64)}  # others of the library stay
    assert [one.task for one in held.algorithms()] == [SECOND]
    assert held.manifest.no_faster == ("16x80x16 tn f16/f32",)
    assert (answer.searched, answer.left, answer.tuned, answer.dropped, answer.within) == (2, 0, 1, 1, True)
    statuses = {one.product.shape: one.status for one in answer.advice.products}
    assert statuses == {FIRST.shape: "served", SECOND.shape: "algorithm", LAST.shape: "no faster", "16x16x48": "outside"}
    for line in (
        "    16  eager         1.100      1.000  1.100x (1.090–1.110)  2 of 4",
        "2 of 4 matrix products are served; 2 were searched in this call",
        "1 kernels are left out: PyTorch's own product was faster here",
        "not served: 1 of 4 calls, adds a matrix",
        "  fused attention                        40 %",
        "error of outputs against float32: PyTorch 1.00e-03, with the library 1.00e-03",
        "note: compile: not measured: Unsupported: a graph break",
        f'  cudal2.enable("{tmp_path}/tuned/library.jsonl.gz")',
    ):
        assert line in shown.splitlines(), shown
    assert max(map(len, shown.splitlines())) <= 128
    assert TuneAnswer.model_validate_json((tmp_path / "tuned" / "answer.json").read_text()) == answer


def test_the_same_call_repeats_nothing(tmp_path: Path, settings: Settings) -> None:
    run(tuning(tmp_path, settings), found(settings, {SECOND: 1.2, LAST: 0.9}))
    ScriptedGpu.asked.clear()
    search = found(settings, {})
    answer, _ = run(tuning(tmp_path, settings), search)
    assert (search.asked, ScriptedGpu.asked) == ([], ["end"])  # type: ignore[attr-defined]
    assert (answer.searched, answer.left, len(answer.times)) == (0, 0, 1)


def test_another_way_is_timed_by_a_later_call(tmp_path: Path, settings: Settings) -> None:
    """`compile` has failed with a note, and is not tried again."""
    search = found(settings, {})
    run(tuning(tmp_path, settings, ways=("eager",)), search)
    assert ScriptedGpu.asked.count("time 16") == 1
    run(tuning(tmp_path, settings, ways=("eager", "compile")), search)
    assert ScriptedGpu.asked.count("time 16") == 1
    answer, _ = run(tuning(tmp_path, settings, ways=("eager", "graph")), search)
    assert ScriptedGpu.asked.count("time 16") == 2
    assert [one.way for one in answer.times[0].ways] == ["eager", "graph"]


def test_an_interrupted_call_keeps_what_it_has(tmp_path: Path, settings: Settings) -> None:
    """Ctrl-C in the second judgement: the first has its row, and the library is written by the next call."""

    def interrupted(name: str, wanted: Mapping[GemmTask, float], seconds: float | None) -> None:
        found(settings, {SECOND: 1.2})(name, wanted, seconds)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning(tmp_path, settings).run(interrupted)
    assert not (tmp_path / "tuned" / "library.jsonl.gz").exists()
    search = found(settings, {LAST: 1.4})
    answer, _ = run(tuning(tmp_path, settings), search)
    assert [asked for asked, _ in search.asked] == [[LAST]]  # type: ignore[attr-defined]
    assert {one.product.shape for one in answer.unserved} == {"16x16x48"}


def test_a_kernel_that_ends_the_process_is_left_out_and_the_next_one_is_judged(tmp_path: Path, settings: Settings) -> None:
    ScriptedGpu.ratios, ScriptedGpu.algorithms = {LAST.shape: None}, {LAST.shape: None}
    answer, _ = run(tuning(tmp_path, settings), found(settings, {SECOND: 1.2, LAST: 1.2}))
    [lost] = [one for one in TuneFolder(tmp_path / "tuned").judged(ENVIRONMENT).values() if not one.served]
    assert (lost.task, lost.fault) == (LAST, "the process that measured it ended: signal 11")
    assert {one.product.shape for one in answer.unserved} == {LAST.shape, "16x16x48"}
    assert sorted(ScriptedGpu.asked[:3]) == sorted(f"judge {one.shape}" for one in (FIRST, SECOND, LAST))


def test_entries_of_another_driver_are_searched_again(tmp_path: Path, settings: Settings) -> None:
    search = found(settings, {})
    answer, _ = run(tuning(tmp_path, settings, base_environment=OTHER_DRIVER), search)
    assert search.asked[0][0] == [LAST, SECOND, FIRST]  # type: ignore[attr-defined]
    assert {one.status for one in answer.advice.products} == {"missing", "outside"}


@pytest.mark.parametrize(("error", "said"), [("lost", "ended: signal 9"), ("model.py: RuntimeError: no", "RuntimeError: no")])
def test_a_model_that_does_not_run_leaves_the_library_and_a_note(
    tmp_path: Path, settings: Settings, error: str, said: str
) -> None:
    ScriptedGpu.error = error
    answer, shown = run(tuning(tmp_path, settings), found(settings, {}))
    assert (answer.times, answer.library) == ((), str(tmp_path / "tuned" / "library.jsonl.gz"))
    assert "note: the model of 16 tokens was not measured: " in shown
    assert said in shown


def test_a_way_that_was_timed_is_kept_where_a_later_one_ends_the_process(tmp_path: Path, settings: Settings) -> None:
    ScriptedGpu.ends_after = 1
    search = found(settings, {})
    answer, shown = run(tuning(tmp_path, settings, ways=("eager", "graph")), search)
    assert [[one.way for one in row.ways] for row in answer.times] == [["eager"]]
    assert "note: the model of 16 tokens was not measured in every way: the process that ran" in shown
    ScriptedGpu.ends_after = 0
    again, _ = run(tuning(tmp_path, settings, ways=("eager", "graph")), search)
    assert [[one.way for one in row.ways] for row in again.times] == [["eager", "graph"]]


def test_an_error_beyond_the_tolerance_is_told(tmp_path: Path, settings: Settings) -> None:
    ScriptedGpu.library_error = 1.3e-3
    answer, shown = run(tuning(tmp_path, settings), found(settings, {}))
    assert not answer.within
    assert "with the library 1.30e-03: MORE THAN 1.25 TIMES PyTorch's own" in shown
    assert run(tuning(tmp_path, settings, tolerance=1.4), found(settings, {}))[0].within


@pytest.mark.parametrize(
    ("minutes", "wanted", "left"), [(None, [LAST, SECOND], 0), (3.4, [LAST, SECOND], 0), (1 / 6, [LAST], 1), (0.0, [], 2)]
)
def test_a_time_limit_leaves_the_shortest_products(
    tmp_path: Path, settings: Settings, minutes: float | None, wanted: list[GemmTask], left: int
) -> None:
    plan = tuning(tmp_path, settings, minutes=minutes).plan()
    assert (list(plan.wanted), plan.left) == (wanted, left)
    assert f"{len(wanted)} of 4 matrix products would be searched" in plan_lines(plan)[-1]


def test_without_a_gpu_here_nothing_is_measured(tmp_path: Path, settings: Settings) -> None:
    answer, shown = run(tuning(tmp_path, settings, measure=False), found(settings, {SECOND: 1.2}))
    assert ScriptedGpu.asked == []
    assert {one.task for one in open_library(Path(answer.library or ""))} == {FIRST, SECOND, GemmTask(m=16, n=16, k=64)}
    assert "note: nothing was measured here: no GPU of this machine takes part" in shown


@pytest.mark.parametrize("change", [{"tokens": (8,)}, {"training": True}, {"target": Target(name="H100", arch=Arch.SM_90A)}])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, settings: Settings, change: dict[str, Any]) -> None:
    tuning(tmp_path, settings)
    with pytest.raises(UsageError, match="is about another model, other tokens or another chip"):
        tuning(tmp_path, settings, **change)


def test_another_text_of_the_model_is_refused_and_another_place_is_not(tmp_path: Path, settings: Settings) -> None:
    tuning(tmp_path, settings)
    (tmp_path / "elsewhere.py").write_text(MODEL)
    model = open_model(tmp_path / "elsewhere.py", (16,))
    Tuning(model, H200, None, TuneFolder(tmp_path / "tuned"), settings, TuneOptions(), Lines())
    (tmp_path / "model.py").write_text(MODEL.replace("80", "96"))
    with pytest.raises(UsageError, match="is about another model"):
        tuning(tmp_path, settings)


def test_a_damaged_folder_is_one_line(tmp_path: Path, settings: Settings) -> None:
    tuning(tmp_path, settings)
    file = tmp_path / "tuned" / "passes.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(UsageError, match=r"passes\.json is damaged"):
        tuning(tmp_path, settings)


def test_nothing_faster_writes_no_library(tmp_path: Path, settings: Settings) -> None:
    model = open_model(tmp_path / "model.py", (16,))
    alone = Tuning(
        model,
        H200,
        None,
        TuneFolder(tmp_path / "tuned"),
        settings,
        TuneOptions(),
        Lines(),
        stages=ScriptedGpu,  # type: ignore[arg-type]
    )
    answer, shown = run(alone, found(settings, {}))
    assert (answer.library, answer.times) == (None, ())
    assert shown.splitlines()[-1] == "nothing is faster than PyTorch, so that no library was written"
    assert json.loads((tmp_path / "tuned" / "answer.json").read_text())["library"] is None


def test_a_library_has_an_entry_for_what_was_found(tmp_path: Path, settings: Settings) -> None:
    run(tuning(tmp_path, settings), found(settings, {SECOND: 1.2}))
    entry = open_library(tmp_path / "tuned" / "library.jsonl.gz").find(key_of(SECOND))
    assert entry is not None
    assert entry.evaluation.speedup.ratio == 1.2


ACTIVATED = """
import torch
def model():
    layers = [torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(32, 48, bias=False), torch.nn.SiLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(48, 16, bias=False)).half()
def inputs(tokens):
    return (torch.ones(tokens, 64).half(),)
"""
FUSED, END = SECOND.model_copy(update={"activation": Activation.SILU}), GemmTask(m=16, n=16, k=48, layout=Layout.TN)


@pytest.mark.parametrize(
    ("ways", "training", "searched"),
    [
        (("eager", "graph"), False, {SECOND, END}),
        (("compile",), False, {FUSED, END}),
        (("max-autotune", "compile"), False, {FUSED, END}),
        (("graph", "compile"), False, {SECOND, FUSED, END}),
        (("compile",), True, {SECOND, END}),
    ],
)
def test_the_ways_decide_whether_products_are_searched_with_their_activations(
    tmp_path: Path, settings: Settings, ways: tuple[str, ...], training: bool, searched: set[GemmTask]
) -> None:
    (tmp_path / "model.py").write_text(ACTIVATED)
    plan = tuning(tmp_path, settings, ways=ways, training=training).plan()
    assert {one for one in plan.wanted if one.m == 16 and one.layout is Layout.TN} == searched
    assert any(line.endswith("missing, compiled") for line in plan_lines(plan)) == (FUSED in searched and SECOND in searched)


def test_products_are_judged_ranged_and_held_with_their_activations(
    tmp_path: Path, settings: Settings, proven: list[str]
) -> None:
    """Beside the product alone, which is slower here. The sums of the table count the calls once."""
    (tmp_path / "model.py").write_text(ACTIVATED)
    ScriptedGpu.ratios = {END.shape: 0.9}
    search = found(settings, {FUSED: 1.2, END: 1.3})
    answer, shown = run(tuning(tmp_path, settings, **WITH_TOKENS, ways=("graph", "compile")), search)
    held = open_library(tmp_path / "tuned" / "library.jsonl.gz")
    entry = held.find(key_of(FUSED))
    assert entry is not None
    assert entry.task == FUSED
    assert (held.find(key_of(SECOND)), held.find(key_of(END))) == (None, None)
    assert held.manifest.version == 6
    ranged = held.range_below(entry)
    assert ranged is None, "SECOND's width is the one that is not proven"
    assert sorted(proven) == ["5-15x32", "5-15x48"]
    assert answer.advice.whole.calls == 6
    assert "1 of 2 are served with their activation in compiled programs" in shown.splitlines(), shown
    assert "1 of 6 matrix products are served; 7 were searched in this call" in shown.splitlines(), shown
    assert sorted(one for one in ScriptedGpu.asked if "tune" in one) == sorted(
        f"tune {m}x{n}x{k}" for m, n, k in ((16, 48, 32), (16, 16, 48), (4, 32, 64), (4, 48, 32), (4, 16, 48))
    )


GATED_MODEL = """
import torch
from torch.nn import functional
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.joined = torch.nn.Linear(64, 192, bias=False)
        self.gate, self.up = (torch.nn.Linear(96, 112, bias=False) for _ in range(2))
    def forward(self, x):
        gate, up = self.joined(x).chunk(2, -1)
        x = functional.silu(gate) * up
        return functional.gelu(self.gate(x)) * self.up(x)
def model():
    return Model().half()
def inputs(tokens):
    return (torch.ones(tokens, 64).half(),)
"""
BOTH, ONE = (FIRST.model_copy(update={"n": n, "k": k}) for n, k in ((192, 64), (112, 96)))
OF_BOTH = FIRST.model_copy(update={"n": 96, "activation": Activation.SILU, "gated": True})
OF_ONES = ONE.model_copy(update={"activation": Activation.GELU, "gated": True})


@pytest.mark.parametrize(
    ("ways", "training", "searched"),
    [
        (("eager", "graph"), False, {BOTH, ONE}),
        (("compile",), False, {BOTH, ONE, OF_BOTH, OF_ONES}),
        (("graph", "compile"), False, {BOTH, ONE, OF_BOTH, OF_ONES}),
        (("compile",), True, {BOTH, ONE}),
    ],
)
def test_gated_layers_are_searched_for_compiled_ways_and_their_products_for_all(
    tmp_path: Path, settings: Settings, ways: tuple[str, ...], training: bool, searched: set[GemmTask]
) -> None:
    (tmp_path / "model.py").write_text(GATED_MODEL)
    plan = tuning(tmp_path, settings, ways=ways, training=training).plan()
    assert {one for one in plan.wanted if one.m == 16 and one.layout is Layout.TN} == searched
    calls = {(one.product.operands, one.product.shape): one.calls for one in plan.advice.products if not one.again}
    assert (calls["tn f16", BOTH.shape], calls["tn f16", ONE.shape]) == (1, 2)
    assert sum("gated" in line and line.endswith("missing, compiled") for line in plan_lines(plan)) == len(searched) - 2


@pytest.mark.parametrize(("ratio", "held"), [(1.2, {BOTH, ONE, OF_BOTH}), (0.9, {BOTH, ONE})])
def test_a_gated_kernel_is_held_beside_the_product_of_its_joined_weight(
    tmp_path: Path, settings: Settings, ratio: float, held: set[GemmTask]
) -> None:
    """That is served alone, where the gated kernel is slower here or was searched in vain."""
    (tmp_path / "model.py").write_text(GATED_MODEL)
    ScriptedGpu.ratios = {OF_BOTH.shape: ratio}
    search = found(settings, {BOTH: 1.3, ONE: 1.3, OF_BOTH: 1.3, OF_ONES: 0.9})
    answer, shown = run(tuning(tmp_path, settings, ways=("graph", "compile")), search)
    library = open_library(tmp_path / "tuned" / "library.jsonl.gz")
    assert {one.task for one in library} - {FIRST, GemmTask(m=16, n=16, k=64)} == held
    assert library.manifest.version == (7 if OF_BOTH in held else 3)
    assert "16x112x96 tn f16/f32 gated gelu" in library.manifest.no_faster
    assert f"{len(held) - 2} of 2 are served with their activation in compiled programs" in shown.splitlines(), shown
    assert "2 of 2 matrix products are served; 4 were searched in this call" in shown.splitlines(), shown
    assert not any("tune" in one for one in ScriptedGpu.asked), "no algorithm of cuBLASLt is gated"
    assert answer.advice.whole.calls == 3


WITH_TOKENS = {"ranges": True, "tokens": (4, 16)}


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels for ranges are taken for built. The ranges that were asked for."""
    asked: list[str] = []

    def prepare_range(entry: LibraryEntry, one: MRange, settings: Settings, sms: int) -> PreparedEntry:  # noqa: ARG001
        asked.append(f"{one.smallest}-{entry.task.m - 1}x{entry.task.n}")
        failed = entry.task.n == SECOND.n
        return PreparedEntry(
            id=entry.id, shape="", layout="tn", status="failed" if failed else "built", message="wrong" if failed else ""
        )

    monkeypatch.setattr("cudal2_agent.agent.model_tuning.range_building.prepare_range", prepare_range)
    return asked


def test_kernels_for_m_between_those_of_the_passes_are_measured_and_held(
    tmp_path: Path, settings: Settings, proven: list[str]
) -> None:
    """FIRST serves M from 7 on, SECOND's kernel is not right, LAST is faster at no other M."""
    ScriptedGpu.down_to = {FIRST.shape: 7, LAST.shape: 0}
    search = found(settings, {SECOND: 1.2, LAST: 1.2})
    answer, shown = run(tuning(tmp_path, settings, **WITH_TOKENS), search)
    assert sorted(proven) == ["5-15x32", "5-15x48", "5-15x80"]
    assert sorted(one for one in ScriptedGpu.asked if "range" in one) == ["range 16x32x64 from 5", "range 16x80x16 from 5"]
    held = open_library(tmp_path / "tuned" / "library.jsonl.gz")
    [one] = held.manifest.ranges
    first = held.find(key_of(FIRST))
    assert first is not None
    assert (one.entry, one.smallest, [point.m for point in one.points]) == (first.id, 7, [15, 7])
    assert answer.ranges == 1
    assert "1 of their kernels have a form for smaller M, too" in shown.splitlines()
    rows = TuneFolder(tmp_path / "tuned").ranges(ENVIRONMENT)
    assert sorted(row.fault for row in rows.values()) == ["", "", "wrong"]
    assert [one.split()[0] for one in ScriptedGpu.asked if one[:4] in ("time", "rang")] == ["time", "time", "range", "range"]
    ScriptedGpu.asked.clear()
    proven.clear()
    again, _ = run(tuning(tmp_path, settings, **WITH_TOKENS), search)
    assert (proven, ScriptedGpu.asked, again.ranges, again.times) == ([], ["end"], 1, answer.times)


def test_a_range_whose_kernel_ends_the_process_is_left_out(tmp_path: Path, settings: Settings, proven: list[str]) -> None:
    ScriptedGpu.down_to = {FIRST.shape: None}
    answer, _ = run(tuning(tmp_path, settings, **WITH_TOKENS), found(settings, {LAST: 1.2}))
    assert len(proven) == 2
    assert answer.ranges == 1
    faults = {row.fault for row in TuneFolder(tmp_path / "tuned").ranges(ENVIRONMENT).values()}
    assert faults == {"", "the process that measured it ended: signal 11"}


def test_ranges_that_the_time_did_not_suffice_for_are_left_to_a_later_call(
    tmp_path: Path, settings: Settings, proven: list[str]
) -> None:
    search = found(settings, {SECOND: 1.2, LAST: 1.2})
    answer, shown = run(tuning(tmp_path, settings, minutes=0.0, **WITH_TOKENS), search)
    assert (proven, answer.ranges) == ([], 0)
    assert "note: smaller M of 1 products were not measured for lack of time; the same command goes on" in shown.splitlines()
    assert run(tuning(tmp_path, settings, minutes=60.0, **WITH_TOKENS), search)[0].ranges == 2
    assert len(proven) == 3


def test_without_ranges_none_is_built(tmp_path: Path, settings: Settings, proven: list[str]) -> None:
    answer, _ = run(tuning(tmp_path, settings, tokens=(4, 16)), found(settings, {SECOND: 1.2, LAST: 1.2}))
    assert (proven, answer.ranges) == ([], 0)
