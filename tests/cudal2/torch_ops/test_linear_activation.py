"""Linear layers with an activation in compiled programs: one kernel, where the library has one."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2.torch import torch_session
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2_agent.contract.records.task import Activation, GemmTask, Layout
from tests.doubles.host_products import HostProducts

Serving = Callable[..., HostProducts]
GELU, SILU = Activation.GELU, Activation.SILU
M, N, K = 16, 32, 64
PLAIN = GemmTask(m=M, n=N, k=K, layout=Layout.TN)
COMPILED = {"fx_graph_cache": False}


def task(activation: Activation | None = GELU, *, bias: bool = True, **changes: int) -> GemmTask:
    return PLAIN.model_copy(update={"activation": activation, "bias": bias, **changes})


def operands(rows: int = M) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return tuple(torch.randn(*size, generator=generator).div(4).half() for size in ((rows, K), (N, K), (N,)))  # type: ignore[return-value]


def exact(activation: Activation, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return APPLIED[activation](functional.linear(x.float(), weight.float(), None if bias is None else bias.float())).half()


def operator(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation = GELU) -> torch.Tensor:
    return torch.ops.cudal2.linear_activation(x, weight, bias, activation.value)


class Layers(torch.nn.Module):
    """A layer with gelu and a bias, one with silu and without."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(K, N), torch.nn.Linear(N, K, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.second(functional.gelu(self.first(x))))


LAYERS = (task(), task(SILU, bias=False, n=K, k=N))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs_of(call: Callable[..., Any], *given: Any, options: dict[str, Any] | None = None, dynamic: bool | None = None) -> str:
    """Compiles a function, runs it once, and returns Inductor's own program."""
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        _, code = run_and_get_code(torch.compile(call, dynamic=dynamic, options=COMPILED | (options or {})), *given)
    return "\n".join(code)


# ---- the operator --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("with_bias", [False, True])
def test_one_kernel_computes_both(serving: Serving, language: str, activation: Activation, with_bias: bool) -> None:
    assert language in ("Python", "C++")
    products = serving(task(activation, bias=with_bias))
    x, weight, bias = operands()
    added = bias if with_bias else None
    with cudal2.enable():
        found = operator(x, weight, added, activation)
        folded = operator(x.view(2, 8, K), weight, added, activation)
    torch.testing.assert_close(found, exact(activation, x, weight, added))
    assert torch.equal(folded, found.view(2, 8, N))
    (entry,) = products.library
    assert products.service.counts.served() == {entry.id: 2}


def test_an_entry_belongs_to_its_activation_alone(serving: Serving) -> None:
    """Each product of a weight asks for its own entry, whichever others the library has.

    Where there is none for an activation, the product alone is asked for.
    """
    x, weight, bias = operands()
    every = [None, GELU, SILU]
    for held in ([None], [GELU], [SILU, None], every):
        products = serving(*(task(one) for one in held))
        with cudal2.enable():
            for asked in every:
                before = products.platform.launches
                out = functional.linear(x, weight, bias) if asked is None else operator(x, weight, bias, asked)
                sums = functional.linear(x.float(), weight.float(), bias.float())
                torch.testing.assert_close(out, (sums if asked is None else APPLIED[asked](sums)).half(), rtol=2e-3, atol=2e-3)
                assert products.platform.launches == before + (asked in held or None in held), (held, asked)


def test_files_of_another_entry_are_refused(serving: Serving) -> None:
    """The built kernel of the product alone, exchanged with that of its activation."""
    products = serving(task(None), task())
    plain, fused = sorted(products.library, key=lambda one: str(one.task.activation or ""))
    sms = products.platform.identity(-1).sms
    paths = [products.prepared.plan_path(one, sms) for one in (plain, fused)]
    texts = [path.read_text() for path in paths]
    for path, text in zip(paths, reversed(texts), strict=True):
        path.write_text(text)
    products.builder.failing = True
    x, weight, bias = operands()
    with cudal2.enable():
        assert torch.equal(operator(x, weight, bias), functional.gelu(functional.linear(x, weight, bias)))
    assert products.platform.launches == 0
    assert all("it is the plan of another entry" in note for note in products.service.notices.texts())


