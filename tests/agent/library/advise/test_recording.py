"""The matrix products of a real model, forward and backward."""

from pathlib import Path

import pytest

from cudal2_agent.agent.library.advise.products import shape_file
from cudal2_agent.agent.library.advise.recording import load_model_file, record, record_model
from cudal2_agent.contract.errors import UsageError

MLP = """
import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32, bias=False))
def inputs():
    return (torch.randn(4, 8, 64),)
"""
READS_VALUES = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 48)
    def forward(self, x, *, times):
        return {"y": self.layer(x)} if float(x.sum()) > 0 else self.layer(x)
def model():
    return Model()
def inputs():
    return {"x": torch.ones(8, 16), "times": 2}
"""
BATCHED = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b) + torch.matmul(a, b[0])
def model():
    return Model()
def inputs():
    return torch.randn(3, 8, 16), torch.randn(3, 16, 24)
"""

HALF_WITH_ATTENTION = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192, bias=False)
        self.out = torch.nn.Linear(64, 64, bias=False)
        assert self.qkv.weight.is_meta, "it holds values"
    def forward(self, x):
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, value=v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))
def model():
    return Model().half()
def inputs():
    return (torch.randn(2, 8, 64).half(),)
"""


def recorded(tmp_path: Path, text: str) -> set[tuple[str, int, int, int, str, int]]:
    file = tmp_path / "model.py"
    file.write_text(text)
    return {(one.part, one.m, one.n, one.k, one.layout, one.count) for one in shape_file(record_model(file).products).products}


def test_layers_forward_and_both_gradients_with_their_layouts(tmp_path: Path) -> None:
    """A weight is stored as outputs x inputs. The input needs no gradient, so that only the second layer has a dX."""
    assert recorded(tmp_path, MLP) == {
        ("forward", 32, 256, 64, "tn", 1),
        ("forward", 32, 32, 256, "tn", 1),
        ("dX", 32, 256, 32, "nn", 1),
        ("dW", 32, 256, 32, "nt", 1),
        ("dW", 256, 64, 32, "nt", 1),
    }


ACTIVATED = """
import torch
from torch.nn import functional
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16 * (n + 1), bias=n % 2 == 0) for n in range(8))
    def forward(self, x, w):
        if VALUES: float(x.sum())
        sums = [layer(x) for layer in self.layers]
        found = [functional.gelu(sums[0]), functional.gelu(sums[1].view(8, 32), approximate="tanh")]
        found += [functional.silu(sums[2]), sums[3].relu_(), functional.silu(sums[4]) * sums[4]]
        found += [functional.gelu(sums[5] + 1), sums[6].sigmoid(), torch.relu(x @ w)]
        return [one.sum() for one in found], sums[7], functional.relu(sums[7])
def model():
    return Model()
def inputs():
    return torch.randn(2, 4, 16), torch.randn(16, 160)
"""


@pytest.mark.parametrize("values", [False, True])
def test_an_activation_that_alone_takes_a_result_is_named(tmp_path: Path, values: bool) -> None:
    """Through views and in place. Not where the sums go elsewhere too, are answered, or the weight is not a layer's."""
    file = tmp_path / "model.py"
    file.write_text(ACTIVATED.replace("VALUES", str(values)))
    forward = {one.product.n: one.product for one in record_model(file).products if one.product.part == "forward"}
    assert {n: one.activation for n, one in sorted(forward.items())} == {
        16: "gelu",
        32: "gelu_tanh",
        48: "silu",
        64: "relu",
        **dict.fromkeys((80, 96, 112, 128, 160)),
    }
    assert forward[16].operands == "tn f32 bias gelu"
    assert all(one.product.activation is None for one in record_model(file).products if one.product.part != "forward")


GATED = """
import torch
from torch.nn import functional
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        def pair(n, bias=False):
            return torch.nn.ModuleList(torch.nn.Linear(16, n, bias=bias) for _ in range(2))
        self.pairs = torch.nn.ModuleList(pair(16 * (n + 1), bias=n == 6) for n in range(9))
        self.joined = torch.nn.ModuleList(torch.nn.Linear(16, 320 + 32 * n, bias=False) for n in range(6))
    def forward(self, x):
        if VALUES: float(x.sum())
        silu, gelu = functional.silu, functional.gelu
        (a, b), (c, d), (e, f), (g, h), (i, j), (k, l), (m, n), (o, p), (q, r) = (
            [one(x) for one in pair] for pair in self.pairs
        )
        found = [silu(a) * b, d * gelu(c, approximate="tanh"), functional.relu_(e) * f]
        found += [silu(g) * h + h, silu(i) + j, silu(m) * n]
        hidden = silu(k)
        found += [hidden * l, hidden + 1, silu(o) * self.pairs[7][1](x + 1), q, silu(q) * r]
        s, t, u, v, w, y = (one(x) for one in self.joined)
        s, t, u = s.chunk(2, -1), t.split(176, -1), (u[..., :192], u[..., 192:])
        found += [silu(s[0]) * s[1], t[0] * gelu(t[1]), functional.relu(u[0]) * u[1]]
        found += [silu(v[..., :8]) * v[..., 8:16], silu(w[1:]) * w[:1], silu(y[..., :240]), y]
        return [one.sum() for one in found]
def model():
    return Model()
def inputs():
    return torch.randn(2, 4, 16)
"""


