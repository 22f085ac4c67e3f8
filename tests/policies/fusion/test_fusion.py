"""The fuser's kernels are right on the emulator, and it fuses what it says."""

from typing import Any

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.fusion import policy
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.fused_source import Choice, written
from cudal2_agent.policies.fusion.grouping import Groups, ProductStep, grouped
from cudal2_agent.policies.fusion.policy import FusionPolicy, rewrite
from cudal2_agent.policies.fusion.programs import MustStore
from cudal2_agent.policies.fusion.space import choices
from cudal2_agent.policies.fusion.values import Unplanned
from tests.policies.fusion.emulated import Array, emulated, inputs_of
from tests.policies.fusion.graphs import linear_norm_relu, node, softmax, task
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.modules import graphs

CHIP = REFERENCE_CHIPS[Arch.SM_90A]


def first(module: ModuleTask) -> Candidate:
    groups = grouped(module)
    return written(module, groups, {name: each[0] for name, each in choices(groups, CHIP).items()})


def softmax_of(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    result: Array = powers / powers.sum(axis, keepdims=True)
    return result


AXES = [
    "rows v4 t128 i1 l32",
    "rows v4 t128 i1 l8 held",
    "rows v4 t128 i1 l128 held",
    "rows v1 t128 i1 l64 held",
    "rows v2 t64 i1 l1",
    "columns v1 t128 i1 l4",
    "columns v1 t128 i1 l16 held",
]


@pytest.mark.parametrize("text", AXES)
def test_every_layout_of_a_row_is_right(text: str, compiler: PtxCompiler) -> None:
    module = softmax(5, 132)  # rows that fill neither a CTA nor a whole number of steps
    groups = grouped(module)
    candidate = written(module, groups, {"k0": Axes.parse(text)})
    inputs = inputs_of(module)
    out = emulated(candidate, module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, softmax_of(inputs["x"].astype(np.float64), 1), rtol=2e-6)


@pytest.mark.parametrize("text", ["columns v4 t64 i1 l4 held", "columns v2 t64 i1 l1", "rows v1 t64 i1 l8"])
def test_every_layout_of_a_column_is_right(text: str, compiler: PtxCompiler) -> None:
    shape = (3, 9, 20)
    module = task({"x": shape}, [node("soft", "aten._softmax.default", "x", 1, False, results=[shape])], "soft")
    candidate = written(module, grouped(module), {"k0": Axes.parse(text)})
    inputs = inputs_of(module)
    out = emulated(candidate, module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, softmax_of(inputs["x"].astype(np.float64), 1), rtol=2e-6)


def test_a_norm_and_what_follows_a_product_are_one_kernel(compiler: PtxCompiler) -> None:
    module = linear_norm_relu(6, 16, 48)
    groups = grouped(module)
    assert [type(step) for step in groups.steps[:1]] == [ProductStep]
    assert len(groups.programs) == 1
    inputs = inputs_of(module)
    out = emulated(first(module), module, inputs, compiler)["out"]
    x = inputs["x"].astype(np.float64) @ inputs["w"].T.astype(np.float64) + inputs["b"]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * inputs["g"] + inputs["h"]
    np.testing.assert_allclose(out, np.maximum(x, 0), atol=3e-6)


def test_a_pool_reads_only_what_is_inside(compiler: PtxCompiler) -> None:
    """Padding, a stride and a reshape between the pad and the buffer."""
    module = task(
        {"x": (2, 3, 7, 9)},
        [
            node("joined", "aten.view.default", "x", [6, 7, 9], results=[(6, 7, 9)]),
            node("pool", "aten.max_pool2d_with_indices.default", "joined", [3, 3], [2, 2], [1, 1], results=[(6, 4, 5)] * 2),
            node("first", "getitem", "pool", 0, results=[(6, 4, 5)]),
        ],
        "first",
    )
    inputs = inputs_of(module)
    out = emulated(first(module), module, inputs, compiler)["out"]
    padded = np.pad(inputs["x"].reshape(6, 7, 9), ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    assert np.array_equal(out, windows.max((3, 4)))


def test_ties_and_nan_are_taken_as_aten_does(compiler: PtxCompiler) -> None:
    nodes = [node("at", "aten.argmax.default", "x", 1, results=[(4,)], element=BufferElement.I64)]
    module = task({"x": (4, 40)}, nodes, "at")
    x = np.zeros((4, 40), np.float32)
    x[1, 7], x[1, 9], x[2, 3], x[2, 37], x[3, 0] = np.nan, np.nan, 5, 5, -0.5
    out = emulated(first(module), module, {"x": x}, compiler)["out"]
    assert out.tolist() == [0, 7, 3, 1]


def test_a_schedule_is_written_again_at_other_sizes(compiler: PtxCompiler) -> None:
    large, small = linear_norm_relu(4096, 1024, 4096), linear_norm_relu(6, 16, 48)
    again = rewrite(first(large), small)
    assert again is not None
    inputs = inputs_of(small)
    assert np.isfinite(emulated(again, small, inputs, compiler)["out"]).all()
    assert again.source != first(large).source


def test_a_source_defines_what_it_waits_for() -> None:
    """Rows of f16 that no asynchronous copy fits are kept by plain ones."""
    candidates = FusionPolicy().propose(Observation(task=graphs.row_softmax(4, 75, "f16"), chip=CHIP, round=0, seed=0), 3)
    waiting = [each.source for each in candidates if "wait_for_kept();" in each.source]
    assert waiting
    assert all("void wait_for_kept()" in source for source in waiting)


def test_an_operation_without_a_rule_is_named() -> None:
    module = task({"x": (4,)}, [node("odd", "aten.bessel_j0.default", "x", results=[(4,)])], "odd")
    with pytest.raises(Unplanned, match="bessel_j0"):
        grouped(module)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"), [("div.Tensor_mode", ["y"], {"rounding_mode": "floor"}), ("round.decimals", [], {"decimals": 2})]
)
def test_a_form_of_an_operation_without_a_rule_is_named(op: str, args: list[str], kwargs: dict[str, Any]) -> None:
    shape = (4, 8)
    module = task({"x": shape, "y": shape}, [node("odd", f"aten.{op}", "x", *args, results=[shape], **kwargs)], "odd")
    with pytest.raises(Unplanned, match=op.split(".")[0]):
        grouped(module)


def test_a_logarithm_of_a_sigmoid_has_two_results(compiler: PtxCompiler) -> None:
    """The second is only for gradients."""
    nodes = [
        node("both", "aten.log_sigmoid_forward.default", "x", results=[(4, 8), (0,)]),
        node("first", "getitem", "both", 0, results=[(4, 8)]),
    ]
    module = task({"x": (4, 8)}, nodes, "first")
    inputs = inputs_of(module)
    inputs["x"][0, :2] = -200, 80
    out = emulated(first(module), module, inputs, compiler)["out"]
    np.testing.assert_allclose(out, -np.logaddexp(0, -inputs["x"].astype(np.float64)), rtol=2e-6)


def test_a_plan_that_cannot_be_written_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other axes take its place; where none can be written, the policy says why it proposes nothing."""
    asked = Observation(task=softmax(64, 128), chip=CHIP, round=0, seed=0)
    best = first(softmax(64, 128))

    def unwritten(task: ModuleTask, groups: Groups, plan: dict[str, Choice]) -> Candidate:
        candidate = written(task, groups, plan)
        if candidate.id == best.id:
            raise MustStore(groups.values[0])
        return candidate

    monkeypatch.setattr(policy, "written", unwritten)
    others = FusionPolicy()
    assert len(others.propose(asked, 2)) == 2
    assert not others.exhausted
    monkeypatch.setattr(
        policy, "choices", lambda groups, chip: {name: each[:1] for name, each in choices(groups, chip).items()}
    )
    none = FusionPolicy()
    assert none.propose(asked, 2) == []
    assert none.exhausted == "the fuser has no rule for soft: read where no kernel computes it"


def test_the_logarithm_of_a_sum_of_powers_is_right(compiler: PtxCompiler) -> None:
    module = task({"x": (5, 33)}, [node("lse", "aten.logsumexp.default", "x", [1], True, results=[(5, 1)])], "lse")
    inputs = inputs_of(module)
    inputs["x"][1] = -np.inf
    inputs["x"][2, 3] = np.inf
    out = emulated(first(module), module, inputs, compiler)["out"]
    x = inputs["x"].astype(np.float64)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(out[:, 0], np.logaddexp.reduce(x, axis=1), rtol=2e-6)


@pytest.mark.parametrize(("op", "of"), [("tril", np.tril), ("triu", np.triu)])
@pytest.mark.parametrize("diagonal", [0, -2, 3])
def test_what_lies_beyond_a_diagonal_is_zero(op: str, of: Any, diagonal: int, compiler: PtxCompiler) -> None:
    module = task({"x": (2, 7, 9)}, [node("part", f"aten.{op}.default", "x", diagonal, results=[(2, 7, 9)])], "part")
    inputs = inputs_of(module)
    inputs["x"][0, 0, 8] = np.inf
    assert np.array_equal(emulated(first(module), module, inputs, compiler)["out"], of(inputs["x"], diagonal))


def test_the_larger_of_two_tensors_and_a_norm_by_its_old_name_are_right(compiler: PtxCompiler) -> None:
    module = task(
        {"x": (4, 20), "y": (4, 20)},
        [
            node("larger", "aten.max.other", "x", "y", results=[(4, 20)]),
            node("length", "aten.norm.ScalarOpt_dim", "larger", 2.0, [1], results=[(4,)]),
        ],
        "length",
    )
    inputs = inputs_of(module)
    out = emulated(first(module), module, inputs, compiler)["out"]
    larger = np.maximum(inputs["x"], inputs["y"]).astype(np.float64)
    np.testing.assert_allclose(out, np.sqrt((larger**2).sum(1)), rtol=1e-6)


@pytest.mark.parametrize(("side", "vector"), [(6, 4), (7, 4)])
def test_a_small_operand_of_each_channel_narrows_no_load(side: int, vector: int) -> None:
    """The places of a channel are no multiple of four where a side is odd; the large operands lie side by side all the same."""
    shape = (4, 8, side, side)
    module = task({"x": shape, "b": (8, 1, 1)}, [node("sum", "aten.add.Tensor", "x", "b", results=[shape])], "sum")
    assert choices(grouped(module), CHIP)["k0"][0].vector == vector


def test_a_product_is_stored_in_an_output_of_another_shape_without_a_copy() -> None:
    nodes = [
        node("product", "aten.mm.default", "a", "b", results=[(15, 8)]),
        node("other", "aten.mm.default", "c", "d", results=[(15, 8)]),
        node("parted", "aten.view.default", "product", [3, 5, 8], results=[(3, 5, 8)]),
    ]
    module = task({"a": (15, 7), "b": (7, 8), "c": (15, 7), "d": (7, 8)}, nodes, "parted")
    (step,) = grouped(module).steps
    assert isinstance(step, ProductStep)
    assert (step.call.out.tensor, step.call.out.shape) == ("out", (15, 8))


def test_tiles_come_first_where_fusing_saves_more_than_a_library_is_faster() -> None:
    """By matrix instructions in f64 products of f32 are faster than a library's, on the chips whose rate is that of f32."""

    def first_of(rows: int, inner: int, columns: int, op: str = "aten.relu.default", arch: Arch = Arch.SM_80) -> str:
        shape = (rows, columns)
        nodes = [
            node("product", "aten.mm.default", "a", "b", results=[shape]),
            node("after", op, "product", results=[shape]),
        ]
        module = task({"a": (rows, inner), "b": (inner, columns)}, nodes, "after")
        return choices(grouped(module), REFERENCE_CHIPS[arch])["k0"][0].text().split()[0]

    assert first_of(8192, 16, 8192) == "tile"  # little is multiplied for each element that is stored
    assert first_of(4096, 4096, 4096) == "library"
    assert first_of(4096, 4096, 4096, "aten.tril.default") == "tile"  # half of the tiles are zeros
    assert first_of(4096, 4096, 4096, arch=Arch.SM_90A) == "dmma"


def convolution(stride: int, *, transposed: bool, images: int = 16) -> ModuleTask:
    """With ReLU, then the sum of each channel."""
    size = 128 * stride if transposed else 128 // stride
    shape = (images, 64, size, size)
    args = ["x", "w", None, [stride] * 2, [1, 1], [1, 1], transposed, [stride - 1] * 2, 1]
    nodes = [
        node("conv", "aten.convolution.default", *args, results=[shape]),
        node("positive", "aten.relu.default", "conv", results=[shape]),
        node("sum", "aten.sum.dim_IntList", "positive", [2, 3], results=[shape[:2]]),
    ]
    return task({"x": (images, 64, 128, 128), "w": (64, 64, 3, 3)}, nodes, "sum")


def test_the_first_candidates_compute_a_convolution_in_every_way() -> None:
    """A large module is judged by them."""
    plain = [(each.origin.schedule or {})["k0"] for each in proposed(convolution(1, transposed=False))]
    assert [str(each).split()[0] for each in plain] == ["library", "dmma", "library"]
    assert len(set(plain)) == 3
    strided = [(each.origin.schedule or {})["k0"] for each in proposed(convolution(2, transposed=True))]
    assert [str(each).split()[0] for each in strided] == ["dmma", "library", "library"]
    ways = [each.text().split()[0] for each in choices(grouped(convolution(2, transposed=True)), CHIP)["k0"]]
    assert ways[:4] == ["dmma", "library", "tile", "library"], "by both kinds of tiles"


def proposed(module: ModuleTask, count: int = 3) -> list[Candidate]:
    return FusionPolicy().propose(Observation(task=module, chip=CHIP, round=0, seed=0), count)


def test_axes_behind_a_matrix_product_are_tried_before_its_tiles() -> None:
    """A library's product is hard to beat without matrix instructions."""
    older = linear_norm_relu(4096, 1024, 4096).model_copy(update={"arch": Arch.SM_80})
    asked = Observation(task=older, chip=REFERENCE_CHIPS[Arch.SM_80], round=0, seed=0)
    tried = [each.origin.schedule or {} for each in FusionPolicy().propose(asked, 5)]
    assert [str(each["k0"]).split()[0] for each in tried] == ["library", "library", "library", "library", "tile"]