def test_a_range_of_m_is_served_and_padded_m_is_not(serving: Serving) -> None:
    products = serving(task(), smallest=5)
    wanted = {rows: exact(GELU, *operands(rows)) for rows in (9, 5, 4, M)}
    with cudal2.enable():
        for rows, launches in ((9, 1), (5, 2), (4, 2), (M, 3)):
            torch.testing.assert_close(operator(*operands(rows)), wanted[rows], rtol=2e-3, atol=2e-3)
            assert products.platform.launches == launches
    assert products.service.counts.fallbacks() == {FallbackCause.NO_ENTRY: 2}, "with its activation and without"


def test_what_the_library_does_not_serve_is_exactly_pytorchs_own(serving: Serving) -> None:
    products = serving(task())
    x, weight, bias = operands()
    strided = torch.randn(M, 2, K).half()[:, 1:]
    given = [
        (x[:3], weight, bias),
        (x, weight, None),
        (strided, weight, bias),
        (x[:0], weight, bias),
        (x.float(), weight.float(), bias.float()),
    ]
    with cudal2.enable():
        for one in given:
            assert torch.equal(operator(*one), functional.gelu(functional.linear(*one)))
        torch.use_deterministic_algorithms(True)
        try:
            assert torch.equal(operator(x, weight, bias), functional.gelu(functional.linear(x, weight, bias)))
        finally:
            torch.use_deterministic_algorithms(False)
    with cudal2.enable(operators=("mm",)):
        operator(x, weight, bias)
    assert products.platform.launches == 0
    operator(x, weight, bias)
    assert products.platform.launches == 0, "not enabled"


def test_gradients_and_transforms_are_pytorchs(serving: Serving) -> None:
    products = serving(task())
    given = [one.float().double().requires_grad_() for one in operands()]
    with cudal2.enable():
        for one, other in zip(
            torch.autograd.grad(operator(*given).square().sum(), given),
            torch.autograd.grad(functional.gelu(functional.linear(*given)).square().sum(), given),
            strict=True,
        ):
            assert torch.equal(one, other)
        x, weight, bias = operands()
        moved = torch.func.jvp(lambda one: operator(one, weight.float(), bias.float()), (x.float(),), (x.float(),))[1]
        wanted = torch.func.jvp(
            lambda one: functional.gelu(functional.linear(one, weight.float(), bias.float())), (x.float(),), (x.float(),)
        )[1]
        assert torch.equal(moved, wanted)
    assert products.platform.launches == 0


@pytest.mark.parametrize("grads", [False, True])
def test_it_is_an_operator_as_pytorch_wants_it(serving: Serving, grads: bool) -> None:
    serving(task())
    given = tuple(one.requires_grad_(grads) for one in operands())
    with cudal2.enable():
        for arguments in ((*given, "gelu"), (given[0].detach().view(2, 8, K), given[1].detach(), None, "silu")):
            found = torch.library.opcheck(torch.ops.cudal2.linear_activation.default, arguments)
            assert set(found.values()) == {"SUCCESS"}
            assert "test_faketensor" in found


def test_an_activation_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="relu, gelu, gelu_tanh, silu, not swish"):
        torch.ops.cudal2.linear_activation(*operands(), "swish")


def test_a_graph_may_be_captured_once_the_kernel_is_loaded(serving: Serving) -> None:
    products = serving(task(), smallest=5)
    x, weight, bias = operands()
    with cudal2.enable():
        products.platform.is_capturing = True
        operator(x, weight, bias)
        assert products.service.counts.fallbacks() == {FallbackCause.CAPTURING: 1, FallbackCause.NO_ENTRY: 1}
        products.platform.is_capturing = False
        operator(x, weight, bias)
        products.platform.is_capturing = True
        operator(x, weight, bias)
        operator(*operands(7))
    assert products.platform.launches == 3


