"""Rows divided among items, parts, clusters and what a thread keeps of them: each form is right, with races detected."""

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.fused_source import written
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.policy import rewrite
from cudal2_agent.policies.fusion.space import choices
from tests.policies.fusion.emulated import Array, emulated, inputs_of
from tests.policies.fusion.graphs import node, softmax, task
from tests.sandbox.emulator.compiled import PtxCompiler

ROWS = [
    "rows v4 t64 i2 l32",
    "rows v1 t64 i4 l64",  # more items than the row has
    "rows v2 t64 i1 l64 p3",
    "rows v4 t128 i1 l64 p5",
    "rows v4 t32 i2 l32 p2 held",
    "rows v2 t32 i1 l32 c4",
    "rows v4 t32 i1 l32 c2 held",
    "rows v1 t64 i2 l32 shared",
    "rows v4 t64 i2 l64 shared",
    "rows v2 t32 i1 l32 c3 shared",
    "rows v1 t64 i2 l64 k1 shared",
    "rows v2 t64 i1 l32 c2 k1 shared",
    "columns v1 t64 i4 l8",
    "columns v1 t64 i2 l4 p3",
    "columns v1 t64 i1 l8 shared",
]


def best(module: ModuleTask) -> Axes:
    found = choices(grouped(module), REFERENCE_CHIPS[Arch.SM_90A])["k0"][0]
    assert isinstance(found, Axes)
    return found


def test_few_rows_are_divided_among_the_chip_s_sms() -> None:
    large = statistics("sum.dim_IntList", (2, 1 << 26), [1])
    assert best(large).parts * 2 >= 2 * 132
    small = statistics("sum.dim_IntList", (4096, 1 << 12), [1])
    assert best(small).parts == 1
    assert best(statistics("sum.dim_IntList", (1, 2048), [1])).parts == 1  # a launch takes longer


def test_a_row_that_fits_is_read_once() -> None:
    assert best(softmax(4096, 8192)).held
    long = best(softmax(4096, 393216))
    assert long.cluster > 1
    assert long.shared
    assert not long.kept


def test_of_a_row_that_does_not_fit_a_part_is_kept() -> None:
    shape, args = (112, 64, 512, 512), [112, 64, 1 << 18, 8, 1e-5]
    nodes = [
        node("norm", "aten.native_group_norm.default", "x", "g", "h", *args, results=[shape, (112, 8), (112, 8)]),
        node("first", "getitem", "norm", 0, results=[shape]),
    ]
    found = best(task({"x": shape, "g": (64,), "h": (64,)}, nodes, "first"))
    assert found.cluster > 1
    assert found.shared
    kept = found.kept * found.threads * found.vector * found.cluster
    assert 1 / 8 < kept / (1 << 21) < 1


def test_rows_that_lie_side_by_side_are_columns() -> None:
    found = best(statistics("sum.dim_IntList", (128, 4096, 1023), [1]))
    assert (found.layout, found.vector) == ("columns", 1)  # four of an odd number of columns are not aligned
    assert best(statistics("sum.dim_IntList", (128, 4096, 1024), [1])).vector == 4


def test_a_pool_before_a_sum_is_read_along_its_rows() -> None:
    """Neighbouring windows lie two elements apart; neighbouring rows a whole image."""
    pooled = (16, 8, 64, 64)
    nodes = [
        node("pool", "aten.avg_pool2d.default", "x", [2, 2], results=[pooled]),
        node("sum", "aten.sum.dim_IntList", "pool", [2, 3], results=[(16, 8)]),
    ]
    assert best(task({"x": (16, 8, 128, 128)}, nodes, "sum")).layout == "rows"


