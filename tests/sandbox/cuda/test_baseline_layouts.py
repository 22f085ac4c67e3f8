"""What the libraries are told about operands in each layout: their calls are carried out on numpy's memory."""

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.evaluation import CUBLAS
from cudal2_agent.contract.records.task import Activation, GemmTask, Layout
from cudal2_agent.sandbox.cuda.baselines import cublas, cublaslt, torch_matmul
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable, competing_layouts
from cudal2_agent.sandbox.cuda.baselines.library_baselines import LibraryBaselines
from cudal2_agent.sandbox.cuda.baselines.torch_matmul import TorchMatmul
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.verification.activations import activated

SHAPES = [(5, 7, 3), (4, 4, 4), (6, 2, 6), (1, 6, 2)]


class Array:
    """A numpy array that tells its address as cupy does."""

    def __init__(self, array):
        self.array = array
        self.data = SimpleNamespace(ptr=array.ctypes.data)


def by_columns(address, rows, columns, lead):
    """A matrix in memory by columns, `lead` elements from one to the next."""
    assert lead >= rows
    memory = (ctypes.c_uint16 * (lead * columns)).from_address(address)
    return np.frombuffer(memory, np.float16).reshape(columns, lead).T[:rows]


def turned(matrix, operation):
    assert operation in (0, 1)
    return matrix.T if operation else matrix


class Cublas:
    """cublasGemmEx as it is documented, for alpha 1 and beta 0."""

    cuBLASError = RuntimeError
    GemmAlgo = SimpleNamespace(DEFAULT=-1)

    def set_stream(self, *_):
        pass

    set_workspace = set_stream

    def gemm_ex(self, _handle, op_a, op_b, m, n, k, _alpha, a, _a_type, lda, b, _b_type, ldb, _beta, c, _c_type, ldc, *_):
        left = turned(by_columns(a, *((k, m) if op_a else (m, k)), lda), op_a)
        right = turned(by_columns(b, *((n, k) if op_b else (k, n)), ldb), op_b)
        by_columns(c, m, n, ldc)[...] = left.astype(np.float64) @ right


class Epilogue(IntEnum):
    DEFAULT, RELU, BIAS, RELU_BIAS, GELU, GELU_BIAS = 1, 2, 4, 6, 32, 36


class CublasLt:
    """cublasLtMatmul as it is documented, for alpha 1 and beta 0."""

    cuBLASLtError = RuntimeError
    Epilogue = Epilogue
    MatmulDescAttribute = SimpleNamespace(TRANSA=3, TRANSB=4, EPILOGUE=7, BIAS_POINTER=8)

    def matmul_desc_create(self, *_):
        return {3: 0, 4: 0, 7: Epilogue.DEFAULT}

    def matmul_desc_set_attribute(self, operation, attribute, address, size):
        assert size == (8 if attribute == 8 else 4)
        operation[attribute] = (ctypes.c_uint64 if attribute == 8 else ctypes.c_int32).from_address(address).value

    def matrix_layout_create(self, _kind, rows, columns, lead):
        return rows, columns, lead

    def matmul(self, _handle, operation, _alpha, a, a_layout, b, b_layout, _beta, _c, _c_layout, d, d_layout, *_):
        left, right = turned(by_columns(a, *a_layout), operation[3]), turned(by_columns(b, *b_layout), operation[4])
        sums = left.astype(np.float64) @ right
        if operation[7] & Epilogue.BIAS:  # one element of each row, which is a column of D
            sums = sums + by_columns(operation[8], d_layout[0], 1, d_layout[0])
        if operation[7] & Epilogue.RELU:
            sums = activated(np, Activation.RELU, sums)
        if operation[7] & Epilogue.GELU:
            sums = activated(np, Activation.GELU_TANH, sums)
        by_columns(d, *d_layout)[...] = sums


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    for module, library in ((cublas, Cublas()), (cublaslt, CublasLt())):
        monkeypatch.setattr(module, "bindings", lambda *_, library=library: library)
        monkeypatch.setattr(module, "_handle", lambda *_: 1)
        monkeypatch.setattr(module, "shared_workspace", lambda: SimpleNamespace(data=SimpleNamespace(ptr=0)))


def operands(task, layout, wrap=Array):
    """Operands in one layout, and the product that they should give."""
    rng, stored = np.random.default_rng(task.m), task.model_copy(update={"layout": layout})
    a, b = (rng.integers(-4, 5, operand_shape(stored, name)).astype(np.float16) for name in ("A", "B"))
    d = np.full((task.m, task.n), np.nan, np.float16)
    expected = (a.T if layout.transposes_a else a) @ (b.T if layout.transposes_b else b)
    return Operands.in_layout(layout, wrap(a), wrap(b), wrap(d)), d, expected


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", SHAPES)
def test_cublas_multiplies_what_is_stored(layout, shape):
    task = GemmTask(m=shape[0], n=shape[1], k=shape[2])
    given, d, expected = operands(task, layout)
    cublas.CublasGemm(task, layout).bind(given).enqueue(0)
    assert d.tolist() == expected.tolist()


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", SHAPES)
def test_cublaslt_multiplies_what_is_stored(layout, shape):
    task = GemmTask(m=shape[0], n=shape[1], k=shape[2])
    given, d, expected = operands(task, layout)
    product = cublaslt.LtProduct(task, layout)
    cublaslt.BoundLt(product, 0, cublaslt.pointers(given, layout)).enqueue(0)
    assert d.tolist() == expected.tolist()


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_multiplies_what_is_stored(torch, layout, shape):
    task = GemmTask(m=shape[0], n=shape[1], k=shape[2], layout=layout)
    given, d, expected = operands(task, layout, wrap=lambda array: array)
    by_torch(torch, task).bind(given).enqueue(0)
    assert d.tolist() == expected.tolist()


