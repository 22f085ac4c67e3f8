"""The grammar of problems: the same text everywhere, in KernelBench's form. One of each step runs; nothing is traced."""

import ast
import hashlib
from collections import Counter

import pytest

from cudal2_agent.agent.tasks.grammar import product_steps, starts, window_steps
from cudal2_agent.agent.tasks.grammar.choices import Choices
from cudal2_agent.agent.tasks.grammar.pointwise_steps import POINTWISE
from cudal2_agent.agent.tasks.grammar.problems import problem
from cudal2_agent.agent.tasks.grammar.row_steps import NORMS, last_reduction, reduction, scan, softmax
from cudal2_agent.agent.tasks.grammar.sizes import Size, product
from cudal2_agent.agent.tasks.grammar.sketch import DrawnTensor, Sketch

STEPS = [
    *(step for _, step in (*POINTWISE, *NORMS, *window_steps.MOVES)),
    *(reduction, last_reduction, scan, softmax),
    *(product_steps.linear, product_steps.convolution, product_steps.transposed_convolution, product_steps.tensor_product),
    *(product_steps.similarity, product_steps.attention),
]


def texts(seed: int, count: int = 200) -> list[str]:
    return [problem(seed, number, 0).text for number in range(1, count + 1)]


def test_a_seed_gives_the_same_files_on_every_machine() -> None:
    """A grammar that draws other problems changes this hash, and the problems of every seed with it."""
    assert hashlib.sha256("".join(texts(7)).encode()).hexdigest()[:16] == "99a1e884c90da674"


def test_another_seed_number_or_attempt_is_another_problem() -> None:
    assert len({problem(seed, number, attempt).text for seed in (7, 8) for number in (1, 2) for attempt in (0, 1)}) == 8


def test_problems_are_of_three_levels_and_seldom_alike() -> None:
    drawn = [problem(3, number, 0) for number in range(300)]
    assert set(Counter(each.level for each in drawn)) == {1, 2, 3}
    assert len({each.text for each in drawn}) > 290


@pytest.mark.parametrize("seed", [0, 7])
def test_a_file_has_the_form_of_kernelbench(seed: int) -> None:
    for text in texts(seed, 60):
        tree = ast.parse(text)
        made = [each.name for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)]
        assert made == ["Model", "get_inputs", "get_init_inputs"]
        sizes = [each for each in tree.body if isinstance(each, ast.Assign)]
        assert sizes
        assert all(isinstance(each.value, ast.Constant) and isinstance(each.value.value, int) for each in sizes)
        assert max(map(len, text.splitlines())) <= 140


def test_choices_follow_their_weights() -> None:
    draws = Choices("weights")
    counts = Counter(draws.weighted(((3, "often"), (1, "seldom"))) for _ in range(2000))
    assert 1400 < counts["often"] < 1600
    assert {draws.whole(2, 4) for _ in range(100)} == {2, 3, 4}


def test_sizes_are_written_as_they_are_computed() -> None:
    height = Size("height", 14)
    size = product(height.plus(2).over(2), Size("width", 6).times(3), height.over(2).times(2))
    assert eval(size.text, {"height": 14, "width": 6}) == size.value == 8 * 18 * 14


def test_what_nothing_reads_is_not_written() -> None:
    s = Sketch(Choices(1))
    x = DrawnTensor(s.input("x", (s.dim("rows", 4), s.dim("columns", 8))), (Size("rows", 4), Size("columns", 8)), 1)
    s.keep(x, "skip")
    kept = s.keep(x, "other")
    text = s.text(s.step("add", x, f"x + {kept.name}"))
    assert "skip" not in text
    assert "other = x\n        x = x + other\n" in text


def test_a_step_that_does_not_fit_leaves_nothing_behind() -> None:
    s = Sketch(Choices(1))
    mark, before = s.mark(), s.text(DrawnTensor("x", (), 0))
    s.layer("linear", "nn.Linear(4, 4)")
    s.parameter("bias", (s.dim("width", 4),))
    s.step("linear", DrawnTensor("x", (), 0), f"x + {s.input('y', ())}")
    s.undo(mark)
    assert s.text(DrawnTensor("x", (), 0)) == before


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_step_computes_the_shape_that_it_states(step: object) -> None:
    """On tensors without values, from every form of input that the step takes."""
    torch = pytest.importorskip("torch")
    fitted = 0
    for draw in range(4):
        for start in (starts.rows, starts.tokens, *(lambda s, n=n: starts.maps(s, n) for n in (1, 2, 3))):
            s = Sketch(Choices("step", draw))
            y = step(s, start(s))  # type: ignore[operator]
            if y is None:
                continue
            fitted += 1
            scope: dict[str, object] = {}
            with torch.device("meta"):
                exec(s.text(y), scope)
                found = scope["Model"](*scope["get_init_inputs"]())(*scope["get_inputs"]())  # type: ignore[operator]
            if step is not last_reduction:
                assert tuple(found.shape) == tuple(size.value for size in y.shape), s.text(y)
    assert fitted
