"""The account of a judge's memory, beside what torch allocates while one is made."""

import weakref

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from cudal2_agent.sandbox.modules import bounds  # noqa: E402
from cudal2_agent.sandbox.modules.bounds import Judge, graph_of  # noqa: E402
from cudal2_agent.sandbox.modules.cases import NORMAL, draw  # noqa: E402
from cudal2_agent.sandbox.modules.executor import Run  # noqa: E402
from cudal2_agent.sandbox.modules.graph_axes import axes_of  # noqa: E402
from cudal2_agent.sandbox.modules.judge_memory import judge_bytes  # noqa: E402
from cudal2_agent.sandbox.modules.pieces import WHOLE_BYTES, PieceJudge, chosen_axis  # noqa: E402
from tests.sandbox.modules.small_tasks import layer_norm, linear_relu, node, of, softmax, task  # noqa: E402

CPU = torch.device("cpu")
ROWS, COLUMNS = 32, 256
SHARE = 1.15  # that a measured peak may be above the account


class Allocations(TorchDispatchMode):
    """The most bytes of new tensors that were alive at once."""

    def __init__(self, known):
        super().__init__()
        self._alive, self._now, self.peak = {each.untyped_storage()._cdata: 0 for each in known}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return result

    def _count(self, storage):
        if storage._cdata not in self._alive:
            self._alive[storage._cdata] = storage.nbytes()
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, key):
        self._now -= self._alive.pop(key, 0)


def chain():
    """Values that are freed one after another, and one that is read late."""
    shape = (ROWS, COLUMNS)
    names = ["a", "b", "c", "d"]
    nodes = [node("first", "aten.mul.Tensor", [of("x"), 2], shape)]
    nodes += [
        node(name, "aten.sigmoid.default", [of(before)], shape)
        for name, before in zip(names, ["first", *names[:-1]], strict=True)
    ]
    return task([*nodes, node("end", "aten.add.Tensor", [of("d"), of("first")], shape)], {"x": shape})


def loss():
    shape = (ROWS, COLUMNS)
    nodes = [
        node("apart", "aten.sub.Tensor", [of("x"), of("y")], shape),
        node("square", "aten.mul.Tensor", [of("apart"), of("apart")], shape),
        node("mean", "aten.mean.default", [of("square")], ()),
    ]
    return task(nodes, {"x": shape, "y": shape})


def attention(rows, width):
    """Scores of rows x rows."""
    shape = (8, rows, width)
    args = [of(name) for name in "qkv"]
    return task([node("out", "aten.scaled_dot_product_attention.default", args, shape)], dict.fromkeys("qkv", shape))


MADE = {
    "long attention": lambda: attention(128, 16),
    "wide attention": lambda: attention(32, 128),
    "chain": chain,
    "loss": loss,
    "softmax": lambda: softmax(ROWS, COLUMNS),
    "norm": lambda: layer_norm(ROWS, COLUMNS),
    "product": lambda: linear_relu(ROWS, 256, COLUMNS),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("count", [0, 4])
def test_no_more_is_allocated_than_the_account_says(made, count, monkeypatch):
    """`count`: indices of a piece, 0 for the whole."""
    made = made()
    values = draw(made, NORMAL, 1, CPU)
    monkeypatch.setattr(bounds, "BLOCK_ELEMENTS", 256)  # what a comparison of one block takes is the same for every task
    axis = axes_of(made)[0] if count else None
    outputs = {"out": torch.full(made.buffers[-1].shape, 1e9)}
    with Allocations([*values.values(), *outputs.values()]) as allocations:
        if axis is None:
            Judge(made, values, 1)
        else:
            assert PieceJudge(made, values, 1, axis, count, nan_is_free=False).judge(Run(outputs)).wrong
    account = judge_bytes(made, graph_of(made), axis, count)
    assert allocations.peak < SHARE * account
    assert account < 3 * allocations.peak


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_second_look_takes_no_more(made, monkeypatch):
    made = made()
    values = draw(made, NORMAL, 1, CPU)
    monkeypatch.setattr(bounds, "BLOCK_ELEMENTS", 256)
    with Allocations(values.values()) as allocations:
        judge = Judge(made, values, 1)
        out = judge.eager["out"]
        beyond = judge.expected["out"].reference.view(-1)[0] + 1.5 * judge.expected["out"].bound.view(-1)[0]
        out.view(-1)[0] = beyond
        judge.judge(Run({"out": out}))
    assert judge._final, "it was looked at again"
    assert allocations.peak < SHARE * judge_bytes(made, graph_of(made))


LARGE = (32768, 32768)


def gigabytes(op, *args, shape=LARGE):
    return task([node("out", op, [of("x"), *args], shape)], {"x": LARGE})


def whole_norm():
    size = node("size", "aten.linalg_vector_norm.default", [of("x")], ())
    return task([size, node("out", "aten.div.Tensor", [of("x"), of("size")], LARGE)], {"x": LARGE})


@pytest.mark.parametrize(
    "made",
    [
        gigabytes("aten.relu.default"),
        gigabytes("aten.mean.default", shape=()),
        whole_norm(),
        gigabytes("aten.cumsum.default", 1),
        gigabytes("aten.amax.default", [0], shape=LARGE[1:]),
        gigabytes("aten._softmax.default", 0, False),
    ],
)
def test_references_of_gigabytes_take_pieces_of_limited_memory(made):
    graph = graph_of(made)
    assert judge_bytes(made, graph) > 2 * WHOLE_BYTES
    axis, count = chosen_axis(made, 20 * 1024**3)
    assert judge_bytes(made, graph, axis, count) <= 1.01 * WHOLE_BYTES
    assert axis.size / count < 100


def test_a_graph_whose_values_do_not_shrink_is_judged_whole_where_it_fits():
    """Rows of a product share its weight, which takes most of the memory."""
    made = linear_relu(16, 32768, 32768)
    graph = graph_of(made)
    whole = judge_bytes(made, graph)
    axis, count = chosen_axis(made, 2 * whole)
    assert axis.place("weight").dim == 1, "columns of the weight"
    assert judge_bytes(made, graph, axis, count) <= 1.01 * WHOLE_BYTES
