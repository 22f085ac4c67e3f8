"""Transforms, modes, tracers and subclasses of PyTorch over `cudal2.matmul`, its operator and the replaced `aten::mm`.

The operands hold few whole numbers, so every product is exact, and what is compared is equal to the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, functional, graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2_agent.contract.records.task import GemmTask
from tests.cudal2.torch_ops.matrices import backward_tasks
from tests.doubles.host_products import HostProducts

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Case = Callable[[Product, torch.Tensor, torch.Tensor], Any]
Serving = Callable[..., HostProducts]

SMALL = GemmTask(m=4, n=8, k=16)
CASES: dict[str, Case] = {}


def case(work: Case) -> Case:
    CASES[work.__name__] = work
    return work


def numbers(*size: int, seed: int = 1) -> torch.Tensor:
    """Zeros, and a fifth of them ones of either sign."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, size, generator=generator).mul(torch.rand(size, generator=generator) < 0.3).half()


def loss(product: Product, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return product(a, b).square().sum()


@case
def jvp(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.jvp(product, (a, b), (torch.ones_like(a), numbers(*b.shape, seed=3)))


@case
def jvp_of_one_operand(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.jvp(lambda x: product(a, x), (b,), (torch.ones_like(b),))


@case
def linearized(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    out, linear = torch.func.linearize(lambda x: product(x, b), a)
    return out, linear(torch.ones_like(a))


@case
def jacfwd(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.jacfwd(product, (0, 1))(a, b)


@case
def jacrev(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.jacrev(product, (0, 1))(a, b)


@case
def hessian(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.hessian(lambda x: loss(product, x, b))(a)


@case
def grad(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.grad_and_value(lambda x, y: loss(product, x, y), (0, 1))(a, b)


@case
def vjp_in_a_batch(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    out, back = torch.func.vjp(product, a, b)
    return torch.vmap(back)(torch.stack([out, torch.ones_like(out)]))


@case
def jvp_of_grad(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.jvp(torch.func.grad(lambda x: loss(product, x, b)), (a,), (torch.ones_like(a),))


@case
def grad_of_jvp(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.grad(lambda x: torch.func.jvp(lambda y: loss(product, x, y), (b,), (torch.ones_like(b),))[1])(a)


@case
def vmap(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.vmap(product, (0, None))(torch.stack([a, -a]), b), torch.vmap(product)(a[:, None], torch.stack([b] * 4))


@case
def per_sample_gradients(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.vmap(torch.func.grad(lambda w, x: loss(product, x, w)), (None, 0))(b, torch.stack([a, -a]))


@case
def vmap_of_jvp(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.vmap(lambda t: torch.func.jvp(lambda x: product(x, b), (a,), (t,))[1])(torch.stack([a, -a]))


@case
def an_ensemble(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    class Layer(torch.nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return product(x, self.weight)

    layers = [Layer(b), Layer(-b)]
    weights, buffers = torch.func.stack_module_state(layers)
    run = torch.vmap(lambda w, c, x: torch.func.functional_call(layers[0], (w, c), (x,)), (0, 0, None))
    return run({name: weight.detach() for name, weight in weights.items()}, buffers, a)


@case
def functionalize(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.func.functionalize(lambda x: product(x.clone().add_(1), b))(a)


@case
def dual_numbers(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(product(forward_ad.make_dual(a, torch.ones_like(a)), b)))


@case
def dual_numbers_without_gradients(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad(), forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(product(a, forward_ad.make_dual(b, torch.ones_like(b)))))


@case
def dual_numbers_through_a_backward_pass(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    a = a.clone().requires_grad_()
    out = product(a, b)  # its graph is made outside
    with forward_ad.dual_level():
        (found,) = torch.autograd.grad(out, a, forward_ad.make_dual(torch.ones_like(out), out.detach()))
        return tuple(forward_ad.unpack_dual(found))


@case
def double_backward(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    first = torch.autograd.grad(loss(product, a, b), (a, b), create_graph=True)
    return first, torch.autograd.grad(sum(one.square().sum() for one in first), (a, b))


@case
def a_batch_of_backward_passes(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    a = a.clone().requires_grad_()
    out = product(a, b)
    return torch.autograd.grad(out, a, torch.stack([torch.ones_like(out), out.detach()]), is_grads_batched=True)


@case
def jacobian_of_autograd(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    ways = ({"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}, {})
    return [functional.jacobian(product, (a, b), **way) for way in ways]


@case
def hvp_of_autograd(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return functional.hvp(lambda x: loss(product, x, b), a, torch.ones_like(a))


@case
def traced_by_make_fx(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    def work(x: torch.Tensor, y: torch.Tensor) -> Any:
        return product(x, y), torch.func.grad(lambda z: loss(product, z, y))(x)

    return make_fx(work)(a, b)(-a, b), make_fx(work, tracing_mode="fake")(a, b)(-a, b)


@case
def traced_by_jit(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.jit.trace(lambda x, y: product(x, y), (a, b))(-a, b)


@case
def compiled(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    torch._dynamo.reset()
    both = [torch.compile(lambda x, y: product(x, y).relu(), backend=name, fullgraph=True) for name in ("eager", "aot_eager")]
    c, d = a.clone().requires_grad_(), b.clone().requires_grad_()
    return [work(a, b) for work in both], [torch.autograd.grad(work(c, d).sum(), (c, d)) for work in both]


@case
def compiled_transforms(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    torch._dynamo.reset()

    def work(x: torch.Tensor, y: torch.Tensor) -> Any:
        tangent = torch.func.jvp(lambda z: product(z, y), (x,), (torch.ones_like(x),))[1]
        return tangent, torch.func.grad(lambda z: loss(product, z, y))(x), torch.vmap(product, (0, None))(x[None], y)

    return torch.compile(work, backend="aot_eager")(a, b)


@case
def exported(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return product(x, y)

    return [torch.export.export(Model(), (a, b), strict=strict).module()(-a, b) for strict in (False, True)]


@case
def compiled_by_aot_function(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    from functorch.compile import aot_function, nop

    c = a.clone().requires_grad_()
    out = aot_function(lambda x, y: product(x, y), nop)(c, b)
    return out.detach(), torch.autograd.grad(out.sum(), c)


@case
def under_autocast(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return product(a.float(), b.float()).float(), torch.func.grad(lambda x: product(x, b.float()).float().sum())(a.float())


@case
def in_inference_mode(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.inference_mode():
        return product(a, b).clone(), product(a.clone(), torch.nn.Parameter(b)).clone()


@case
def saved_tensors_packed(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    with graph.saved_tensors_hooks(lambda x: x.float(), lambda x: x.half()), graph.save_on_cpu():
        out = product(a, b)
    return torch.autograd.grad(out.sum(), (a, b))


@case
def checkpointed(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    a = a.clone().requires_grad_()
    outs = [checkpoint(product, a, b, use_reentrant=reentrant) for reentrant in (False, True)]
    return [torch.autograd.grad(outs[0].sum(), a), outs[1].sum().backward(), a.grad]


@case
def on_no_device(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    out = product(a.to("meta"), b.to("meta"))
    return torch.tensor(out.shape), out.is_meta


@case
def of_zeros_without_memory(product: Product, a: torch.Tensor, b: torch.Tensor) -> Any:
    return product(torch._efficientzerotensor(a.shape, dtype=a.dtype), b).clone(), product(torch._neg_view(a), b)


BATCHED = {"vmap", "per_sample_gradients", "an_ensemble", "under_autocast", "on_no_device"}  # no call of aten::mm in f16
TRANSFORMED = BATCHED | {
    *("jvp", "jvp_of_one_operand", "jacfwd", "jacrev", "hessian", "grad", "vjp_in_a_batch", "jvp_of_grad", "grad_of_jvp"),
    *("vmap_of_jvp", "dual_numbers", "dual_numbers_without_gradients", "compiled_transforms"),
}
NOT_SERVED = {
    "cudal2.matmul": TRANSFORMED | {"functionalize"},
    "operator": TRANSFORMED,
    "replaced": BATCHED,
    "replaced in C++": BATCHED,
}
WAYS: dict[str, Product] = {
    "cudal2.matmul": cudal2.matmul,
    "operator": torch.ops.cudal2.matmul.default,
    "replaced": torch.matmul,
    "replaced in C++": torch.matmul,
}


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    """A product by `cudal2.matmul`, by the operator, or by PyTorch while `aten::mm` is replaced in either language."""
    if request.param == "replaced in C++":
        request.getfixturevalue("in_cpp")
    return str(request.param)


def plain(tree: Any) -> list[Any]:
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(tree)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("way", list(WAYS), indirect=True)
def test_everything_is_as_with_torch_matmul(serving: Serving, way: str, name: str) -> None:
    a, b = numbers(4, 16), numbers(16, 8, seed=2)
    products = serving(SMALL, *backward_tasks(SMALL))
    expected = plain(CASES[name](torch.matmul, a, b))
    with cudal2.enable() if way.startswith("replaced") else contextlib.nullcontext():
        found = plain(CASES[name](WAYS[way], a, b))
    assert (products.platform.launches == 0) == (name in NOT_SERVED[way])
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert (one.shape, one.dtype, torch.equal(one, other)) == (other.shape, other.dtype, True)


class OnlyMatmul(torch.Tensor):
    """A subclass that has a rule for `torch.matmul` and for nothing else."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return "by the subclass" if function is torch.matmul else NotImplemented


class Halves(torch.Tensor):
    """A subclass below autograd that stands for a pair of tensors and has a rule for `aten.mm` and for nothing else."""

    @staticmethod
    def __new__(cls, top: torch.Tensor, bottom: torch.Tensor) -> Halves:
        rows = top.shape[0] + bottom.shape[0]
        return torch.Tensor._make_wrapper_subclass(cls, (rows, top.shape[1]), dtype=top.dtype)  # type: ignore[attr-defined]

    def __init__(self, top: torch.Tensor, bottom: torch.Tensor) -> None:
        self.halves = top, bottom

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        assert function is torch.ops.aten.mm.default
        a, b = arguments
        return torch.cat([torch.mm(half, b) for half in a.halves])


def test_a_subclass_is_asked_for_torch_matmul(serving: Serving) -> None:
    products = serving(SMALL)
    a, b = numbers(4, 16), numbers(16, 8)
    assert cudal2.matmul(a.as_subclass(OnlyMatmul), b) == "by the subclass"
    assert cudal2.matmul(a, b.as_subclass(OnlyMatmul)) == "by the subclass"
    assert products.service.counts.fallbacks() == {FallbackCause.TRANSFORM: 2}
    assert torch.equal(cudal2.matmul(Halves(a[:2], a[2:]), b), torch.mm(a, b))


def test_a_distributed_tensor_is_multiplied_as_torch_does(serving: Serving) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    serving(SMALL)
    a, b = numbers(4, 16), numbers(16, 8)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        left, right = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()])
        left.requires_grad_()
        for product in (cudal2.matmul, torch.compile(cudal2.matmul, backend="aot_eager")):
            out = product(left, right)
            assert (out.placements, torch.equal(out.full_tensor(), torch.mm(a, b))) == ((Shard(0),), True)
            (found,) = torch.autograd.grad(out.sum(), left)
            assert torch.equal(found.full_tensor(), torch.ones(4, 8).half() @ b.t())
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()


class SeenFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.seen.append(function)
        return function(*arguments, **(options or {}))


class SeenOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.seen.append(function)
        return function(*arguments, **(options or {}))


def test_modes_of_a_program_see_the_product_as_pytorch_s(serving: Serving) -> None:
    serving(SMALL)
    a, b = numbers(4, 16), numbers(16, 8)
    with SeenFunctions() as functions:
        cudal2.matmul(a, b)
    with SeenOperators() as operators:
        cudal2.matmul(a, b.clone().requires_grad_())
    with FlopCounterMode(display=False) as flops:
        cudal2.matmul(a, b)
    assert torch.matmul in functions.seen
    assert torch.ops.aten.mm.default in operators.seen
    assert flops.get_total_flops() == 2 * 4 * 16 * 8


def test_a_default_device_is_no_obstacle(serving: Serving) -> None:
    products = serving(SMALL)
    a, b = numbers(4, 16), numbers(16, 8)
    with torch.device("cpu"):
        assert torch.equal(cudal2.matmul(a, b), torch.mm(a, b))
    assert products.platform.launches == 1


def test_symbolic_tracing_records_torch_matmul(serving: Serving) -> None:
    serving(SMALL)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return cudal2.matmul(x, y).relu()

    traced = torch.fx.symbolic_trace(Model())
    a, b = numbers(2, 4, 16), numbers(16, 8)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [torch.matmul]
    assert torch.equal(traced(a, b), torch.matmul(a, b).relu())


@pytest.mark.parametrize("trace", [make_fx, torch.compile, torch.export.export])
def test_compilers_keep_the_operator(serving: Serving, trace: Any) -> None:
    """What they record is served when it runs, and differentiated by the operator."""
    serving(SMALL)
    a, b = numbers(4, 16), numbers(16, 8)
    graphs: list[torch.fx.GraphModule] = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return cudal2.matmul(x, y)

    if trace is torch.compile:
        torch.compile(Model(), backend=lambda graph, inputs: graphs.append(graph) or graph)(a, b)  # noqa: ARG005
    elif trace is make_fx:
        graphs.append(make_fx(cudal2.matmul, tracing_mode="symbolic")(a, b))
    else:
        graphs.append(torch.export.export(Model(), (a, b)).graph_module)
    assert torch.ops.cudal2.matmul.default in {node.target for node in graphs[0].graph.nodes}
