"""Steps over maps and steps that move elements: pools, padding, resizing, permuting, joining."""

from cudal2_agent.agent.tasks.grammar.pointwise_steps import ACTIVATIONS, Step
from cudal2_agent.agent.tasks.grammar.sizes import Size, product
from cudal2_agent.agent.tasks.grammar.sketch import DrawnTensor, Sketch


def _places(x: DrawnTensor) -> range:
    return range(x.channel + 1, x.last + 1)


def _every_place(x: DrawnTensor, change: str, by: int) -> DrawnTensor:
    for dim in _places(x):
        size: Size = getattr(x.shape[dim], change)(by)
        x = x.resized(dim, size)
    return x


def pool(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Windows of 2 beside each other, or of 3 that overlap."""
    if not x.maps or min(x.shape[dim].value for dim in _places(x)) < 8:
        return None
    kind, number = s.choices.pick(("max", "avg")), x.last - 1
    if all(x.shape[dim].value % 2 == 0 for dim in _places(x)) and s.choices.chance(0.6):
        return s.step(f"{kind}_pool", _every_place(x, "over", 2), f"F.{kind}_pool{number}d({x.name}, 2)")
    return s.step(f"{kind}_pool", x, f"F.{kind}_pool{number}d({x.name}, 3, stride=1, padding=1)")


def pool_to_one(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """The mean or the maximum of every map, whose places are gone then."""
    if not x.maps:
        return None
    kind, text = s.choices.pick(
        (
            ("global_avg_pool", "F.adaptive_avg_pool{d}d({x}, 1).flatten(1)"),
            ("global_max_pool", "{x}.amax(dim={n})"),
            ("global_mean", "{x}.mean(dim={n})"),
        )
    )
    places = [*_places(x)]
    dims = f"({', '.join(map(str, places))})" if len(places) > 1 else str(places[0])
    s.step(kind, x, text.format(x=x.name, d=x.last - 1, n=dims))
    return DrawnTensor(x.name, x.shape[: x.channel + 1], x.channel)


def resize(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Places doubled, padded, or taken from channels."""
    if not x.maps or x.elements > 1 << 25:
        return None
    match s.choices.pick(("nearest", "pad", "shuffle", "crop")):
        case "nearest":
            text = f"F.interpolate({x.name}, scale_factor=2, mode='nearest')"
            return s.step("upsample", _every_place(x, "times", 2), text)
        case "pad":
            width = s.choices.pick((1, 2))
            sides = ", ".join([str(width)] * (2 * len(_places(x))))
            value = s.choices.pick(("", ", value=1.0"))
            return s.step("pad", _every_place(x, "plus", 2 * width), f"F.pad({x.name}, ({sides}){value})")
        case "shuffle" if x.last == 3 and x.channels.value % 32 == 0:
            wide = _every_place(x, "times", 2)
            return s.step("pixel_shuffle", wide.resized(1, x.channels.over(4)), f"F.pixel_shuffle({x.name}, 2)")
        case "crop" if min(x.shape[dim].value for dim in _places(x)) >= 16:
            cut = ", ".join(["1:-1"] * len(_places(x)))
            return s.step("crop", _every_place(x, "plus", -2), f"{x.name}[:, :, {cut}]")
    return None


def move(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Elements at other places, with the shape or transposed."""
    if x.last < 2:
        return None
    dim = s.choices.pick((x.last, x.channel))
    match s.choices.pick(("roll", "flip", "swap", "shift", "double", "flatten")):
        case "roll":
            return s.step("roll", x, f"torch.roll({x.name}, shifts={s.choices.pick((1, 2, -1))}, dims={dim})")
        case "flip":
            return s.step("flip", x, f"{x.name} + torch.flip({x.name}, dims=[{dim}])")
        case "swap":
            one, other = x.shape[1], x.shape[x.last]
            swapped = x.resized(1, other).resized(x.last, one)
            return s.step("transpose", swapped, f"{x.name}.transpose(1, {x.last}).contiguous()")
        case "shift" if x.last == 2:
            return s.step("difference", x, f"{x.name} - torch.roll({x.name}, shifts=1, dims={dim})")
        case "double" if x.elements <= 1 << 24:
            _, text = s.choices.pick(ACTIVATIONS[:7])
            joined = f"torch.cat([{x.name}, {text.format(x=x.name)}], dim={x.channel})"
            return s.step("concat", x.resized(x.channel, x.channels.times(2)), joined)
        case "flatten" if x.maps:
            places = product(*(x.shape[each] for each in _places(x)))
            moved = DrawnTensor(x.name, (x.shape[0], places, x.channels), 2)
            return s.step("to_tokens", moved, f"{x.name}.flatten(2).transpose(1, 2)")
    return None


MOVES: tuple[tuple[int, Step], ...] = ((4, pool), (1, pool_to_one), (2, resize), (2, move))
