"""Gated feed-forward layers in compiled programs: their first half is one kernel, where the library has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2.library.kernel_library import key_of
from cudal2.torch.inductor.gated_linear import joined_weight
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.records.task import Activation, GemmTask, Layout
from tests.doubles.host_products import HostPlatform, HostProducts

Serving = Callable[..., HostProducts]
GELU, SILU = Activation.GELU, Activation.SILU
M, N, K = 16, 32, 64
PLAIN = GemmTask(m=M, n=N, k=K, layout=Layout.TN)
JOINED = PLAIN.model_copy(update={"n": 2 * N})
COMPILED = {"fx_graph_cache": False}


def task(activation: Activation = SILU, **changes: Any) -> GemmTask:
    return PLAIN.model_copy(update={"activation": activation, "gated": True, **changes})


def operands(rows: int = M) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x and two weights, which are the halves of one."""
    generator = torch.Generator().manual_seed(7)
    x, weight = (torch.randn(*size, generator=generator).div(4).half() for size in ((rows, K), (2 * N, K)))
    return x, weight[:N], weight[N:]


def exact(activation: Activation, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return (APPLIED[activation](x.float() @ gate.float().t()) * (x.float() @ up.float().t())).half()


def operator(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: Activation = SILU) -> torch.Tensor:
    return torch.ops.cudal2.gated_linear(x, gate, up, activation.value)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Where the two matrices of each gated product lie that the library is asked for."""
    found: list[tuple[int, ...]] = []
    product = ProductService.product

    def spied(self: ProductService, *given: Any) -> torch.Tensor | None:
        if len(given) == 6 and given[5] is not None:
            found.append((given[1].data_ptr(), given[5].data_ptr()))
        return product(self, *given)

    monkeypatch.setattr(ProductService, "product", spied)
    return found


def program_of(call: Callable[..., Any], *given: Any, dynamic: bool | None = None) -> tuple[torch.Tensor, str]:
    """What a compiled function answers, and Inductor's own program."""
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        answer, code = run_and_get_code(torch.compile(call, dynamic=dynamic, options=COMPILED), *given)
    return answer, "\n".join(code)


# ---- the operator --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("apart", [False, True])
def test_one_kernel_computes_all(serving: Serving, activation: Activation, apart: bool) -> None:
    products = serving(task(activation))
    x, gate, up = operands()
    up = up.clone() if apart else up
    with cudal2.enable():
        found = operator(x, gate, up, activation)
        folded = operator(x.view(2, 8, K), gate, up, activation)
        turned = operator(x, up, gate, activation)
    torch.testing.assert_close(found, exact(activation, x, gate, up))
    torch.testing.assert_close(turned, exact(activation, x, up, gate))
    assert torch.equal(folded, found.view(2, 8, N))
    (entry,) = products.library
    assert products.service.counts.served() == {entry.id: 3}


def test_an_entry_is_of_its_activation_and_gated(serving: Serving) -> None:
    """A plain product, a layer with silu, a gated layer of gelu and one of silu have a kernel each."""
    products = serving(PLAIN, PLAIN.model_copy(update={"activation": SILU}), task(GELU), task())
    x, gate, up = operands()
    with cudal2.enable():
        found = operator(x, gate, up), operator(x, gate, up, GELU), torch.ops.cudal2.linear_activation(x, gate, None, "silu")
    sums = functional.linear(x.float(), gate.float())
    wanted = exact(SILU, x, gate, up), exact(GELU, x, gate, up), functional.silu(sums).half()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert sorted(products.service.counts.served().values()) == [1, 1, 1]


def test_a_range_of_m_is_served_and_padded_m_is_not(serving: Serving) -> None:
    products = serving(task(), smallest=5)
    wanted = {rows: exact(SILU, *operands(rows)) for rows in (9, 5, 4, M)}
    with cudal2.enable():
        for rows, launches in ((9, 1), (5, 2), (4, 2), (M, 3)):
            torch.testing.assert_close(operator(*operands(rows)), wanted[rows], rtol=2e-3, atol=2e-3)
            assert products.platform.launches == launches
    assert products.service.counts.fallbacks() == {FallbackCause.NO_ENTRY: 2}, "gated, and the joined product"


@pytest.mark.parametrize("gate_first", [True, False])
def test_where_there_is_no_entry_a_joined_weight_is_one_product(serving: Serving, gate_first: bool) -> None:
    """Which the library may serve; weights apart are two. The result is what the program without the operator has."""
    products = serving(PLAIN, JOINED)
    x, gate, up = operands()
    if not gate_first:
        gate, up = up, gate
    with cudal2.enable():
        both = functional.linear(x, torch.cat((gate, up))).chunk(2, -1)
        before = products.platform.launches
        assert torch.equal(operator(x, gate, up), functional.silu(both[0]) * both[1])
        assert products.platform.launches == before + 1
        apart = operator(x, gate.clone(), up)
        assert products.platform.launches == before + 3
        assert torch.equal(apart, functional.silu(functional.linear(x, gate)) * functional.linear(x, up))


def test_only_neighbours_of_one_storage_are_joined() -> None:
    whole = torch.arange(96.0).view(12, 8)
    gate, up = whole[:4], whole[4:8]
    for first, second, gate_first in ((gate, up, True), (up, gate, False)):
        found = joined_weight(first, second)
        assert found is not None
        assert torch.equal(found[0], whole[:8])
        assert found[1] is gate_first
    others = [whole[8:], up.clone(), whole[4:7], up.t(), whole[:4], whole[4:8, :4], up.view(torch.int32)]
    assert [joined_weight(gate, one) for one in others] == [None] * len(others)
    assert joined_weight(whole[:, :4], whole[:, 4:]) is None, "columns"


def test_what_the_library_does_not_serve_is_exactly_pytorchs_own(serving: Serving) -> None:
    products = serving(task())
    x, gate, up = operands()
    strided = torch.randn(M, 2, K).half()[:, 1:]
    sparse_rows = torch.cat((gate, up)).view(N, 2, K)
    given = [
        (x[:3], gate, up.clone()),
        (strided, gate, up.clone()),
        (x[:0], gate, up.clone()),
        (x.float(), gate.float(), up.float().clone()),
        (x, sparse_rows[:, 0], sparse_rows[:, 1]),
        (x, gate, up.t().contiguous().t()),
        (x, gate[:16], up[:16]),
    ]
    with cudal2.enable():
        for one, first, second in given:
            wanted = functional.silu(functional.linear(one, first)) * functional.linear(one, second)
            assert torch.equal(operator(one, first, second), wanted)
        torch.use_deterministic_algorithms(True)
        try:
            torch.testing.assert_close(operator(x, gate, up), exact(SILU, x, gate, up), rtol=4e-3, atol=4e-3)
        finally:
            torch.use_deterministic_algorithms(False)
    with cudal2.enable(operators=("addmm",)):
        operator(x, gate, up)
    operator(x, gate, up)
    assert products.platform.launches == 0


def test_matrices_that_are_no_pair_are_an_error(serving: Serving) -> None:
    serving(task())
    x, gate, up = operands()
    with cudal2.enable():
        for given in (
            (x, gate[:1], up),
            (x, gate, up[:, :32]),
            (x, gate, up.float()),
            (x[:, :32], gate, up),
            (x, gate[0], up[0]),
        ):
            for one in (given, tuple(tensor.to("meta") for tensor in given)):
                with pytest.raises(RuntimeError):
                    operator(*one)
        with pytest.raises(ValueError, match="gated_linear knows relu, gelu, gelu_tanh, silu, not swish"):
            torch.ops.cudal2.gated_linear(x, gate, up, "swish")


def test_gradients_and_transforms_are_pytorchs(serving: Serving) -> None:
    products = serving(task())
    whole = torch.cat(operands()[1:]).double().requires_grad_()
    x = operands()[0].double().requires_grad_()

    def of(call: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        gate, up = whole.chunk(2)
        return torch.autograd.grad(call(x, gate, up).square().sum(), (x, whole))

    def by_torch(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)

    with cudal2.enable():
        for one, other in zip(of(operator), of(by_torch), strict=True):
            assert torch.equal(one, other)
        given = [one.float() for one in operands()]
        moved, wanted = (
            torch.func.jvp(lambda one, call=call: call(one, *given[1:]), (given[0],), (given[0],))[1]
            for call in (operator, by_torch)
        )
        assert torch.equal(moved, wanted)
    assert products.platform.launches == 0


@pytest.mark.parametrize("grads", [False, True])
def test_it_is_an_operator_as_pytorch_wants_it(serving: Serving, grads: bool) -> None:
    serving(task())
    x, *weights = (one.clone().requires_grad_(grads) for one in operands())
    with cudal2.enable():
        for given in ((x, *weights), (x.detach().view(2, 8, K), *operands()[1:])):
            found = torch.library.opcheck(torch.ops.cudal2.gated_linear.default, (*given, "silu"))
            assert set(found.values()) == {"SUCCESS"}
            assert "test_faketensor" in found


def test_a_graph_may_be_captured_once_the_kernel_is_loaded(serving: Serving) -> None:
    products = serving(task(), smallest=5)
    given = operands()
    with cudal2.enable():
        products.platform.is_capturing = True
        operator(*given)
        assert products.service.counts.fallbacks() == {FallbackCause.CAPTURING: 1, FallbackCause.NO_ENTRY: 1}
        products.platform.is_capturing = False
        operator(*given)
        products.platform.is_capturing = True
        operator(*given)
        operator(*operands(7))
    assert products.platform.launches == 3


# ---- the pass ------------------------------------------------------------------------------------------------------------


class Apart(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.gate, self.up, self.down = (torch.nn.Linear(*sizes, bias=False) for sizes in ((K, N), (K, N), (N, K)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Joined(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.both, self.down = torch.nn.Linear(K, 2 * N, bias=False), torch.nn.Linear(N, K, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)


@pytest.mark.parametrize("kind", [Apart, Joined])
def test_a_compiled_model_runs_its_gated_layers(serving: Serving, kind: type[torch.nn.Module]) -> None:
    down = PLAIN.model_copy(update={"n": K, "k": N})
    products = serving(task(), PLAIN, JOINED, down)
    model, x = kind().half().eval(), operands()[0].view(2, 8, K)
    with torch.no_grad():
        wanted = model(x)
        with cudal2.enable():
            compiled = torch.compile(model, options=COMPILED)
            compiled(x)
            torch.testing.assert_close(compiled(x), wanted, rtol=5e-3, atol=5e-3)
            gated, second = products.library.find(key_of(task())), products.library.find(key_of(down))
            assert products.service.counts.served() == {gated.id: 2, second.id: 2}
            assert products.service.counts.fallbacks() == {}
        assert torch.equal(compiled(x), wanted), "without the library it is PyTorch's operations"
    assert products.platform.launches == 4


def both(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return functional.linear(x, gate), functional.linear(x, up)


def _in_place(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    hidden = functional.silu(functional.linear(x, gate), inplace=True)
    hidden *= functional.linear(x, up)
    return hidden


APART: dict[str, tuple[Activation, Callable[..., torch.Tensor]]] = {
    "the gate first": (SILU, lambda x, g, u: functional.silu(functional.linear(x, g)) * functional.linear(x, u)),
    "up first": (SILU, lambda x, g, u: functional.linear(x, u) * functional.silu(functional.linear(x, g))),
    "both before": (SILU, lambda x, g, u: torch.mul(*(lambda one, two: (functional.silu(one), two))(*both(x, g, u)))),
    "in place": (SILU, _in_place),
    "gelu": (GELU, lambda x, g, u: functional.gelu(functional.linear(x, g)) * functional.linear(x, u)),
    "gelu by tanh": (
        Activation.GELU_TANH,
        lambda x, g, u: functional.gelu(functional.linear(x, g), approximate="tanh").mul(functional.linear(x, u)),
    ),
    "relu": (Activation.RELU, lambda x, g, u: functional.linear(x, g).relu() * functional.linear(x, u)),
}


@pytest.mark.parametrize("form", APART)
def test_two_layers_of_one_input_are_found(serving: Serving, form: str) -> None:
    activation, call = APART[form]
    products = serving(task(activation), PLAIN, PLAIN.model_copy(update={"activation": activation}))
    x, gate, up = operands()
    with cudal2.enable():
        found, code = program_of(call, x, gate, up.clone())
    assert "gated_linear" in code
    assert "linear_activation" not in code
    torch.testing.assert_close(found, exact(activation, x, gate, up), rtol=2e-3, atol=2e-3)
    assert products.platform.launches == 1


def halved(call: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        gate, up = call(functional.linear(x, weight))
        return functional.silu(gate) * up

    return run


JOINED_FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "chunk": halved(lambda y: y.chunk(2, -1)),
    "chunk by name": halved(lambda y: torch.chunk(y, chunks=2, dim=1)),
    "split": halved(lambda y: y.split(N, -1)),
    "split by sizes": halved(lambda y: torch.split(y, [N, N], dim=-1)),
    "slices": halved(lambda y: (y[..., :N], y[..., N:])),
    "slices of two sizes": halved(lambda y: (y[:, :N], y[:, N : 2 * N])),
    "narrow": halved(lambda y: (y.narrow(-1, 0, N), y.narrow(-1, N, N))),
    "up times gate": lambda x, w: (lambda g, u: u * functional.silu(g))(*functional.linear(x, w).chunk(2, -1)),
}


@pytest.mark.parametrize("form", JOINED_FORMS)
def test_halves_of_one_layer_are_found(serving: Serving, asked: list[tuple[int, ...]], form: str) -> None:
    """The kernel reads the weight where it lies."""
    products = serving(task(), JOINED)
    x, gate, up = operands()
    weight = gate._base
    with cudal2.enable():
        found, code = program_of(JOINED_FORMS[form], x, weight)
    assert "gated_linear" in code
    torch.testing.assert_close(found, exact(SILU, x, gate, up), rtol=2e-3, atol=2e-3)
    assert products.platform.launches == 1
    assert asked == [(gate.data_ptr(), up.data_ptr())]


def test_the_second_half_may_be_the_gate(serving: Serving, asked: list[tuple[int, ...]]) -> None:
    serving(task(GELU))
    x, first, second = operands()

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        hidden, gate = functional.linear(x, weight).chunk(2, dim=-1)
        return hidden * functional.gelu(gate)

    with cudal2.enable():
        found, _ = program_of(call, x, first._base)
    torch.testing.assert_close(found, exact(GELU, x, second, first), rtol=2e-3, atol=2e-3)
    assert asked == [(second.data_ptr(), first.data_ptr())]


def _gate_twice(x: torch.Tensor, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    gate, up = both(x, g, u)
    return functional.silu(gate) * up + gate


def _up_twice(x: torch.Tensor, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    gate, up = both(x, g, u)
    return functional.silu(gate) * up + up


def _activated_twice(x: torch.Tensor, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    gate, up = both(x, g, u)
    hidden = functional.silu(gate)
    return hidden * up + hidden


def _changed_between(x: torch.Tensor, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    gate = functional.linear(x, g)
    x.mul_(2)
    return functional.silu(gate) * functional.linear(x, u)


def _sums_too(x: torch.Tensor, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    sums = functional.linear(x, torch.cat((g, u)))
    gate, up = sums.chunk(2, -1)
    return functional.silu(gate) * up + sums.sum()


def of_joined(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, g, _: call(functional.linear(x, g._base))


LEFT: dict[str, Callable[..., torch.Tensor]] = {
    "the gate is used too": _gate_twice,
    "up is used too": _up_twice,
    "the activated gate is used too": _activated_twice,
    "the sums are used too": _sums_too,
    "x changes between": _changed_between,
    "two inputs": lambda x, g, u: functional.silu(functional.linear(x, g)) * functional.linear(x * 2, u),
    "one layer": lambda x, g, _: (lambda sums: functional.silu(sums) * sums)(functional.linear(x, g)),
    "another activation": lambda x, g, u: functional.gelu(functional.linear(x, g)) * functional.linear(x, u),
    "no activation": lambda x, g, u: functional.linear(x, g) * functional.linear(x, u),
    "a sum": lambda x, g, u: functional.silu(functional.linear(x, g)) + functional.linear(x, u),
    "a scale": lambda x, g, _: functional.silu(functional.linear(x, g)) * 2,
    "a bias": lambda x, g, u: functional.silu(functional.linear(x, g, x[0, :N])) * functional.linear(x, u),
    "a bias of up": lambda x, g, u: functional.silu(functional.linear(x, g)) * functional.linear(x, u, x[0, :N]),
    "another N": lambda x, g, u: functional.silu(functional.linear(x, g[:16])) * functional.linear(x, u[:16]),
    "another M": lambda x, g, u: functional.silu(functional.linear(x[:8], g)) * functional.linear(x[:8], u),
    "one row stretched": lambda x, g, u: functional.silu(functional.linear(x, g)) * functional.linear(x, u[:1]),
    "single precision": lambda x, g, u: (
        lambda f: functional.silu(functional.linear(f, g.float())) * functional.linear(f, u.float())
    )(x.float()),
    "strided weights": lambda x, g, u: functional.silu(functional.linear(x, g)) * functional.linear(x, u.t().contiguous().t()),
    "halves that differ": lambda x, g, u: (
        lambda y: functional.silu(y[..., : N - 1]) * functional.pad(y[..., N - 1 :], (0, -2))
    )(functional.linear(x, torch.cat((g, u)))),
    "an odd split": lambda x, g, u: (lambda a, b, _: functional.silu(a) * b)(
        *functional.linear(x, torch.cat((g, u, g[:1]))).split(N, -1)
    ),
    "quarters": lambda x, g, u: (lambda a, b, c, d: functional.silu(a) * b + c + d)(
        *functional.linear(x, torch.cat((g, u, g, u))).chunk(4, -1)
    ),
    "one half twice": lambda x, g, u: (lambda y: functional.silu(y[..., :N]) * y[..., :N])(
        functional.linear(x, torch.cat((g, u)))
    ),
    "an item of a tuple": lambda x, g, u: functional.silu(functional.linear(x, g).max(0)[0]) * functional.linear(x, u),
    "an index of nothing": lambda x, g, u: functional.silu(functional.linear(x, g)[()]) * functional.linear(x, u),
    "a row": lambda x, g, u: functional.silu(functional.linear(x, g)[0]) * functional.linear(x, u),
    "a mask": lambda x, g, u: functional.silu(functional.linear(x, g)[:, u[:, 0] < 9]) * functional.linear(x, u),
    "overlapping parts": lambda x, g, u: (lambda y: functional.silu(y[..., :N]) * y[..., 1 : N + 1])(
        functional.linear(x, torch.cat((g, u)))
    ),
    "rows": lambda x, g, u: (lambda y: functional.silu(y[:8]) * y[8:])(functional.linear(x, torch.cat((g, u)))),
    "chunks of rows": lambda x, g, u: (lambda a, b: functional.silu(a) * b)(
        *functional.linear(x, torch.cat((g, u))).chunk(2, 0)
    ),
    "some rows of a half": lambda x, g, u: (lambda y: functional.silu(y[1:, :N]) * y[1:, N:])(
        functional.linear(x, torch.cat((g, u)))
    ),
    "every second column": lambda x, g, u: (lambda y: functional.silu(y[..., ::2]) * y[..., 1::2])(
        functional.linear(x, torch.cat((g, u)))
    ),
}


@pytest.mark.parametrize("form", LEFT)
def test_what_is_no_gated_layer_of_the_library_is_left_as_it_is(serving: Serving, form: str) -> None:
    products = serving(task())
    x, gate, up = operands()
    with torch.no_grad():
        wanted = LEFT[form](x.clone(), gate, up)
    with cudal2.enable():
        found, code = program_of(LEFT[form], x, gate, up)
    assert "gated_linear" not in code
    assert products.platform.launches == 0
    torch.testing.assert_close(found, wanted, rtol=5e-3, atol=5e-3)


def test_tensors_of_another_device_are_left(serving: Serving) -> None:
    platform = HostPlatform()
    platform.device_type = "cuda"
    serving(task(), platform=platform)
    x, gate, _ = operands()
    with cudal2.enable():
        assert "gated_linear" not in program_of(JOINED_FORMS["chunk"], x, gate._base)[1]
    assert platform.launches == 0


def test_what_has_no_gated_entry_still_gets_its_plain_products_and_activations(serving: Serving) -> None:
    """Two layers one with its activation, and a joined one as one product."""
    x, gate, up = operands()
    activated = PLAIN.model_copy(update={"activation": SILU})
    products = serving(activated, PLAIN, JOINED)
    with cudal2.enable():
        found, code = program_of(APART["the gate first"][1], x, gate, up.clone())
        assert "linear_activation" in code
        served = [products.library.find(key_of(one)).id for one in (activated, PLAIN, JOINED)]
        assert products.service.counts.served() == {served[0]: 1, served[1]: 1}
        torch.testing.assert_close(found, exact(SILU, x, gate, up), rtol=3e-3, atol=3e-3)
        found, _ = program_of(JOINED_FORMS["chunk"], x, gate._base)
        assert products.service.counts.served()[served[2]] == 1
        torch.testing.assert_close(found, exact(SILU, x, gate, up), rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("kind", [Apart, Joined])
def test_what_needs_gradients_is_left_as_it_is(serving: Serving, kind: type[torch.nn.Module]) -> None:
    products = serving(task())
    model, x = kind().half(), operands()[0]
    model(x).float().sum().backward()
    wanted = [one.grad for one in model.parameters()]
    model.zero_grad()
    with cudal2.enable():
        torch.compile(model, options=COMPILED)(x).float().sum().backward()
    assert products.platform.launches == 0
    for one, other in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(one.grad, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", [Apart, Joined])
def test_any_size_asks_for_each_m(serving: Serving, kind: type[torch.nn.Module]) -> None:
    products = serving(task(), smallest=5)
    model = kind().half().eval()
    with torch.no_grad():
        wanted = {rows: model(operands(rows)[0]) for rows in (9, 3, 16, 7)}
        with cudal2.enable():
            compiled = torch.compile(model, dynamic=True, options=COMPILED)
            for rows, one in wanted.items():
                torch.testing.assert_close(compiled(operands(rows)[0]), one, rtol=5e-3, atol=5e-3)
    assert products.platform.launches == 3


def test_operands_that_change_behind_the_layer_are_read_before(serving: Serving) -> None:
    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        gate, up = functional.linear(x, weight).chunk(2, -1)
        x.zero_()
        weight.zero_()
        return functional.silu(gate) * up

    products = serving(task())
    x, gate, up = operands()
    wanted = exact(SILU, x, gate, up)
    with cudal2.enable():
        found, _ = program_of(call, x, gate._base)
    assert products.platform.launches == 1
    assert not x.any()
    assert not gate.any()
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


class _Marked(torch.Tensor):
    """A subclass that changes nothing. PyTorch 2.13 compiles no product of one."""


class _Weight(torch.nn.Parameter):
    """As serving engines have them."""


def test_subclasses_are_served_where_pytorch_knows_them(serving: Serving) -> None:
    products = serving(task())
    x, gate, up = operands()
    wanted, weight = exact(SILU, x, gate, up), _Weight(up.clone(), requires_grad=False)
    with cudal2.enable():
        marked = operator(x, gate, torch.Tensor._make_subclass(_Marked, up))
        found, code = program_of(APART["the gate first"][1], x, gate, weight)
    assert "gated_linear" in code
    for one in (marked.as_subclass(torch.Tensor), found):
        torch.testing.assert_close(one, wanted, rtol=2e-3, atol=2e-3)
    assert products.platform.launches == 2
