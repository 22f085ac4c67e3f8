"""Algorithms in `library check`: what is compared, how contenders race, what a row says, what is told without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from cudal2.torch.gpu_platform import CudaPlatform
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.algorithms import product_graphs
from cudal2_agent.agent.library.algorithms.algorithm_check import AlgorithmOutcome, fault_of, run_algorithm
from cudal2_agent.agent.library.algorithms.product_graphs import LONG_US, race
from cudal2_agent.agent.library.entry_sample import ALGORITHM, family_of, sample_of
from cudal2_agent.agent.library.library_check import CheckRow, check_algorithm, check_entries, read_rows, share_slower
from cudal2_agent.contract.errors import LauncherError
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import Activation, ElementType, GemmTask, Layout
from tests.doubles.host_products import HostKernel, at
from tests.doubles.libraries import library_entry, small_tasks, stored_algorithm, write_entries
from tests.doubles.scripted import ScriptedSandbox

TASK = GemmTask(m=48, n=32, k=64)
STORED = stored_algorithm(TASK)
TIMED = AlgorithmOutcome(time_us=6.1, torch_us=7.4)


class FaultyKernel(HostKernel):
    """Computes the product, then does something else."""

    def __init__(self, task: GemmTask, spoil: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__(task, failing=False)
        self._spoil = spoil

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        super().launch(a, b, d, stream, third)
        task = self._task
        self._spoil(at(a, task.m, task.k, task.element), at(d, task.m, task.n, task.element))


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("element", list(ElementType))
def test_a_right_product_has_no_fault(layout: Layout, element: ElementType) -> None:
    task = TASK.model_copy(update={"layout": layout, "element": element})
    kernel = HostKernel(task, failing=False)
    assert fault_of(task, kernel, "cpu", lambda: 7) == ""
    assert kernel.launches == [7, 7, 7]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda _, d: d[3, 5].fill_(float("nan")), "1 elements of D are not written"),
        (lambda _, d: d[3, 5].mul_(1.01).add_(0.01), "of its bound"),
        (lambda _, d: d.copy_(d.flip(0)), "of its bound"),
        (lambda a, _: a[0, 0].add_(1), "an operand changed"),
    ],
)
def test_a_wrong_product_is_told(spoil: Callable[[torch.Tensor, torch.Tensor], object], fault: str) -> None:
    assert fault in fault_of(TASK, FaultyKernel(TASK, spoil), "cpu", lambda: 0)


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("bias", [False, True])
def test_an_activation_is_compared_and_is_what_pytorch_runs(activation: Activation, bias: bool) -> None:
    """A kernel that leaves it out is wrong, and so is one that computes another."""
    task = TASK.model_copy(update={"activation": activation, "bias": bias})
    assert fault_of(task, HostKernel(task, failing=False), "cpu", lambda: 0) == ""
    other = next(one for one in (Activation.RELU, Activation.SILU) if one is not activation)
    for wrong in (None, other):
        kernel = HostKernel(task.model_copy(update={"activation": wrong}), failing=False)
        assert "of its bound" in fault_of(task, kernel, "cpu", lambda: 0)
    a, b, *added = product_graphs.drawn(task, 0, "cpu")
    out = torch.empty(task.m, task.n, dtype=a.dtype)
    product_graphs.by_torch_for(task)(a, b, out, *added)
    sums = torch.addmm(added[0], a, b) if bias else torch.mm(a, b)
    assert torch.equal(out, APPLIED[activation](sums))


@pytest.mark.parametrize("layout", [Layout.TN, Layout.NN])
@pytest.mark.parametrize("element", list(ElementType))
@pytest.mark.parametrize("activation", list(Activation))
def test_a_gated_product_is_compared(activation: Activation, element: ElementType, layout: Layout) -> None:
    """A kernel that leaves out the second product is wrong, and so are one that reads it as the gate and one that writes it."""
    task = TASK.model_copy(update={"activation": activation, "gated": True, "layout": layout, "element": element})
    kernel = HostKernel(task, failing=False)
    assert fault_of(task, kernel, "cpu", lambda: 0) == ""

    class Turned(HostKernel):
        def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
            super().launch(a, third, d, stream, b)

    class Writes(HostKernel):
        def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
            super().launch(a, b, d, stream, third)
            at(third, 1, 1, task.element).add_(1)

    class Alone(HostKernel):
        def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:  # noqa: ARG002
            super().launch(a, b, d, stream)

    assert "of its bound" in fault_of(task, Turned(task, failing=False), "cpu", lambda: 0)
    assert "an operand changed" in fault_of(task, Writes(task, failing=False), "cpu", lambda: 0)
    alone = task.model_copy(update={"gated": False})
    assert "of its bound" in fault_of(task, Alone(alone, failing=False), "cpu", lambda: 0)


@pytest.mark.parametrize("layout", [Layout.TN, Layout.NN])
def test_a_gated_product_races_against_what_a_compiled_program_runs(layout: Layout) -> None:
    """With an elementwise kernel of Inductor's, which is one for all sizes."""
    task = TASK.model_copy(update={"activation": Activation.SILU, "gated": True, "layout": layout})
    a, b, up = product_graphs.drawn(task, 0, "cpu")
    assert len(product_graphs.operand_sets(task, "cpu")) == product_graphs.SETS
    for rows in (task.m, 5):
        out = torch.empty(rows, task.n, dtype=a.dtype)
        product_graphs.by_torch_for(task)(a[:rows], b, out, up)
        gate, second = a[:rows].float() @ b.float(), a[:rows].float() @ up.float()
        torch.testing.assert_close(out.float(), APPLIED[Activation.SILU](gate) * second, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize(("layout", "widths"), [(Layout.TN, [64]), (Layout.NN, [32, 32])])
def test_weights_that_lie_side_by_side_are_one_product(
    layout: Layout, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which either half may be the gate. Nothing is compiled here, or Inductor would keep this product."""
    task = TASK.model_copy(update={"activation": Activation.RELU, "gated": True, "layout": layout})
    found: list[int] = []
    product = torch.mm

    def counted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found.append(b.shape[1])
        return product(a, b)

    def finish(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(functional.relu(gate) * up)

    monkeypatch.setattr(product_graphs, "_gate_kernel", lambda _: finish)
    monkeypatch.setattr(torch, "mm", counted)
    a, b, up = product_graphs.drawn(task, 0, "cpu")
    for gate, second in ((b, up), (up, b)):
        out = torch.empty(task.m, task.n, dtype=a.dtype)
        product_graphs.by_torch_for(task)(a, gate, out, second)
        torch.testing.assert_close(
            out.float(), functional.relu(a.float() @ gate.float()) * (a.float() @ second.float()), rtol=3e-3, atol=3e-3
        )
    assert found == widths * 2


def test_a_row_says_what_the_algorithm_took(tmp_path: Path) -> None:
    row = check_algorithm(STORED, "H200", lambda _: TIMED)
    assert (row.entry, row.status, row.time_us, row.torch_us, row.recorded) == (STORED.id, "passed", 6.1, 7.4, None)
    assert row.recorded_gain == pytest.approx(1.25)
    assert (row.held, row.slower) == (True, False)
    slower = check_algorithm(STORED, "H200", lambda _: AlgorithmOutcome(time_us=7.5, torch_us=7.4))
    assert slower.slower
    assert share_slower([row, slower]) == (1, 2)
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{row.model_dump_json()}\n", encoding="utf-8")
    assert read_rows(file) == [row]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(AlgorithmOutcome(fault="wrong"), "failed"), (AlgorithmOutcome(absent="another cuBLAS"), "not-run")],
)
def test_what_is_wrong_or_cannot_run_does_not_pass(outcome: AlgorithmOutcome, status: str) -> None:
    row = check_algorithm(STORED, "H200", lambda _: outcome)
    assert (row.status, row.held, row.time_us) == (status, False, None)
    assert row.verdict in ("wrong", "another cuBLAS")


def test_without_a_gpu_it_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = write_entries(tmp_path / "small", [], [STORED])
    rows = tmp_path / "rows.jsonl"
    assert main(["library", "check", "--library", str(library), "--rows", str(rows), "--device", "emulator"]) == 1
    assert "cuBLASLt runs on a GPU only" in capsys.readouterr().out
    assert [row.status for row in read_rows(rows)] == ["not-run"]


def test_the_version_of_cublas_is_compared_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CudaPlatform().missing():
        pytest.skip("needs a machine without a GPU")
    assert run_algorithm(STORED).absent == CudaPlatform().missing()

    class Elsewhere:
        def missing(self) -> str:
            return ""

        def identity(self, device: int) -> object:  # noqa: ARG002
            from tests.doubles.host_products import IDENTITY

            return IDENTITY.model_copy(update={"cublas": "12.9.1"})

    monkeypatch.setattr("cudal2_agent.agent.library.algorithms.algorithm_check.CudaPlatform", Elsewhere)
    assert run_algorithm(STORED).absent == "it belongs to cuBLAS 13.1.0; loaded is 12.9.1"


def test_one_that_cublaslt_does_not_offer_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise LauncherError("cuBLASLt does not suggest it", "CUBLAS_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(CudaPlatform, "load_algorithm", refuse)
    monkeypatch.setattr("cudal2_agent.agent.library.algorithms.algorithm_check._absent", lambda *_: "")
    assert run_algorithm(STORED).fault == "cuBLASLt does not suggest it"


def test_a_sample_draws_algorithms_beside_families() -> None:
    held: list[object] = [*(library_entry(task) for task in small_tasks()), STORED]
    chosen = sample_of(held, 2, seed=0)  # type: ignore[arg-type]
    assert {family_of(one) for one in chosen} == {ALGORITHM, "latency"}


def test_a_check_goes_on_behind_its_rows(tmp_path: Path) -> None:
    ran: list[StoredAlgorithm] = []

    def run(stored: StoredAlgorithm) -> AlgorithmOutcome:
        ran.append(stored)
        return TIMED

    sandbox = ScriptedSandbox()
    for _ in range(2):
        [row] = list(check_entries([STORED], sandbox, tmp_path / "rows.jsonl", run))
        assert isinstance(row, CheckRow)
    assert len(ran) == (1 if sandbox.can_measure else 0)


@pytest.mark.parametrize(("product_us", "replays"), [(LONG_US - 1, 0), (LONG_US, 50), (1000.0, 25), (30_000.0, 1)])
def test_a_long_product_runs_warm_before_each_sample(monkeypatch: pytest.MonkeyPatch, product_us: float, replays: int) -> None:
    """Supposed, not shown: its power lowers the clock for a while, and its rival's next sample pays for it."""
    before = list[int]()

    class SilentGraph:
        def __init__(self, *_: object) -> None: ...

        def sample_us(self, replays_before: int = 0) -> float:
            before.append(replays_before)
            return product_us

    monkeypatch.setattr(product_graphs, "ProductGraph", SilentGraph)
    sets = [(torch.zeros(4, 4), torch.zeros(4, 4))]
    contenders = {"one": product_graphs.by_torch, "other": product_graphs.by_torch}
    times = race(contenders, sets, launches=2, rounds=3, product_us=product_us)
    assert before == [replays] * 6
    assert [len(one.samples_us) for one in times.values()] == [3, 3]
