"""What the inputs of a module's tests consist of."""

import pytest

torch = pytest.importorskip("torch")

from cudal2_agent.contract.records.module_task import Arithmetic  # noqa: E402
from cudal2_agent.sandbox.modules.cases import CASES, HIGH, LARGE, LOW, OFFSET, UNEVEN, WIDE, draw  # noqa: E402
from tests.sandbox.modules import small_tasks as small  # noqa: E402

CPU = torch.device("cpu")
SHAPE = (8, 96)


def relu(element: str = "f32") -> small.ModuleTask:
    nodes = [small.node("relu", "aten.relu.default", [small.of("x")], SHAPE, element)]
    arithmetic = Arithmetic.F16 if element == "f16" else Arithmetic.F32
    return small.task(nodes, {"x": SHAPE}, arithmetic=arithmetic, elements={"x": element})


@pytest.mark.parametrize("case", [OFFSET, LARGE, WIDE], ids=lambda case: case.name)
def test_half_precision_keeps_the_spread_of_a_case(case: object) -> None:
    """Nothing is cut off at the largest number that may occur: rows are scaled."""
    x = draw(relu("f16"), case, 1, CPU)["x"].float()  # type: ignore[arg-type]
    assert 2.0**-14 < x.abs().max() <= 32
    assert min(len(row.unique()) for row in x) >= 8


def test_doubles_have_longer_mantissas_than_floats() -> None:
    for case in CASES[1:]:
        x = draw(relu("f64"), case, 1, CPU)["x"]
        longer = (x != x.float().double()) & x.isfinite() & (x != 0)
        assert bool(longer.any()) == (not case.alike), case.name


def test_rows_lie_wholly_on_one_side_where_no_parameter_is_added() -> None:
    """A maximum that starts at zero is wrong on negative rows alone."""
    assert draw(relu(), LOW, 1, CPU)["x"].max() < 0 < draw(relu(), HIGH, 1, CPU)["x"].min()
    assert draw(small.linear_relu(), LOW, 1, CPU)["x"].max() > 0


def test_ends_of_rows_are_extrema() -> None:
    """A maximum over all elements but the first or the last is wrong on some row of nearly every proof."""
    x = draw(relu(), UNEVEN, 1, CPU)["x"]
    assert {0, SHAPE[1] - 1} == set(x.argmax(1).tolist())
    assert torch.equal(x.argmax(1), SHAPE[1] - 1 - x.argmin(1))
