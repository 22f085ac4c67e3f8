"""Baselines of gated products: what libraries are asked for, on numpy's memory; the kernel behind them, on the emulator."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.plan.plan import Launch, LaunchPlan
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, BASELINES
from cudal2_agent.contract.records.task import Activation, Arch, ElementType, GemmTask
from cudal2_agent.sandbox.cuda.baselines import cublas, cublaslt, gated, library_baselines, torch_matmul
from cudal2_agent.sandbox.cuda.baselines.gated import BLOCK, VECTOR, gate_source, library_task
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.cuda.baselines.library_baselines import LibraryBaselines
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.verification.activations import activated
from cudal2_agent.sandbox.verification.elements import decode, encode
from tests.sandbox.building.build_kernels import ORIGIN
from tests.sandbox.cuda.test_baseline_layouts import CONFIGURATION, CublasLt, Shared, libraries, torch  # noqa: F401
from tests.sandbox.emulator.compiled import PtxCompiler

JOINED, TWICE = (6, 16, 8), (5, 3, 7)  # the first one's `up` begins at a multiple of 256 bytes


class Gate(gated.Gate):
    """As its kernel computes, in numpy."""

    @property
    def scratch(self):
        if not hasattr(self, "held"):
            shape = (self.task.m, 2 * self.task.n) if self.joined else (2, self.task.m, self.task.n)
            self.held = np.full(shape, np.nan, np.float16).view(Shared)
        return self.held

    def load(self):
        self.loaded = True

    def enqueue(self, d, stream):
        assert self.loaded, "within a capture it could not be"
        assert stream == 7
        sums = np.split(self.held, 2, axis=1) if self.joined else self.held
        gate, up = (np.asarray(each).astype(np.float64) for each in sums)
        d[...] = activated(np, self.task.activation, gate) * up


@pytest.fixture(autouse=True)
def on_numpy(monkeypatch, torch):  # noqa: ARG001, F811
    monkeypatch.setattr(library_baselines, "Gate", Gate)
    monkeypatch.setattr(torch_matmul, "tensor_of", lambda torch, array, _: torch.from_numpy(np.asarray(array)))
    monkeypatch.setattr(cublaslt.LtProduct, "_configuration", lambda *_: 0)
    monkeypatch.setattr(cublaslt.LtProduct, "_name", lambda *_: "any")
    monkeypatch.setattr(cublaslt.LtProduct, "record", lambda *_: "ab" * 64)
    monkeypatch.setattr(cublaslt.LtProduct, "suggestions", (1, 2))
    attributes = SimpleNamespace(**dict.fromkeys(CONFIGURATION, 0))
    monkeypatch.setattr(CublasLt, "MatmulAlgoConfigAttribute", attributes, raising=False)


def task_of(shape, layout="tn", **fields):
    m, n, k = shape
    return GemmTask(**{"m": m, "n": n, "k": k, "layout": layout, "activation": "silu", "gated": True} | fields)


def operands(task, *, joined):
    """Operands, D, and what D should be. Small whole numbers, so that sums are exact in f16."""
    rng = np.random.default_rng(task.m)
    a, both = rng.integers(-2, 3, (task.m, task.k)), rng.integers(-2, 3, (2 * task.n, task.k))
    a, both, d = (each.astype(np.float16).view(Shared) for each in (a, both, np.full((task.m, task.n), np.nan)))
    b, up = both[: task.n], both[task.n :]
    given = Operands(a=a, b_nn=None, b_tn=b, up_tn=up, d=d, joined=both if joined else None)
    gate, other = (np.asarray(a, float) @ np.asarray(each, float).T for each in (b, up))
    return given, d, activated(np, task.activation, gate) * other


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize(("shape", "joined"), [(JOINED, True), (TWICE, False)])
def test_each_library_multiplies_with_both_and_one_kernel_gates(shape, joined, layout, name):
    task = task_of(shape, layout)
    given, d, expected = operands(task, joined=joined)

    def sample(contender):
        contender.bind(given).enqueue(7)
        return 1.0

    opened = LibraryBaselines(task, sample).open([name])
    assert opened.notes == ()
    [contender] = opened.contenders[name]
    d[...] = np.nan
    contender.bind(given).enqueue(7)
    assert np.allclose(d, expected, rtol=2e-3, atol=1e-3)
    times = "one product" if joined else "two products"
    assert "layout tn" in contender.detail
    assert f"; {times}, then silu and the gate in one kernel" in contender.detail


def test_the_tuned_one_is_kept_and_restored():
    task = task_of(JOINED)
    given, _, _ = operands(task, joined=True)
    opening = LibraryBaselines(task, lambda contender: contender.bind(given).enqueue(7) or 1.0)
    opening.open([AUTOTUNED])
    assert opening.tuned.task == task
    assert opening.tuned.detail.endswith("in one kernel; best of 2 suggestions")
    again = LibraryBaselines(task, lambda contender: contender.bind(given).enqueue(7) or 1.0)
    again.known = opening.tuned
    [restored] = again.open([AUTOTUNED]).contenders[AUTOTUNED]
    assert (restored.detail, again.tuned) == (opening.tuned.detail, None)


def test_what_a_library_is_asked_for():
    task = task_of(JOINED, "nn", element="bf16")
    plain = GemmTask(m=6, n=32, k=8, layout="tn", element="bf16")
    assert library_task(task, joined=True) == plain
    assert library_task(task, joined=False) == plain.model_copy(update={"n": 16})


def test_operands_that_are_not_there_are_a_missing_baseline():
    task = task_of(JOINED)
    given, _, _ = operands(task, joined=True)
    baseline = gated.GatedBaseline(
        Gate(task, joined=True), cublas.CublasGemm(library_task(task, joined=True), library_task(task, joined=True).layout)
    )
    with pytest.raises(Unavailable, match="do not lie there by columns"):
        baseline.bind(replace(given, joined=None))


def test_the_profiler_takes_no_pair_of_kernels():
    with pytest.raises(Unavailable, match="has two kernels"):
        cublaslt.suggestion(task_of(JOINED), "layout tn, algorithm 2")


@pytest.mark.parametrize("element", ElementType)
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("columns", "joined"), [(24, True), (24, False), (13, True), (13, False)])
def test_the_kernel_gates_sums_in_either_place(tmp_path, columns, joined, activation, element):
    pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
    from tests.sandbox.emulator.launched import launch

    rows, task = 20, GemmTask(m=20, n=columns, k=8, activation=activation, gated=True, element=element)
    rng = np.random.default_rng(3)
    gate, up = (encode(np, rng.standard_normal((rows, columns)) * 3, element) for _ in range(2))
    sums = np.concatenate([gate, up], axis=1) if joined else np.stack([gate, up])
    beside, pitch = (columns, 2 * columns) if joined else (rows * columns, columns)
    text = gate_source(task).replace('extern "C" __global__ void gate(', "__device__ void gate(")
    call = f"gate(sums, sums + {beside}, d, {rows}, {columns}, {pitch});"
    source = text + f'\nextern "C" __global__ void k(const u16* sums, u16* d) {{ {call} }}\n'
    threads = rows * (columns if columns % VECTOR else columns // VECTOR)
    plan = LaunchPlan(arch=Arch.SM_90A, launches=(Launch(entry="k", grid=(1, 1, 1), block=(BLOCK, 1, 1), args=()),))
    ptx = PtxCompiler(tmp_path).compile(Candidate(source=source, plan=plan, origin=ORIGIN), Arch.SM_90A)
    d = np.zeros((rows, columns), np.uint16)
    body = re.sub(r"^\.(version|target|address_size).*$", "", ptx, flags=re.MULTILINE)
    run = launch(body, sums.reshape(-1), d, read_only=[0], grid=(math.ceil(threads / BLOCK), 1, 1), block=(BLOCK, 1, 1))
    assert run.kinds == []
    wide = [decode(np, each, element).astype(np.float64) for each in (gate, up)]
    wanted = activated(np, activation, wide[0]) * wide[1]
    step = 2.0**-11 if element is ElementType.F16 else 2.0**-8
    assert np.allclose(decode(np, d, element), wanted, rtol=step * 1.01, atol=1e-5)
