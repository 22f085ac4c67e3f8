"""Steps over rows: norms, softmax, reductions, scans."""

from cudal2_agent.agent.tasks.grammar.pointwise_steps import Step
from cudal2_agent.agent.tasks.grammar.sizes import Size, written
from cudal2_agent.agent.tasks.grammar.sketch import DrawnTensor, Sketch

_EPSILON = "1e-5"


def layer_norm(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    """Over the last dimension, or over all dimensions behind the batch where these are small."""
    rest = x.shape[1:]
    size = 1
    for each in rest:
        size *= each.value
    over = rest if x.last > 1 and size <= 1 << 16 and s.choices.chance(0.3) else x.shape[-1:]
    shape = written(over) if len(over) == 1 else f"({written(over)})"
    affine = s.choices.pick(("", "", ", elementwise_affine=False"))
    return s.step("layer_norm", x, f"{s.layer('norm', f'nn.LayerNorm({shape}{affine})')}({x.name})")


def rms_norm(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    weight = s.parameter("weight", x.along_channel, "1.0 + 0.1 * ")
    mean = f"{x.name}.pow(2).mean(dim={x.channel}, keepdim=True)"
    return s.step("rms_norm", x, f"{x.name} * torch.rsqrt({mean} + {_EPSILON}) * {weight}")


def group_norm(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    if x.channels.value % 32 or not x.maps and x.last != 1:
        return None
    groups = s.choices.pick((2, 4, 4, 8))
    return s.step("group_norm", x, f"{s.layer('norm', f'nn.GroupNorm({groups}, {x.channels.text})')}({x.name})")


def batch_norm(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    if x.channel != 1:
        return None
    kind = f"BatchNorm{max(x.last - 1, 1)}d"
    return s.step("batch_norm", x, f"{s.layer('norm', f'nn.{kind}({x.channels.text})')}({x.name})")


def instance_norm(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    if not x.maps:
        return None
    affine = s.choices.pick(("", ", affine=True"))
    layer = s.layer("norm", f"nn.InstanceNorm{x.last - 1}d({x.channels.text}{affine})")
    return s.step("instance_norm", x, f"{layer}({x.name})")


def scaled_by_rows(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    """Norms that no layer has."""
    dim = s.choices.pick((x.channel, x.last))
    word, text = s.choices.pick(
        (
            ("normalize", "{x} * torch.rsqrt({x}.square().sum(dim={n}, keepdim=True) + 1e-6)"),
            ("l1_normalize", "{x} / ({x}.abs().sum(dim={n}, keepdim=True) + 1e-6)"),
            ("standardize", "({x} - {x}.mean(dim={n}, keepdim=True)) / ({x}.std(dim={n}, keepdim=True) + 1e-5)"),
            ("center", "{x} - {x}.mean(dim={n}, keepdim=True)"),
            ("max_scale", "{x} / ({x}.abs().amax(dim={n}, keepdim=True) + 1e-5)"),
            ("above_least", "{x} - {x}.amin(dim={n}, keepdim=True)"),
            ("variance_scale", "{x} * torch.rsqrt({x}.var(dim={n}, keepdim=True, unbiased=False) + 1e-3)"),
        )
    )
    return s.step(word, x, text.format(x=x.name, n=dim))


def softmax(s: Sketch, x: DrawnTensor) -> DrawnTensor:
    dim, heat = s.choices.pick((x.channel, x.last)), s.choices.pick((0.5, 2.0, 4.0))
    word, text = s.choices.pick(
        (
            ("softmax", "F.softmax({x}, dim={n})"),
            ("heated_softmax", "F.softmax({x} / {t}, dim={n})"),
            ("softmin", "F.softmax(-{x}, dim={n})"),
            ("log_softmax", "F.log_softmax({x}, dim={n})"),
            ("softmax_weighted", "{x} * F.softmax({x}, dim={n})"),
        )
    )
    return s.step(word, x, text.format(x=x.name, n=dim, t=heat))


_REDUCTIONS = (
    ("sum", "{x}.sum(dim={n}{k})"),
    ("mean", "{x}.mean(dim={n}{k})"),
    ("max", "{x}.amax(dim={n}{k})"),
    ("min", "{x}.amin(dim={n}{k})"),
    ("logsumexp", "torch.logsumexp({x}, dim={n}{k})"),
    ("norm", "torch.linalg.vector_norm({x}, dim={n}{k})"),
    ("variance", "{x}.var(dim={n}{k})"),
    ("deviation", "{x}.std(dim={n}{k})"),
    ("mean_square", "{x}.square().mean(dim={n}{k})"),
    ("mean_abs", "{x}.abs().mean(dim={n}{k})"),
    ("root_mean_square", "torch.sqrt({x}.square().mean(dim={n}{k}) + 1e-6)"),
    ("range", "{x}.amax(dim={n}{k}) - {x}.amin(dim={n}{k})"),
)


def reduction(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Over the channels, the places, the last dimension or all but the batch. At least the batch and another one stay."""
    if x.last < 2:
        return None
    word, text = s.choices.pick(_REDUCTIONS)
    wanted = s.choices.pick(((x.channel,), (x.last,), tuple(range(x.channel + 1, x.last + 1)) or (1,)))
    keeps = s.choices.chance(0.4)
    dims = str(wanted[0]) if len(wanted) == 1 else f"({', '.join(map(str, wanted))})"
    s.step(word, x, text.format(x=x.name, n=dims, k=", keepdim=True" if keeps else ""))
    if keeps:
        return x._replace(shape=tuple(Size("1", 1) if dim in wanted else size for dim, size in enumerate(x.shape)))
    shape = tuple(size for dim, size in enumerate(x.shape) if dim not in wanted)
    return DrawnTensor(x.name, shape, 1 if x.channel not in wanted and x.channel == 1 else len(shape) - 1)


def last_reduction(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """A reduction that ends a problem: of whole rows, or to an index or a count."""
    if x.last < 1:
        return None
    word, text = s.choices.pick(
        (
            *_REDUCTIONS,
            ("argmax", "torch.argmax({x}, dim={n}{k})"),
            ("argmin", "torch.argmin({x}, dim={n}{k})"),
            ("count", "({x} > 0.25).sum(dim={n}{k})"),
        )
    )
    dim = s.choices.pick((x.last, x.channel))
    if x.shape[dim].value < 8:
        return None
    s.step(word, x, text.format(x=x.name, n=dim, k=s.choices.pick(("", ", keepdim=True"))))
    return x


def scan(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    """Along the last dimension or along the steps of tokens."""
    dim = s.choices.pick((x.last, max(x.last - 1, 1)))
    if not 8 <= x.shape[dim].value <= 4096:
        return None
    word, text = s.choices.pick(
        (
            ("cumsum", "torch.cumsum({x}, dim={n})"),
            ("reverse_cumsum", "torch.flip(torch.cumsum(torch.flip({x}, dims=[{n}]), dim={n}), dims=[{n}])"),
            ("masked_cumsum", "torch.cumsum(F.relu({x}), dim={n})"),
            ("cumsum_of_squares", "torch.cumsum({x} ** 2, dim={n})"),
            ("decaying_product", "torch.cumprod(torch.sigmoid({x}), dim={n})"),
            ("running_gate", "{x} * torch.sigmoid(torch.cumsum({x}, dim={n}))"),
        )
    )
    return s.step(word, x, text.format(x=x.name, n=dim))


NORMS: tuple[tuple[int, Step], ...] = (
    (4, layer_norm),
    (3, rms_norm),
    (4, group_norm),
    (3, batch_norm),
    (2, instance_norm),
    (3, scaled_by_rows),
)


def norm(s: Sketch, x: DrawnTensor) -> DrawnTensor | None:
    return s.choices.weighted(NORMS)(s, x)