def test_a_form_is_proved_at_smaller_sizes(compiler: PtxCompiler) -> None:
    """A schedule of parts stays one of parts, though rows are short there."""
    large, small = (statistics("sum.dim_IntList", (2, length), [1]) for length in (1 << 26, 90))
    candidate = written(large, grouped(large), {"k0": best(large)})
    again = rewrite(candidate, small)
    assert again is not None
    assert len(again.plan.launches) == len(candidate.plan.launches) == 2
    x = np.random.default_rng(8).normal(size=(2, 90)).astype(np.float32)
    np.testing.assert_allclose(emulated(again, small, {"x": x}, compiler)["out"], x.astype(np.float64).sum(1), rtol=1e-5)


def run(module: ModuleTask, text: str, inputs: dict[str, Array], compiler: PtxCompiler) -> Array:
    groups = grouped(module)
    assert [step.name for step in groups.steps] == ["k0"]
    candidate = written(module, groups, {"k0": Axes.parse(text)})
    assert Axes.parse(text).text() == text
    return emulated(candidate, module, inputs, compiler)["out"]


@pytest.mark.parametrize("text", ROWS)
@pytest.mark.parametrize(("rows", "columns"), [(3, 132), (1, 164)])
def test_a_softmax_of_every_form(text: str, rows: int, columns: int, compiler: PtxCompiler) -> None:
    """With elements that are minus infinity, as masks leave them."""
    x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32) * 4
    x[0, 5:40] = -np.inf
    out = run(softmax(rows, columns), text, {"x": x}, compiler)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, powers / powers.sum(1, keepdims=True), rtol=3e-6)


@pytest.mark.parametrize(
    "text", ["rows v2 t64 i2 l64", "rows v2 t64 i1 l64 p3", "rows v1 t32 i1 l32 c2 shared", "columns v1 t64 i1 l4"]
)
def test_special_values_of_a_softmax_are_aten_s(text: str, compiler: PtxCompiler) -> None:
    x = np.random.default_rng(0).normal(size=(5, 66)).astype(np.float32)
    x[0, 3], x[1, 7], x[2] = np.inf, np.nan, -np.inf
    x[3, 60] = np.inf
    x[3, 61] = np.nan
    out = run(softmax(5, 66), text, {"x": x}, compiler)
    assert np.isnan(out[:4]).all()
    assert np.isfinite(out[4]).all()


def statistics(op: str, shape: tuple[int, ...], dims: list[int]) -> ModuleTask:
    kept = tuple(size for dim, size in enumerate(shape) if dim not in dims)
    element = BufferElement.I64 if "arg" in op else BufferElement.F32
    args = [dims[0]] if "arg" in op else [dims]
    return task({"x": shape}, [node("total", f"aten.{op}", "x", *args, results=[kept], element=element)], "total")


