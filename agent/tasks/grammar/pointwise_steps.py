"""Element-wise steps: activations, arithmetic with numbers, parameters and further inputs, gates."""

from collections.abc import Callable

from cudal2_agent.agent.tasks.grammar.sizes import Size
from cudal2_agent.agent.tasks.grammar.sketch import DrawnTensor, Sketch

Step = Callable[[Sketch, DrawnTensor], DrawnTensor | None]  # None where the step does not fit the value
_NUMBERS = (0.125, 0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0)

# What the operation is called, and its text; `c` is a number.
ACTIVATIONS = (
    ("relu", "F.relu({x})"),
    ("gelu", "F.gelu({x})"),
    ("gelu_tanh", "F.gelu({x}, approximate='tanh')"),
    ("silu", "F.silu({x})"),
    ("mish", "F.mish({x})"),
    ("tanh", "torch.tanh({x})"),
    ("sigmoid", "torch.sigmoid({x})"),
    ("hardswish", "F.hardswish({x})"),
    ("hardsigmoid", "F.hardsigmoid({x})"),
    ("softplus", "F.softplus({x})"),
    ("softsign", "F.softsign({x})"),
    ("elu", "F.elu({x}, alpha={c})"),
    ("celu", "F.celu({x}, alpha={c})"),
    ("selu", "F.selu({x})"),
    ("leaky_relu", "F.leaky_relu({x}, negative_slope=0.{d})"),
    ("relu6", "F.relu6({x})"),
    ("hardtanh", "F.hardtanh({x}, min_val=-{c}, max_val={c})"),
    ("log_sigmoid", "F.logsigmoid({x})"),
    ("softshrink", "F.softshrink({x}, lambd=0.{d})"),
    ("hardshrink", "F.hardshrink({x}, lambd=0.{d})"),
    ("tanhshrink", "F.tanhshrink({x})"),
    ("squared_relu", "F.relu({x}).square()"),
    ("quick_gelu", "{x} * torch.sigmoid(1.702 * {x})"),
)
ARITHMETIC = (
    ("scale", "{x} * {c}"),
    ("offset", "{x} + {c}"),
    ("subtract", "{x} - {c}"),
    ("divide", "{x} / {e}"),
    ("from", "{c} - {x}"),
    ("affine", "{c} * {x} + {e}"),
    ("clamp", "torch.clamp({x}, -{c}, {e})"),
    ("at_least", "torch.clamp({x}, min=-{c})"),
    ("square", "{x} ** 2"),
    ("cube", "{x} ** 3"),
    ("abs", "torch.abs({x})"),
    ("sin", "torch.sin({x})"),
    ("cos", "torch.cos({c} * {x})"),
    ("atan", "torch.atan({x})"),
    ("erf", "torch.erf({x})"),
    ("gaussian", "torch.exp(-{x} ** 2)"),
    ("log1p", "torch.log1p(torch.abs({x}))"),
    ("root", "torch.sqrt(torch.abs({x}) + {c})"),
    ("rsqrt", "torch.rsqrt({x} ** 2 + {c})"),
    ("reciprocal", "1.0 / (torch.abs({x}) + {c})"),
    ("sign_log", "torch.sign({x}) * torch.log1p(torch.abs({x}))"),
    ("sine_square", "{x} + torch.sin({c} * {x}) ** 2"),
    ("drop_small", "torch.where(torch.abs({x}) > 0.{d}, {x}, 0.0)"),
)
_WITH_PARAMETER = (
    ("bias", "bias", "{x} + {p}"),
    ("factor", "weight", "{x} * {p}"),
    ("shift", "shift", "{x} - {p}"),
    ("slope", "slope", "torch.where({x} > 0, {x}, {p} * {x})"),
    ("learned_max", "level", "torch.maximum({x}, {p})"),
    ("snake", "rate", "{x} + torch.sin({p} * {x}) ** 2"),
    ("learned_swish", "rate", "{x} * torch.sigmoid({p} * {x})"),
)
_WITH_INPUT = (
    ("add", "other", "{x} + {y}"),
    ("multiply", "other", "{x} * {y}"),
    ("difference", "other", "{x} - {y}"),
    ("scaled_add", "other", "{x} + {c} * {y}"),
    ("maximum", "other", "torch.maximum({x}, {y})"),
    ("minimum", "other", "torch.minimum({x}, {y})"),
    ("gated", "gate", "{x} * torch.sigmoid({y})"),
    ("tanh_gated", "gate", "torch.tanh({x}) * torch.sigmoid({y})"),
    ("silu_gated", "gate", "{x} * F.silu({y})"),
    ("squared_difference", "target", "({x} - {y}) ** 2"),
    ("absolute_difference", "target", "torch.abs({x} - {y})"),
    ("mix", "other", "torch.lerp({x}, {y}, 0.{d})"),
    ("ratio", "other", "{x} / (torch.abs({y}) + {c})"),
    ("hypot", "other", "torch.sqrt({x} ** 2 + {y} ** 2 + {c})"),
)
_MASKED = (
    ("mask", "{x}.masked_fill({y}, 0.0)"),
    ("select", "torch.where({y}, {x}, {c} * {x})"),
    ("choose", "torch.where({y}, torch.tanh({x}), F.relu({x}))"),
)


