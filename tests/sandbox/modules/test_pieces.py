"""References made piece by piece along an axis of a graph say what the whole says."""

import pytest

torch = pytest.importorskip("torch")

from cudal2_agent.contract.records.module_graph import GraphNode, TensorType  # noqa: E402
from cudal2_agent.contract.records.named_buffer import BufferElement  # noqa: E402
from cudal2_agent.sandbox.modules import pieces  # noqa: E402
from cudal2_agent.sandbox.modules.bounds import Judge  # noqa: E402
from cudal2_agent.sandbox.modules.cases import NORMAL, draw  # noqa: E402
from cudal2_agent.sandbox.modules.evaluations import REFERENCE, Evaluations  # noqa: E402
from cudal2_agent.sandbox.modules.executor import Run  # noqa: E402
from cudal2_agent.sandbox.modules.graph_axes import axes_of  # noqa: E402
from cudal2_agent.sandbox.modules.pieces import PieceJudge, judge_of  # noqa: E402
from tests.sandbox.modules.small_tasks import argmax, layer_norm, linear_relu, node, of, softmax, task  # noqa: E402

ROWS = 8
CPU = torch.device("cpu")


def several(name, op, args, *shapes):
    results = tuple(TensorType(shape=shape, element=BufferElement.F32) for shape in shapes)
    return GraphNode(name=name, op=op, args=tuple(args), results=results)


def folded():
    """Sizes of the batch stand in the graph, alone and in a product."""
    return task(
        [
            node("flat", "aten.view.default", [of("x"), [ROWS * 3, 4]], (ROWS * 3, 4)),
            node("turned", "aten.permute.default", [of("weight"), [1, 0]], (4, 5)),
            node("product", "aten.mm.default", [of("flat"), of("turned")], (ROWS * 3, 5)),
            node("back", "aten.view.default", [of("product"), [ROWS, 3, 5]], (ROWS, 3, 5)),
        ],
        {"x": (ROWS, 3, 4)},
        {"weight": (5, 4)},
    )


def instance_norm():
    """The batch merges with channels behind a one."""
    return task(
        [
            node("view", "aten.view.default", [of("x"), [1, ROWS * 3, 4, 5]], (1, ROWS * 3, 4, 5)),
            several(
                "norm",
                "aten._native_batch_norm_legit.no_stats",
                [of("view"), None, None, True, 0.1, 1e-5],
                (1, ROWS * 3, 4, 5),
                (ROWS * 3,),
                (ROWS * 3,),
            ),
            node("got", "getitem", [of("norm"), 0], (1, ROWS * 3, 4, 5)),
            node("back", "aten.view.default", [of("got"), [ROWS, 3, 4, 5]], (ROWS, 3, 4, 5)),
        ],
        {"x": (ROWS, 3, 4, 5)},
    )


def batch_norm():
    """Rows meet; channels do not."""
    return task(
        [
            several(
                "norm",
                "aten._native_batch_norm_legit.no_stats",
                [of("x"), of("weight"), of("bias"), True, 0.1, 1e-5],
                (4, ROWS, 6),
                (ROWS,),
                (ROWS,),
            ),
            node("got", "getitem", [of("norm"), 0], (4, ROWS, 6)),
        ],
        {"x": (4, ROWS, 6)},
        {"weight": (ROWS,), "bias": (ROWS,)},
    )


def group_norm():
    shapes = (ROWS, 4, 6), (ROWS, 2), (ROWS, 2)
    norm = several("norm", "aten.native_group_norm.default", [of("x"), of("w"), of("b"), ROWS, 4, 6, 2, 1e-5], *shapes)
    return task([norm, node("y", "getitem", [of("norm"), 0], shapes[0])], {"x": shapes[0]}, {"w": (4,), "b": (4,)})


def loss():
    """A mean over everything, of two inputs of one shape."""
    return task(
        [
            node("sub", "aten.sub.Tensor", [of("x"), of("y")], (ROWS, 40)),
            node("square", "aten.mul.Tensor", [of("sub"), of("sub")], (ROWS, 40)),
            node("mean", "aten.mean.default", [of("square")], ()),
        ],
        {"x": (ROWS, 40), "y": (ROWS, 40)},
    )