@pytest.mark.parametrize(
    "text", ["rows v1 t64 i2 l64 p4", "rows v1 t64 i1 l64 c3", "rows v1 t128 i4 l32", "columns v1 t64 i4 l2 p2"]
)
@pytest.mark.parametrize("op", ["sum.dim_IntList", "argmax.default", "amin.default", "var.correction", "logsumexp.default"])
def test_a_reduction_of_every_form(op: str, text: str, compiler: PtxCompiler) -> None:
    """Rows of a prime length, in parts of which the last is shorter."""
    x = np.random.default_rng(4).normal(size=(5, 211)).astype(np.float32) + 3
    out = run(statistics(op, x.shape, [1]), text, {"x": x}, compiler)
    wide = x.astype(np.float64)
    wanted = {
        "sum": lambda: wide.sum(1),
        "argmax": lambda: wide.argmax(1),
        "amin": lambda: wide.min(1),
        "var": lambda: wide.var(1, ddof=1),
        "logsumexp": lambda: np.log(np.exp(wide).sum(1)),
    }[op.split(".")[0]]()
    np.testing.assert_allclose(out, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "text", ["rows v4 t128 i2 l128 p9", "rows v1 t64 i1 l64 p300", "rows v4 t64 i1 l64 c8", "columns v1 t64 i1 l64 p4"]
)
def test_one_row_of_everything(text: str, compiler: PtxCompiler) -> None:
    """A mean over all dimensions; more parts than a CTA has threads, and parts without an element."""
    module = task({"x": (7, 4, 44)}, [node("mean", "aten.mean.default", "x", results=[()])], "mean")
    x = np.random.default_rng(5).normal(size=(7, 4, 44)).astype(np.float32)
    np.testing.assert_allclose(run(module, text, {"x": x}, compiler), [x.astype(np.float64).mean()], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("text", ["rows v2 t64 i1 l64 p3", "rows v2 t64 i2 l32 c2 shared", "rows v2 t32 i1 l32 held"])
def test_a_group_norm_with_what_follows_is_one_program(text: str, compiler: PtxCompiler) -> None:
    shape, args = (2, 6, 5, 4), [2, 6, 20, 3, 1e-5]
    module = task(
        {"x": shape, "g": (6,), "h": (6,)},
        [
            node("norm", "aten.native_group_norm.default", "x", "g", "h", *args, results=[shape, (2, 3), (2, 3)]),
            node("first", "getitem", "norm", 0, results=[shape]),
            node("positive", "aten.relu.default", "first", results=[shape]),
        ],
        "positive",
    )
    inputs = inputs_of(module)
    x = inputs["x"].astype(np.float64).reshape(2, 3, 40)
    x = ((x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)).reshape(shape)
    wanted = np.maximum(x * inputs["g"][:, None, None] + inputs["h"][:, None, None], 0)
    np.testing.assert_allclose(run(module, text, inputs, compiler), wanted, atol=2e-6)


def test_rows_in_parts_are_equal_bit_for_bit_from_run_to_run(compiler: PtxCompiler) -> None:
    """Parts are merged in the order of a tree, whatever the order in which CTAs run; the plan declares no atomics."""
    module = task({"x": (1, 4096)}, [node("sum", "aten.sum.default", "x", results=[()])], "sum")
    candidate = written(module, grouped(module), {"k0": Axes.parse("rows v4 t64 i1 l64 p16")})
    x = np.random.default_rng(7).normal(size=(1, 4096)).astype(np.float32)
    assert not candidate.plan.atomics
    assert len(candidate.plan.launches) == 2
    assert len({emulated(candidate, module, {"x": x}, compiler, seed)["out"].tobytes() for seed in range(3)}) == 1


@pytest.mark.parametrize("text", ["rows v4 t32 i4 l32", "rows v2 t64 i1 l64 p3", "columns v1 t64 i4 l8"])
def test_a_number_is_divided_by_what_its_row_has_at_every_magnitude(text: str, compiler: PtxCompiler) -> None:
    """The quotient is a product with an inverse, which itself must be no infinity and no zero."""
    shape = (6, 64)
    nodes = [
        node("sizes", "aten.abs.default", "x", results=[shape]),
        node("sum", "aten.sum.dim_IntList", "sizes", [1], True, results=[(6, 1)]),
        node("share", "aten.div.Tensor", "x", "sum", results=[shape]),
    ]
    x = np.random.default_rng(1).uniform(0.5, 1, size=shape) * np.array([[1e-42], [1e-37], [1], [1e20], [4e36], [0]])
    x = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        wanted = x.astype(np.float64) / x.astype(np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(run(task({"x": shape}, nodes, "share"), text, {"x": x}, compiler), wanted, rtol=1e-6)


@pytest.mark.parametrize("text", ["rows v4 t32 i4 l32", "rows v4 t32 i1 l32 held", "columns v1 t64 i4 l8"])
def test_the_variance_of_a_large_offset_is_that_of_what_varies(text: str, compiler: PtxCompiler) -> None:
    """Several elements are taken as a set, whose mean is rounded to the offset's precision."""
    x = (np.random.default_rng(2).normal(size=(3, 512)) + 1e4).astype(np.float32)
    out = run(statistics("var.correction", x.shape, [1]), text, {"x": x}, compiler)
    np.testing.assert_allclose(out, x.astype(np.float64).var(1, ddof=1), rtol=1e-4)
