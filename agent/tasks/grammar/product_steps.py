"""Matrix products, convolutions and attention, as layers or between tensors."""

from cudal2_agent.agent.tasks.grammar.sizes import Size
from cudal2_agent.agent.tasks.grammar.sketch import DrawnTensor, Sketch

_WIDTHS = (64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 3072, 4096)
_MOST_FLOPS = 1 << 37


def _width(s: Sketch, x: DrawnTensor, most: int = 4096) -> int:
    """Channels of a product whose operations stay within the limit, and whose result has at most 2^26 elements."""
    rows = x.elements // x.channels.value
    fits = [w for w in _WIDTHS if w <= most and 2 * rows * x.channels.value * w <= _MOST_FLOPS and rows * w <= 1 << 26]
    return s.choices.pick(fits or _WIDTHS[:1])


def linear(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Over the last dimension."""
    if x.maps:
        return None
    out = s.dim(s.choices.pick(("hidden", "out_features", "units")), _width(s, x))
    bias = s.choices.pick(("", "", ", bias=False"))
    layer = s.layer("linear", f"nn.Linear({x.channels.text}, {out.text}{bias})")
    return s.step("linear", x.resized(x.channel, out), f"{layer}({x.name})")


def convolution(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Of 1 to 3 dimensions: plain, pointwise, dilated, strided, in groups, or by channel."""
    if not x.maps:
        return None
    number = x.last - 1
    kind = s.choices.pick(("plain", "plain", "pointwise", "dilated", "strided", "groups", "depthwise", "unpadded"))
    size = {"pointwise": 1, "dilated": 3}.get(kind, s.choices.pick((3, 3, 5, 7) if number < 3 else (3,)))
    if kind == "depthwise":
        out = x.channels
    else:
        taps = size**number
        fits = [w for w in _WIDTHS if w <= 512 and 2 * x.elements * w * taps <= _MOST_FLOPS]
        out = s.dim("out_channels", s.choices.pick(fits or _WIDTHS[:1]))
    options = {"dilated": ", dilation=2", "strided": ", stride=2", "groups": ", groups=4"}.get(kind, "")
    if kind == "groups" and (x.channels.value % 32 or out.value % 32):
        return None
    if kind == "depthwise":
        options = f", groups={x.channels.text}"
    padding = 0 if kind == "unpadded" else (2 if kind == "dilated" else size // 2)
    options += f", padding={padding}" if padding else ""
    options += s.choices.pick(("", "", ", bias=False"))
    layer = s.layer("conv", f"nn.Conv{number}d({x.channels.text}, {out.text}, {size}{options})")
    y = x.resized(1, out)
    for dim in range(2, x.last + 1):
        place = x.shape[dim]
        if kind == "strided":
            place = (
                place.over(2) if place.value % 2 == 0 else Size(f"({place.plus(-1).text}) // 2 + 1", (place.value - 1) // 2 + 1)
            )
        elif kind == "unpadded":
            place = place.plus(1 - size)
        if place.value < 2:
            return None
        y = y.resized(dim, place)
    word = {"plain": "conv", "unpadded": "conv"}.get(kind, f"{kind}_conv")
    return s.step(f"{word}{number}d", y, f"{layer}({x.name})")


def transposed_convolution(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Doubles the places, or keeps them."""
    if not x.maps or x.elements > 1 << 23:
        return None
    number, doubles = x.last - 1, s.choices.chance(0.6)
    size = 2 if doubles else 3
    fits = [w for w in _WIDTHS if w <= 256 and 2 * x.elements * w * size**number <= _MOST_FLOPS]
    out = s.dim("out_channels", s.choices.pick(fits or _WIDTHS[:1]))
    options = ", stride=2" if doubles else ", padding=1"
    layer = s.layer("up", f"nn.ConvTranspose{number}d({x.channels.text}, {out.text}, {size}{options})")
    y = x.resized(1, out)
    for dim in range(2, x.last + 1):
        y = y.resized(dim, x.shape[dim].times(2 if doubles else 1))
    return s.step(f"conv_transpose{number}d", y, f"{layer}({x.name})")


def tensor_product(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """With another input: plain, transposed, or of batches."""
    if x.maps or x.last not in (1, 2):
        return None
    width = s.dim("columns", _width(s, x, 2048))
    batch = x.shape[:-2]
    word, shape, text = s.choices.pick(
        (
            ("matmul", (*batch, x.channels, width), "torch.matmul({x}, {y})"),
            ("matmul_transposed", (*batch, width, x.channels), "torch.matmul({x}, {y}.transpose(-1, -2))"),
            ("matmul_shared", (x.channels, width), "{x} @ {y}"),
        )
    )
    y = s.input("weights", shape)
    return s.step(word, x.resized(x.channel, width), text.format(x=x.name, y=y))


def similarity(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Products of all pairs of rows, as in attention without its values."""
    if x.maps or x.last != 2 or x.shape[1].value > 1024:
        return None
    other = s.input("keys", x.shape)
    scale = s.choices.pick(("{} / 8.0", "0.125 * ({})", "{}"))
    text = scale.format(f"{x.name} @ {other}.transpose(1, 2)")
    return s.step("similarity", x.resized(2, x.shape[1]), text)


def attention(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Of one or several heads: fused, or written out with a scale, a mask or a bias."""
    if x.maps or x.last != 2 or x.channels.value % 64 or x.shape[1].value > 1024:
        return None
    tokens, width = x.shape[1], x.channels
    heads = s.dim("heads", s.choices.pick((2, 4, 8)))
    project = s.choices.chance(0.6)
    if project:
        s.steps.append(f"q, k, v = {s.layer('qkv', f'nn.Linear({width.text}, 3 * {width.text})')}({x.name}).chunk(3, dim=-1)")
        names = ("q", "k", "v")
    else:
        names = (x.name, s.input("keys", x.shape), s.input("values", x.shape))
    for kept, each in zip("qkv", names, strict=True):
        s.steps.append(f"{kept} = {each}.unflatten(-1, ({heads.text}, -1)).transpose(1, 2)")
    match s.choices.pick(("fused", "causal", "written", "masked", "biased", "relu")):
        case "fused":
            s.step("attention", x, "F.scaled_dot_product_attention(q, k, v)")
        case "causal":
            s.step("causal_attention", x, "F.scaled_dot_product_attention(q, k, v, is_causal=True)")
        case kind:
            scores = "scores = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)"
            s.steps.append(scores)
            if kind == "masked":
                mask = s.input("mask", (x.shape[0], Size("1", 1), Size("1", 1), tokens), "torch.rand({}) < 0.2")
                s.steps.append(f"scores = scores.masked_fill({mask}, -1e4)")
            elif kind == "biased":
                s.steps.append(f"scores = scores + {s.parameter('bias', (heads, tokens, tokens))}")
            weights = "(F.relu(scores) / scores.shape[-1])" if kind == "relu" else "F.softmax(scores, dim=-1)"
            s.step(f"{kind}_attention", x, f"{weights} @ v")
    s.steps.append(f"{x.name} = {x.name}.transpose(1, 2).flatten(2)")
    return x
