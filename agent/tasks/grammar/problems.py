"""Whole problems, of three levels as KernelBench has them: one operation with little around it, chains, and blocks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cudal2_agent.agent.tasks.grammar import product_steps, starts, window_steps
from cudal2_agent.agent.tasks.grammar.choices import Choices
from cudal2_agent.agent.tasks.grammar.pointwise_steps import POINTWISE, Step, activation, gated_halves
from cudal2_agent.agent.tasks.grammar.row_steps import last_reduction, norm, reduction, scan, softmax
from cudal2_agent.agent.tasks.grammar.sketch import DrawnTensor, Sketch

_TRIES = 20  # for a step that fits


class DrawnProblem(NamedTuple):
    """`name`: of its first operations."""

    level: int
    name: str
    text: str


_PRODUCTS: tuple[tuple[int, Step], ...] = (
    (5, product_steps.linear),
    (4, product_steps.convolution),
    (3, product_steps.transposed_convolution),
    (3, product_steps.tensor_product),
    (1, product_steps.similarity),
    (2, product_steps.attention),
)
_AFTER: tuple[tuple[int, Step], ...] = (
    *((2 * weight, step) for weight, step in POINTWISE),
    (14, norm),
    (5, softmax),
    (6, reduction),
    (5, scan),
    *((2 * weight, step) for weight, step in window_steps.MOVES),
)
_ROW_STEPS: tuple[tuple[int, Step], ...] = (
    (4, norm),
    (3, softmax),
    (4, reduction),
    (4, scan),
    (3, window_steps.pool),
    (2, window_steps.move),
)


def _maps(s: Sketch) -> DrawnTensor:
    return starts.maps(s, s.choices.pick((1, 2, 2, 3)))


_BLOCK_STARTS: tuple[tuple[int, Callable[[Sketch], DrawnTensor]], ...] = (
    (4, starts.tokens),
    (2, starts.rows),
    (1, starts.embedded),
    (4, _maps),
)


def problem(seed: int, number: int, attempt: int) -> DrawnProblem:
    """The problem of a number; another one for each attempt."""
    s = Sketch(Choices("cudal2-tasks", seed, number, attempt))
    level = s.choices.weighted(((3, 1), (5, 2), (2, 3)))
    x = (_one, _chain, _block)[level - 1](s)
    return DrawnProblem(level, s.name, s.text(x))


def _one(s: Sketch) -> DrawnTensor:
    """One operation over rows or a product, with one or two element-wise operations at most; or a loss."""
    match s.choices.weighted(((3, "loss"), (2, "distance"), (5, "row"), (3, "product"), (3, "pointwise"))):
        case "loss":
            return starts.loss(s)
        case "distance":
            return starts.distance(s)
        case "row":
            x = _input(s)
            x = _taken(s, x, POINTWISE) if s.choices.chance(0.6) else x
            x = _taken(s, x, _ROW_STEPS)
            return _taken(s, x, POINTWISE) if s.choices.chance(0.4) else x
        case "product":
            return _taken(s, _taken(s, _input(s), _PRODUCTS), ((1, s.choices.weighted(POINTWISE)),))
        case _:
            x = _input(s)
            for _ in range(s.choices.whole(2, 4)):
                x = _taken(s, x, POINTWISE)
            return x


def _chain(s: Sketch) -> DrawnTensor:
    """A product or none, then two to five steps."""
    has_product = s.choices.chance(0.7)
    x = _input(s) if not s.choices.chance(0.08) else starts.embedded(s)
    before = s.choices.chance(0.2)
    x = _taken(s, x, POINTWISE if s.choices.chance(0.5) else ((1, norm),)) if before else x
    x = _taken(s, x, _PRODUCTS) if has_product else x
    skip = s.keep(x, "skip") if s.choices.chance(0.25) else None
    for _ in range(s.choices.whole(2, 4) if has_product else s.choices.whole(3, 5)):
        x = _taken(s, x, _AFTER)
    if skip is not None and skip.shape == x.shape:
        x = s.step("residual", x, f"{x.name} + {skip.name}")
    return _ended(s, x)


def _block(s: Sketch) -> DrawnTensor:
    """Two or three residual parts: attention, gated layers, convolutions, and steps between them."""
    x = s.choices.weighted(_BLOCK_STARTS)(s)
    for _ in range(s.choices.whole(2, 3)):
        skip = s.keep(x, "skip")
        y = _taken(s, x, ((1, norm),)) if s.choices.chance(0.7) else x
        y = _taken(
            s,
            y,
            ((3, product_steps.attention), (2, _layers))
            if not y.maps
            else ((3, _convolutions), (1, product_steps.convolution)),
        )
        y = _taken(s, y, POINTWISE) if s.choices.chance(0.3) else y
        x = s.step("residual", y, f"{y.name} + {skip.name}") if y.shape == skip.shape else y
    return _ended(s, _taken(s, x, _AFTER) if s.choices.chance(0.5) else x)


def _layers(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Two linear layers with an activation or a gate between them, back to the same width."""
    y = product_steps.linear(s, x)
    if y is None:
        return None
    y = _taken(s, y, ((3, activation), (2, gated_halves)))
    layer = s.layer("back", f"nn.Linear({y.channels.text}, {x.channels.text})")
    return s.step("linear", y.resized(y.channel, x.channels), f"{layer}({y.name})")


def _convolutions(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """By channel, then pointwise, back to the same width."""
    number = x.last - 1
    if not x.maps:
        return None
    first = s.layer(
        "depthwise", f"nn.Conv{number}d({x.channels.text}, {x.channels.text}, 3, padding=1, groups={x.channels.text})"
    )
    x = _taken(s, s.step(f"depthwise_conv{number}d", x, f"{first}({x.name})"), ((1, activation), (1, norm)))
    second = s.layer("pointwise", f"nn.Conv{number}d({x.channels.text}, {x.channels.text}, 1)")
    return s.step(f"pointwise_conv{number}d", x, f"{second}({x.name})")


def _input(s: Sketch) -> DrawnTensor:
    kind = s.choices.weighted(((4, "rows"), (4, "tokens"), (1, "maps1"), (4, "maps2"), (1, "maps3")))
    if kind == "rows":
        return starts.rows(s)
    return starts.tokens(s) if kind == "tokens" else starts.maps(s, int(kind[-1]))


def _taken(s: Sketch, x: DrawnTensor, steps: Sequence[tuple[int, Step]]) -> DrawnTensor:
    """The value after one of the steps that fits; unchanged where none was found."""
    for _ in range(_TRIES):
        mark = s.mark()
        y = s.choices.weighted(steps)(s, x)
        if y is not None:
            return y
        s.undo(mark)
    return x


def _ended(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    """Sometimes a reduction at the end, or a second result."""
    if s.choices.chance(0.15) and x.last > 1:
        total = s.choices.pick(("{}.mean(dim={})", "{}.amax(dim={})", "{}.square().sum(dim={})", "torch.logsumexp({}, dim={})"))
        s.steps.append(f"summary = {total.format(x.name, s.choices.pick((x.last, 1)))}")
        s.results = [x.name, "summary"]
        s.words.append("summary")
        return x
    return _taken(s, x, ((1, last_reduction),)) if s.choices.chance(0.25) else x