def test_threads_share_one_kernel(serving: Serving) -> None:
    products = serving(task())
    x, weight, bias = operands()
    wanted, wrong = exact(GELU, x, weight, bias), list[bool]()

    def run() -> None:
        for _ in range(20):
            if not torch.allclose(operator(x, weight, bias), wanted, rtol=2e-3, atol=2e-3):
                wrong.append(True)

    with cudal2.enable():
        threads = [threading.Thread(target=run) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert (wrong, len(products.platform.kernels), products.platform.launches) == ([], 1, 80)


# ---- the pass ------------------------------------------------------------------------------------------------------------


def test_a_compiled_model_runs_its_layers_with_their_activations(serving: Serving) -> None:
    products = serving(*LAYERS, task(None))
    model, x = Layers().half().eval(), operands()[0].view(2, 8, K)
    with torch.no_grad():
        wanted = model(x)
        with cudal2.enable():
            compiled = torch.compile(model, options=COMPILED)
            found = compiled(x)
            compiled(x)
            torch.testing.assert_close(found, wanted, rtol=5e-3, atol=5e-3)
            assert sorted(products.service.counts.served().values()) == [2, 2]
            assert products.service.counts.fallbacks() == {}
        assert torch.equal(compiled(x), wanted), "without the library it is PyTorch's two operations"
    assert products.platform.launches == 4


FORMS: dict[str, tuple[Activation, Callable[..., torch.Tensor]]] = {
    "gelu": (GELU, lambda x, w, b: functional.gelu(functional.linear(x, w, b))),
    "gelu by tanh": (
        Activation.GELU_TANH,
        lambda x, w, b: functional.gelu(functional.linear(x, w, bias=b), approximate="tanh"),
    ),
    "silu": (SILU, lambda x, w, b: functional.silu(functional.linear(x, w, b))),
    "silu in place": (SILU, lambda x, w, b: functional.silu(functional.linear(x, w, b), inplace=True)),
    "relu": (Activation.RELU, lambda x, w, b: functional.relu(functional.linear(x, w, b))),
    "torch.relu": (Activation.RELU, lambda x, w, b: torch.relu(functional.linear(x, w, b))),
    "method": (Activation.RELU, lambda x, w, b: functional.linear(x, w, b).relu()),
    "method in place": (Activation.RELU, lambda x, w, b: functional.linear(x, w, b).relu_()),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_an_activation_is_found(serving: Serving, form: str) -> None:
    activation, call = FORMS[form]
    products = serving(task(activation))
    given = operands()
    with cudal2.enable():
        assert "linear_activation" in graphs_of(call, *given)
    assert products.platform.launches == 1


def _twice(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    sums = functional.linear(x, w, b)
    return functional.gelu(sums) + sums


LEFT: dict[str, Callable[..., torch.Tensor]] = {
    "the sums are used too": _twice,
    "no activation": lambda x, w, b: functional.linear(x, w, b).sigmoid(),
    "another activation": lambda x, w, b: functional.silu(functional.linear(x, w, b)),
    "no bias": lambda x, w, b: functional.gelu(functional.linear(x, w)),  # noqa: ARG005
    "another N": lambda x, w, b: functional.gelu(functional.linear(x, w[:16], b[:16])),
    "another M": lambda x, w, b: functional.gelu(functional.linear(x[:8], w, b)),
    "single precision": lambda x, w, b: functional.gelu(functional.linear(x.float(), w.float(), b.float())),
}


@pytest.mark.parametrize("form", LEFT)
def test_what_the_library_lacks_is_left_as_it_is(serving: Serving, form: str) -> None:
    products = serving(task())
    given = operands()
    with cudal2.enable():
        assert "linear_activation" not in graphs_of(LEFT[form], *given)
    assert products.platform.launches == 0


def test_what_needs_gradients_is_left_as_it_is(serving: Serving) -> None:
    products = serving(*LAYERS)
    model, x = Layers().half(), operands()[0]
    model(x).float().sum().backward()
    wanted, model.first.weight.grad = model.first.weight.grad, None
    with cudal2.enable():
        torch.compile(model, options=COMPILED)(x).float().sum().backward()
    assert products.platform.launches == 0
    torch.testing.assert_close(model.first.weight.grad, wanted, rtol=1e-2, atol=1e-2)


def test_operands_that_change_behind_the_layer_are_read_before(serving: Serving) -> None:
    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        sums = functional.linear(x, w, b)
        x.zero_()
        return functional.gelu(sums)

    products = serving(task())
    x, weight, bias = operands()
    wanted = exact(GELU, x, weight, bias)
    with cudal2.enable(), torch.no_grad():
        found = torch.compile(call, options=COMPILED)(x, weight, bias)
    assert products.platform.launches == 1
    assert not x.any()
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def test_any_size_asks_for_each_m(serving: Serving) -> None:
    products = serving(task(), smallest=5)
    layer = torch.nn.Linear(K, N).half()
    wanted = {rows: exact(GELU, operands(rows)[0], layer.weight, layer.bias) for rows in (9, 3, 16, 7)}
    with cudal2.enable(), torch.no_grad():
        compiled = torch.compile(lambda x: functional.gelu(layer(x)), dynamic=True, options=COMPILED)
        for rows in (9, 3, 16, 7):
            torch.testing.assert_close(compiled(operands(rows)[0]), wanted[rows], rtol=2e-3, atol=2e-3)
    assert products.platform.launches == 3
    assert products.service.counts.fallbacks() == {FallbackCause.NO_ENTRY: 2}, "with its activation and without"


@pytest.mark.parametrize("chained", ["function", "list"])
def test_a_pass_of_the_user_runs_too_and_is_put_back(serving: Serving, chained: str) -> None:
    import torch._inductor.config as config

    seen: list[str] = []

    def mine(graph: torch.fx.Graph) -> None:
        seen.append(" ".join(str(node.target) for node in graph.nodes))

    serving(task())
    theirs: Any = mine if chained == "function" else [mine]
    with config.patch(pre_grad_custom_pass=theirs):
        with cudal2.enable():
            assert "linear_activation" in graphs_of(FORMS["gelu"][1], *operands())
            assert config.pre_grad_custom_pass.uuid() is None
        assert config.pre_grad_custom_pass is theirs
    assert len(seen) == 1
    assert "gelu" in seen[0]


def test_the_setting_of_the_user_who_came_later_stays(serving: Serving) -> None:
    import torch._inductor.config as config

    serving(task())
    before = config.pre_grad_custom_pass
    try:
        cudal2.enable()
        config.pre_grad_custom_pass = print
        cudal2.disable()
        assert config.pre_grad_custom_pass is print
    finally:
        config.pre_grad_custom_pass = before


def test_another_thread_may_disable_it(serving: Serving) -> None:
    """The setting of this thread then does nothing, and the next pass takes its place."""
    import torch._inductor.config as config

    products = serving(task())
    cudal2.enable()
    thread = threading.Thread(target=cudal2.disable)
    thread.start()
    thread.join()
    assert "linear_activation" not in graphs_of(FORMS["gelu"][1], *operands())
    with cudal2.enable():
        assert "linear_activation" in graphs_of(FORMS["gelu"][1], *operands())
    assert config.pre_grad_custom_pass is None
    assert products.platform.launches == 1


def test_a_library_without_activations_leaves_inductor_alone(serving: Serving) -> None:
    import torch._inductor.config as config

    serving(PLAIN)
    with cudal2.enable():
        assert config.pre_grad_custom_pass is None
    serving(task())
    with cudal2.enable():
        assert config.pre_grad_custom_pass is not None
        torch_session.use_service(serving(PLAIN).service)
        assert config.pre_grad_custom_pass is None


def test_inductor_s_cache_tells_libraries_apart(serving: Serving) -> None:
    """Code that was made with one library is not taken from the cache with another, nor without any."""
    from torch._inductor.utils import fresh_cache

    def compiled() -> bool:
        torch._dynamo.reset()
        return "linear_activation" in graphs_of(FORMS["gelu"][1], *operands(), options={"fx_graph_cache": True})

    with fresh_cache():
        assert not compiled()
        for held, found in ((task(), True), (task(SILU), False), (task(), True)):
            serving(held)
            with cudal2.enable():
                assert compiled() == found
        assert not compiled()


def test_a_pass_is_pickled_by_its_name(serving: Serving) -> None:
    """It holds a GPU and locks, which no version of Inductor that pickles its settings could hash."""
    from torch._inductor import config

    found = []
    for held in (task(), task(SILU), task()):
        serving(held)
        with cudal2.enable():
            found.append(pickle.dumps(config.pre_grad_custom_pass))
    assert found[0] == found[2] != found[1]
    assert pickle.loads(found[0]) is None


def test_no_library_that_ships_has_activations() -> None:
    """`enable` without a library of the user's does not look."""
    from cudal2.library.kernel_library import open_library, shipped_paths

    assert not any(key.activation for path in shipped_paths() for key in open_library(path).keys())  # noqa: SIM118