@pytest.mark.parametrize("values", [False, True])
def test_the_two_products_of_a_gated_layer_are_one(tmp_path: Path, values: bool) -> None:
    """In either order and in place. Not with a bias, of two inputs, or where a result has another use or is cut otherwise."""
    file = tmp_path / "model.py"
    file.write_text(GATED.replace("VALUES", str(values)))
    recording = record_model(file)
    forward = [one for one in recording.products if one.product.part == "forward"]
    found = {(one.product.n, one.product.activation, one.product.gated): one.calls for one in forward}
    gated = {(16, "silu", "apart"), (32, "gelu_tanh", "apart"), (48, "relu", "apart")}
    gated |= {(160, "silu", "joined"), (176, "gelu", "joined"), (192, "relu", "joined")}
    assert {one for one in found if one[2]} == gated
    assert {found[one] for one in gated} == {1}
    left = {64: 1, 80: 1, 96: 1, 112: 1, 128: 2, 144: 2, 416: 1, 448: 1, 480: 1}
    assert {n: found[n, None, None] for n in left} == left
    assert {one[0] for one in found if one[1] is not None} == {one[0] for one in gated} | {64, 80, 96, 112, 128}
    assert all(one.product.gated is None for one in recording.products if one.product.part != "forward")
    alone = {one.product.n: one.calls for one in recording.alone().products if one.product.part == "forward"}
    assert {n: alone[n] for n in (16, 32, 48, 320, 352, 384)} == {16: 2, 32: 2, 48: 2, 320: 1, 352: 1, 384: 1}
    assert all(one.product.gated is None for one in recording.alone().products)


def test_a_model_that_reads_values_runs_with_real_tensors(tmp_path: Path) -> None:
    assert recorded(tmp_path, READS_VALUES) == {("forward", 8, 48, 16, "tn", 1), ("dW", 48, 16, 8, "nt", 1)}


def test_a_converted_model_takes_no_memory_and_attention_is_no_product(tmp_path: Path) -> None:
    """The file refuses tensors with values. Attention passes gradients on, so that the layer before it has its own."""
    assert recorded(tmp_path, HALF_WITH_ATTENTION) == {
        ("forward", 16, 192, 64, "tn", 1),
        ("forward", 16, 64, 64, "tn", 1),
        ("dX", 16, 64, 64, "nn", 1),
        ("dW", 64, 64, 16, "nt", 1),
        ("dW", 192, 64, 16, "nt", 1),
    }


def test_batches_count_and_a_shared_operand_folds_them(tmp_path: Path) -> None:
    assert recorded(tmp_path, BATCHED) == {("forward", 8, 24, 16, "nn", 3), ("forward", 24, 24, 16, "nn", 1)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def model(): ...\n", r"does not define inputs\(\)"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
        ("import torch\nmodel = torch.nn.Identity\ndef inputs(): return (torch.ones(2),)\n", "no matrix product"),
        ("import torch\ndef model(): return torch.nn.Linear(2, 2)\ndef inputs(): return torch.ones(3)\n", "RuntimeError"),
    ],
)
def test_a_file_that_does_not_work_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        recorded(tmp_path, text)
    assert str(tmp_path / "model.py") in str(caught.value)


MODELS = Path(__file__).parents[4] / "benchmarks" / "library" / "models"


@pytest.mark.parametrize("name", [file.stem for file in MODELS.glob("*.py") if file.stem != "transformer"])
def test_models_of_the_benchmark_import_their_neighbour(name: str) -> None:
    file = load_model_file(MODELS / f"{name}.py")
    found = record(name, file.model, lambda: file.inputs(64))
    forward = [one for one in found.products if one.product.part == "forward"]
    assert len({one.product.k for one in forward}) >= 2
    assert all(one.product.n >= 768 for one in forward)


def test_a_neighbour_takes_the_place_of_no_library(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "near.py").write_text("WIDTH = 24\n")
    (tmp_path / "model.py").write_text(
        "import torch, near\ndef model(): return torch.nn.Linear(near.WIDTH, 8)\ndef inputs(): return torch.ones(2, 24)\n"
    )
    assert load_model_file(tmp_path / "model.py").model().in_features == 24


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        record_model(tmp_path / "model.py")