def _over(s: Sketch, text: str, value: DrawnTensor, **more: str) -> str:
    c, e, d = s.choices.pick(_NUMBERS), s.choices.pick(_NUMBERS), s.choices.pick((1, 2, 25, 3, 5))
    return text.format(x=value.name, c=c, e=e, d=d, **more)


def activation(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    word, text = s.choices.pick(ACTIVATIONS)
    return s.step(word, x, _over(s, text, x))


def arithmetic(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    word, text = s.choices.pick(ARITHMETIC)
    return s.step(word, x, _over(s, text, x))


def with_parameter(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    word, name, text = s.choices.pick(_WITH_PARAMETER)
    return s.step(word, x, _over(s, text, x, p=s.parameter(name, x.along_channel)))


def with_input(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    """Another input of the same shape, or of one that is broadcast."""
    word, name, text = s.choices.pick(_WITH_INPUT)
    one = Size("1", 1)
    shape = x.shape
    match s.choices.weighted(((6, "whole"), (2, "channel"), (2, "batch"))):
        case "channel" if x.last > x.channel:
            shape = tuple(one if dim > x.channel else size for dim, size in enumerate(x.shape))
        case "batch" if x.last > 0:
            shape = (one, *x.shape[1:])
    return s.step(word, x, _over(s, text, x, y=s.input(name, shape)))


def masked(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    word, text = s.choices.pick(_MASKED)
    mask = s.input("mask", x.shape, "torch.rand({}) < 0." + str(s.choices.pick((2, 3, 5, 7))))
    return s.step(word, x, _over(s, text, x, y=mask))


def gated_halves(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Half of the channels gates the other half."""
    if x.channels.value % 32:
        return None
    word, text = s.choices.pick(
        (
            ("glu", "F.glu({x}, dim={n})"),
            ("swiglu", "F.silu({a}) * {b}"),
            ("geglu", "F.gelu({a}) * {b}"),
            ("reglu", "F.relu({a}) * {b}"),
            ("tanh_halves", "torch.tanh({a}) * torch.sigmoid({b})"),
            ("bilinear", "{a} * {b}"),
        )
    )
    if "{a}" in text:
        s.steps.append(f"first, second = {x.name}.chunk(2, dim={x.channel})")
    return s.step(word, x.resized(x.channel, x.channels.over(2)), _over(s, text, x, n=str(x.channel), a="first", b="second"))


def self_gate(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    """A value times a function of its mean: squeeze and excitation without layers."""
    places = [*range(x.channel + 1, x.last + 1)] or [x.last]
    dims = f"({', '.join(map(str, places))})" if len(places) > 1 else str(places[0])
    gate = s.choices.pick(("torch.sigmoid({})", "torch.tanh({})", "F.hardsigmoid({})", "F.silu({})"))
    mean = s.choices.pick(("{x}.mean(dim={n}, keepdim=True)", "{x}.amax(dim={n}, keepdim=True)"))
    return s.step("self_gate", x, f"{x.name} * {gate.format(mean.format(x=x.name, n=dims))}")


POINTWISE: tuple[tuple[int, Step], ...] = (
    (8, activation),
    (5, arithmetic),
    (4, with_parameter),
    (4, with_input),
    (1, masked),
    (2, gated_halves),
    (1, self_gate),
)
