"""`enable` beside another library that replaces kernels of PyTorch, as batch-invariant modes do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import cudal2
from cudal2.torch import aten_override
from cudal2.torch.kernel_registrations import is_ours, others, registered
from tests.cudal2.torch_ops.matrices import TASK, operands
from tests.doubles.host_products import HostProducts

Serving = Callable[..., HostProducts]

pytestmark = pytest.mark.usefixtures("language")


class OtherLibrary:
    """Replaces operators by kernels that say who ran: every element is `mark`."""

    def __init__(self, mark: float, *operators: str, **options: bool) -> None:
        self._library = torch.library.Library("aten", "IMPL")

        def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.new_full((a.shape[0], b.shape[-1]), mark)

        def addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **scales: float) -> torch.Tensor:  # noqa: ARG001
            return mm(a, b)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for operator in operators or ("mm", "addmm"):
                self._library.impl(operator, addmm if operator == "addmm" else mm, "CPU", **options)

    def leave(self) -> None:
        self._library._destroy()


@pytest.fixture
def other() -> Iterator[Callable[..., OtherLibrary]]:
    made: list[OtherLibrary] = []

    def make(mark: float, *operators: str, **options: bool) -> OtherLibrary:
        made.append(OtherLibrary(mark, *operators, **options))
        return made[-1]

    yield make
    for one in made:
        one.leave()
    aten_override.unregister()
    assert [place for name in ("mm", "addmm") for place in registered(name, "CPU") if is_ours(place)] == []


SMALL = torch.ones(2, 3), torch.ones(3, 2)  # f32, which no entry serves
BIAS = torch.zeros(2)


def marks() -> tuple[float, float]:
    """Who computes a product, and one with a bias; 3 is the right result."""
    return torch.mm(*SMALL)[0, 0].item(), torch.addmm(BIAS, *SMALL)[0, 0].item()


def assert_right(out: torch.Tensor) -> None:
    """`aten::bmm` is nobody's here."""
    a, b = operands()
    torch.testing.assert_close(out, torch.bmm(a.float()[None], b.float()[None])[0].half())


@pytest.fixture(autouse=True)
def _fresh() -> None:
    aten_override.unregister()


def test_alone_nobody_else_is_named(serving: Serving) -> None:
    serving(TASK)
    with cudal2.enable():
        assert [name for name in ("mm", "addmm", "matmul", "linear") if others(name, "CPU")] == []
        assert "replaced" not in str(cudal2.status())


def test_the_out_form_of_another_library_runs_where_the_library_does_not_serve(serving: Serving) -> None:
    """Over it no kernel in C++ is registered, which would reach PyTorch's own alone."""
    products = serving(TASK)
    rival, out = torch.library.Library("aten", "IMPL"), torch.empty(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rival.impl("mm.out", lambda a, b, *, out: out.fill_(7.0), "CPU")  # noqa: ARG005
    with cudal2.enable():
        assert torch.mm(*SMALL, out=out)[0, 0] == 7
        assert_right(torch.mm(*operands(), out=torch.empty(16, 32).half()))
    assert products.platform.launches == 1
    aten_override.unregister()
    rival._destroy()


def test_over_another_library_the_rest_runs_its_kernel(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    products = serving(TASK)
    rival = other(7.0)
    with cudal2.enable():
        assert_right(torch.mm(*operands()))
        assert (products.platform.launches, marks()) == (1, (7.0, 7.0))
        told = [line for line in str(cudal2.status()).splitlines() if line.startswith("note")]
        assert len(told) == 2
        assert all("was replaced before, at" in line and "test_beside_others.py" in line for line in told)
        rival.leave()
        assert_right(torch.mm(*operands()))
        assert (products.platform.launches, marks()) == (2, (3.0, 3.0))
    assert marks() == (3.0, 3.0)


def test_disable_leaves_the_kernel_of_the_other_library(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    products = serving(TASK)
    other(7.0)
    cudal2.enable()
    cudal2.disable()
    assert (torch.mm(*operands())[0, 0].item(), marks(), products.platform.launches) == (7.0, (7.0, 7.0), 0)


@pytest.mark.parametrize("options", [{}, {"allow_override": False}, {"allow_override": True}])
def test_under_another_library_nothing_is_served_and_status_says_so(
    serving: Serving, other: Callable[..., OtherLibrary], options: dict[str, bool]
) -> None:
    """`allow_override=False` is what older versions of PyTorch do unless they are told otherwise."""
    products = serving(TASK)
    cudal2.enable()
    assert "replaced again" not in str(cudal2.status())
    rival = other(7.0, **options)
    assert (torch.mm(*operands())[0, 0].item(), marks(), products.platform.launches) == (7.0, (7.0, 7.0), 0)
    assert "note: aten::mm was replaced again, at " in str(cudal2.status())
    rival.leave()
    assert_right(torch.mm(*operands()))
    assert (marks(), products.platform.launches) == ((3.0, 3.0), 1)
    assert "replaced again" not in str(cudal2.status())


def test_enable_again_asks_the_library_first(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    products = serving(TASK)
    cudal2.enable()
    rival = other(7.0)
    cudal2.enable()
    assert_right(torch.mm(*operands()))
    assert (products.platform.launches, marks()) == (1, (7.0, 7.0))
    assert "replaced again" not in str(cudal2.status())
    cudal2.disable()
    assert (torch.mm(*operands())[0, 0].item(), marks()) == (7.0, (7.0, 7.0))
    cudal2.enable()
    rival.leave()
    cudal2.enable()
    assert_right(torch.mm(*operands()))
    assert (products.platform.launches, marks()) == (2, (3.0, 3.0))


def test_after_disable_another_library_may_register(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    serving(TASK)
    with cudal2.enable():
        pass
    other(7.0, allow_override=False)
    assert marks() == (7.0, 7.0)


def test_two_others_may_come_and_go_in_any_order(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    serving(TASK)
    first = other(7.0)
    cudal2.enable()
    second = other(8.0)
    cudal2.enable()
    assert marks() == (8.0, 8.0)
    first.leave()
    assert marks() == (8.0, 8.0)
    second.leave()
    assert marks() == (3.0, 3.0)
    assert_right(torch.mm(*operands()))


def test_errors_of_the_other_library_are_its_own(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    serving(TASK)
    rival = other(7.0)

    def refuses(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such product")

    rival._library.impl("mm", refuses, "CPU")
    with cudal2.enable(), pytest.raises(RuntimeError, match="no such product"):
        torch.mm(*SMALL)


def test_an_operator_above_is_named(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    """vLLM replaces aten::matmul and aten::linear too, which then call no aten::mm."""
    products = serving(TASK)
    other(7.0, "matmul")
    with cudal2.enable():
        assert torch.matmul(*operands())[0, 0] == 7.0
        assert_right(torch.mm(*operands()))
        assert "note: aten::matmul is replaced at " in str(cudal2.status())
    assert products.platform.launches == 1


def test_gradients_pass_through_both(serving: Serving, other: Callable[..., OtherLibrary]) -> None:
    serving(TASK)
    other(7.0)
    a, b = (one.clone().requires_grad_() for one in SMALL)
    with cudal2.enable():
        torch.mm(a, b).sum().backward()
        found = torch.func.jvp(torch.mm, SMALL, SMALL)[1]
    assert a.grad is not None
    assert (a.grad[0, 0].item(), found[0, 0].item()) == (7.0, 14.0)