def by_torch(torch, task):
    contender = TorchMatmul.__new__(TorchMatmul)
    contender._task, contender._torch = task, torch
    return contender


@pytest.fixture
def torch(monkeypatch):
    """PyTorch without a GPU, whose one stream is the host's time."""
    found = pytest.importorskip("torch")
    for module in (cublaslt, torch_matmul):
        monkeypatch.setattr(module, "torch_with_gpu", lambda: found)
        monkeypatch.setattr(module, "torch_stream", lambda *_: None)
    monkeypatch.setattr(found.cuda, "stream", lambda _: nullcontext())
    return found


@pytest.fixture(params=[(Activation(name), bias) for name in Activation for bias in (False, True)])
def activating(request):
    """A task with its operands, D, and what D should be."""
    activation, bias = request.param
    task = GemmTask(m=6, n=8, k=16, layout="tn", activation=activation, bias=bias)
    given, d, sums = operands(task, task.layout, wrap=Shared)
    if bias:
        added = np.linspace(-2, 2, task.n).astype(np.float16)
        given, sums = replace(given, bias=added.view(Shared)), sums + added
    return task, given, d, activated(np, activation, sums.astype(np.float64))


class Shared(np.ndarray):
    """A numpy array that tells its address as cupy does, and that PyTorch reads."""

    def __new__(cls, array):
        return array.view(cls)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def test_torch_computes_an_activation_behind_the_product(torch, activating):
    task, given, d, expected = activating
    by_torch(torch, task).bind(given).enqueue(0)
    assert np.allclose(d, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.usefixtures("torch")
def test_cublaslt_computes_an_activation_by_its_epilogue_or_leaves_it_to_pytorch(activating, monkeypatch):
    task, given, d, expected = activating
    monkeypatch.setattr(cublaslt.LtProduct, "_configuration", lambda *_: 0)
    monkeypatch.setattr(cublaslt.LtProduct, "_name", lambda *_: "any")
    monkeypatch.setattr(
        CublasLt, "MatmulAlgoConfigAttribute", SimpleNamespace(**dict.fromkeys(CONFIGURATION, 0)), raising=False
    )
    gemm = cublaslt.LtGemm("one", cublaslt.LtProduct(task, task.layout), 0)
    gemm.bind(given).enqueue(0)
    assert np.allclose(d, expected, rtol=4e-3, atol=4e-3)
    bias = "_bias" if task.bias else ""
    how = {"relu": f"epilogue relu{bias}", "gelu_tanh": f"epilogue gelu{bias}"}
    words = how.get(task.activation, f"then {task.activation} by PyTorch")
    assert gemm.detail.endswith(f", cluster any; {words}")
    plain = cublaslt.LtGemm("one", cublaslt.LtProduct(task.model_copy(update={"activation": None}), task.layout), 0)
    assert plain.detail == gemm.detail.partition(";")[0], "the words of a record of before"


def test_cublas_is_no_baseline_of_an_activation():
    opened = LibraryBaselines(GemmTask(m=5, n=7, k=3, activation="relu"), lambda _: 1.0).open([CUBLAS])
    assert opened.notes == ("baseline cublas left out: cuBLAS computes no activation; cuBLASLt does",)


CONFIGURATION = ("ID", "TILE_ID", "STAGES_ID", "SPLITK_NUM", "REDUCTION_SCHEME", "CLUSTER_SHAPE_ID")


def test_a_layout_that_the_operands_lack_is_a_missing_baseline():
    task = GemmTask(m=5, n=7, k=3)
    for held, wanted, name in ((Layout.NN, Layout.NT, "A"), (Layout.NT, Layout.NN, "A"), (Layout.NN, Layout.TN, "B")):
        given, _, _ = operands(task, held)
        with pytest.raises(Unavailable, match=f"hold no {name} in layout {wanted}"):
            cublas.CublasGemm(task, wanted).bind(given)


def test_the_tasks_own_layout_competes_with_both_that_store_a_by_rows():
    task = GemmTask(m=5, n=7, k=3)
    found = {layout: competing_layouts(task.model_copy(update={"layout": layout})) for layout in Layout}
    both = (Layout.NN, Layout.TN)
    assert found == {Layout.NN: both, Layout.TN: both, Layout.NT: (*both, Layout.NT)}