def whole_norm():
    """A norm of everything divides every element: two passes."""
    return task(
        [
            node("size", "aten.linalg_vector_norm.default", [of("x")], ()),
            node("out", "aten.div.Tensor", [of("x"), of("size")], (ROWS, 40)),
        ],
        {"x": (ROWS, 40)},
    )


def two_reductions():
    """The second one needs the first."""
    return task(
        [
            node("mean", "aten.mean.dim", [of("x"), [0], True], (1, 40)),
            node("apart", "aten.sub.Tensor", [of("x"), of("mean")], (ROWS, 40)),
            node("square", "aten.mul.Tensor", [of("apart"), of("apart")], (ROWS, 40)),
            node("total", "aten.sum.default", [of("square")], ()),
            node("most", "aten.amax.default", [of("apart"), [0, 1]], ()),
            node("both", "aten.mul.Tensor", [of("total"), of("most")], ()),
        ],
        {"x": (ROWS, 40)},
    )


def convolution():
    args = [of("x"), of("w"), of("b"), [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    return task(
        [
            node("conv", "aten.convolution.default", args, (ROWS, 4, 5, 5)),
            several("pool", "aten.max_pool2d_with_indices.default", [of("conv"), [2, 2]], (ROWS, 4, 2, 2), (ROWS, 4, 2, 2)),
            node("got", "getitem", [of("pool"), 0], (ROWS, 4, 2, 2)),
            node("low", "aten.mean.dim", [of("got"), [2, 3]], (ROWS, 4)),
        ],
        {"x": (ROWS, 3, 7, 7)},
        {"w": (4, 3, 3, 3), "b": (4,)},
    )


def masked():
    """A value of the graph that is the same in every piece is read in parts."""
    return task(
        [
            node("twice", "aten.mul.Tensor", [of("y"), 2], (ROWS, 1)),
            node("out", "aten.add.Tensor", [of("x"), of("twice")], (ROWS, 40)),
        ],
        {"x": (ROWS, 40)},
        {"y": (ROWS, 1)},
    )


def extremes():
    """Of the middle dimension, with their places."""
    return task(
        [
            several("max", "aten.max.dim", [of("x"), 1], (ROWS, 6), (ROWS, 6)),
            node("got", "getitem", [of("max"), 0], (ROWS, 6)),
        ],
        {"x": (ROWS, 5, 6)},
    )


APART = (softmax, layer_norm, linear_relu, folded, instance_norm, batch_norm, group_norm, convolution, masked, extremes, argmax)
COMBINED = (loss, whole_norm, two_reductions)


def made_of(family):
    return family(rows=ROWS) if family in (softmax, layer_norm, linear_relu, argmax) else family()


def by_pieces(made, values, count=3):
    return PieceJudge(made, values, 1, axes_of(made)[0], count, nan_is_free=False)


@pytest.mark.parametrize("family", [*APART, *COMBINED])
def test_pieces_say_what_the_whole_says(family):
    made = made_of(family)
    values = draw(made, NORMAL, 1, CPU)
    whole, parts = Judge(made, values, 1), by_pieces(made, values)
    right = {"out": whole.eager["out"].clone()}
    assert parts.accepts(right)
    assert torch.allclose(parts.eager["out"].double(), right["out"].double(), rtol=1e-5, atol=1e-6)
    flat = right["out"].reshape(-1)
    for place in range(len(flat)):  # a fault in any element is found, and named
        before = flat[place].clone()
        flat[place] = before + 1
        verdict = parts.judge(Run(right))
        flat[place] = before
        assert (verdict.wrong, verdict.elements) == (1, len(flat))
        if right["out"].dim():
            at = ", ".join(str(int(each)) for each in torch.unravel_index(torch.tensor(place), right["out"].shape))
            assert verdict.first.startswith(f"out[{at}] ")
        if place == 20:
            break


@pytest.mark.parametrize("family", [*APART, *COMBINED])
def test_bounds_of_pieces_are_those_of_the_whole(family):
    """Noise is drawn anew for each; what it explains has the same size, above all that of sums over all pieces."""
    made = made_of(family)
    values = draw(made, NORMAL, 1, CPU)
    if not Judge(made, values, 1).expected["out"].explained.any():
        pytest.skip("nothing rounds")
    ratios = []
    for seed in range(6):
        whole = Judge(made, values, seed).expected["out"].explained.mean()
        parts = PieceJudge(made, values, seed, axes_of(made)[0], 3, nan_is_free=False)
        shares = [parts.judge_of(part).expected["out"].explained.mean() for part in parts.parts]
        ratios.append(float(torch.stack(shares).mean() / whole))
    assert 0.4 < sum(ratios) / len(ratios) < 2.5


def test_rows_that_meet_have_no_axis():
    made = task([node("softmax", "aten._softmax.default", [of("x"), 0, False], (ROWS, 6))], {"x": (ROWS, 6)})
    assert [axis.place("x").dim for axis in axes_of(made)] == [1]
    both = task([node("sorted", "aten.cumsum.default", [of("y"), 1], (ROWS, 6))], {"x": (ROWS, 6)}, {"y": (ROWS, 6)})
    assert [place.dim for axis in axes_of(both) if (place := axis.place("sorted")) is not None] == [0]


def test_a_roll_of_all_elements_has_no_axis():
    rolled = {"none": [of("x"), [1]], "rows": [of("x"), [1], [0]]}
    found = {name: task([node("out", "aten.roll.default", args, (ROWS, 6))], {"x": (ROWS, 6)}) for name, args in rolled.items()}
    assert axes_of(found["none"]) == []
    assert [axis.place("x").dim for axis in axes_of(found["rows"])] == [1]


def test_only_a_buffer_without_dimensions_is_an_input():
    made = task([node("out", "aten.mul.Tensor", [of("w"), of("x")], (ROWS, 40))], {"x": ()}, {"w": (ROWS, 40), "other": (2,)})
    assert [axis.place("w").dim for axis in axes_of(made)] == [0, 1]


def test_a_norm_of_nan_and_infinity_is_nan():
    made = task([node("size", "aten.linalg_vector_norm.default", [of("x")], ())], {"x": (ROWS, 40)})
    values = draw(made, NORMAL, 1, CPU)
    values["x"][0, 0], values["x"][-1, 0] = float("nan"), float("inf")
    parts = by_pieces(made, values)
    assert parts.judge_of(parts.parts[0]).expected["out"].reference.isnan()


@pytest.mark.parametrize("family", [softmax, loss, whole_norm])
def test_whether_a_case_is_finite_takes_the_reference_alone(family, monkeypatch):
    """A case is drawn more often than it is judged, and what rounding explains takes most of the time of a piece."""
    made, asked = made_of(family), []
    values = draw(made, NORMAL, 1, CPU)
    run = Evaluations.run
    monkeypatch.setattr(Evaluations, "run", lambda *args: asked.append(args[1]) or run(*args))
    assert by_pieces(made, values).finite == 1
    assert set(asked) == {REFERENCE}
    values["x"].view(-1)[:2] = float("nan")
    parts = by_pieces(made, values)
    assert parts.finite == parts.judge_of(parts.parts[0]).finite < 1


def test_a_large_task_is_judged_in_pieces_that_fit(monkeypatch):
    made = softmax(rows=ROWS)
    values = draw(made, NORMAL, 1, CPU)
    assert isinstance(judge_of(made, values, 1), Judge)
    needed = pieces.judge_bytes(made, pieces.graph_of(made))
    monkeypatch.setattr(pieces, "free_bytes", lambda _device: int(needed / 4 / pieces.ROOM))
    judge = judge_of(made, values, 1)
    assert [part.count for part in judge.parts] == [2, 2, 2, 2]
