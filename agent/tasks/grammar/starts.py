"""What a problem begins with: an input of a form, indices into a table, or predictions beside targets."""

from cudal2_agent.agent.tasks.grammar.sizes import Size
from cudal2_agent.agent.tasks.grammar.sketch import DrawnTensor, Sketch

_MAPS = {1: (256, 512, 1000, 1024, 2048, 4096), 2: (14, 16, 28, 32, 56, 64, 96, 112, 128), 3: (8, 12, 16, 24, 32)}
_PLACES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
_CHANNELS = (16, 32, 48, 64, 96, 128, 192, 256)
_WIDTHS = (64, 100, 128, 192, 256, 384, 500, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 8192)


def _batch(s: Sketch, per_sample: int, low: int, high: int, elements: tuple[int, int] = (20, 25)) -> Size:
    """A power of two, or three quarters of one, that gives about 2^20 to 2^25 elements."""
    wanted = (1 << s.choices.whole(*elements)) // per_sample
    size = 1 << max(wanted, 1).bit_length() - 1
    size = size * 3 // 4 if s.choices.chance(0.2) and size >= 64 else size
    return s.dim("batch_size", min(max(size, low), high))


def rows(s: Sketch, widths: tuple[int, ...] = _WIDTHS) -> DrawnTensor:
    width = s.choices.pick(widths)
    shape = (_batch(s, width, 16, 1 << 16), s.dim(s.choices.pick(("features", "in_features", "columns")), width))
    return DrawnTensor(s.input("x", shape, _values(s)), shape, 1)


def tokens(s: Sketch) -> DrawnTensor:
    width, count = s.choices.pick((64, 128, 192, 256, 384, 512, 768, 1024)), s.choices.pick((64, 128, 196, 256, 384, 512, 1024))
    batch = _batch(s, width * count, 2, 256)
    shape = (batch, s.dim(s.choices.pick(("tokens", "sequence")), count), s.dim(s.choices.pick(("width", "channels")), width))
    return DrawnTensor(s.input("x", shape, _values(s)), shape, 2)


def maps(s: Sketch, number: int) -> DrawnTensor:
    """`number`: of dimensions of a map, 1 to 3."""
    places = [s.choices.pick(_MAPS[number])] * number
    if number > 1 and s.choices.chance(0.2):
        places[0] = s.choices.pick(_MAPS[number])
    channels = s.choices.pick(_CHANNELS[:6] if number == 3 else _CHANNELS)
    size = channels
    for each in places:
        size *= each
    shape: tuple[Size, ...] = (_batch(s, size, 2, 256), s.dim(s.choices.pick(("channels", "in_channels")), channels))
    shape += tuple(s.dim(name, each) for name, each in zip(_PLACES[number], places, strict=True))
    return DrawnTensor(s.input("x", shape, _values(s)), shape, 1)


def embedded(s: Sketch) -> DrawnTensor:
    """Rows of a table, by indices."""
    width, count = s.choices.pick((64, 128, 256, 512)), s.choices.pick((32, 64, 128, 256, 512))
    shape = (_batch(s, width * count, 4, 1024, (19, 23)), s.dim("tokens", count))
    entries = s.dim("entries", s.choices.pick((1000, 4096, 10000, 32000)))
    indices = s.input("indices", shape, "torch.randint(0, " + entries.text + ", ({},))")
    table = s.layer("table", f"nn.Embedding({entries.text}, {(size := s.dim('width', width)).text})")
    x = DrawnTensor("x", (*shape, size), 2)
    s.step("embedding", x, f"{table}({indices})")
    if s.choices.chance(0.5):
        s.step("positions", x, f"x + {s.parameter('positions', (shape[1], size), '0.1 * ')}")
    return x


_ELEMENT_LOSSES = (
    ("mse", "(x - target) ** 2"),
    ("l1", "torch.abs(x - target)"),
    ("huber", "F.huber_loss(x, target, reduction='none', delta=0.{d})"),
    ("smooth_l1", "F.smooth_l1_loss(x, target, reduction='none', beta=0.{d})"),
    ("log_cosh", "F.softplus(-2.0 * (x - target)) + (x - target)"),
    ("logits", "F.softplus(x) - x * torch.sigmoid(target)"),
    ("poisson", "torch.exp(x) - target * x"),
    ("charbonnier", "torch.sqrt((x - target) ** 2 + 0.01)"),
    ("quantile", "torch.maximum(0.{d} * (x - target), (0.{d} - 1.0) * (x - target))"),
    ("focal", "(1.0 - torch.sigmoid(x)) ** 2 * F.softplus(-x * target)"),
    ("kl", "F.softmax(target, dim=-1) * (F.log_softmax(target, dim=-1) - F.log_softmax(x, dim=-1))"),
    ("cross_entropy", "-F.softmax(target, dim=-1) * F.log_softmax(x, dim=-1)"),
)
_CLASS_LOSSES = (
    ("cross_entropy", "torch.logsumexp(x, dim=1) - own"),
    ("likelihood", "torch.exp(own - torch.logsumexp(x, dim=1))"),
    ("smoothed_cross_entropy", "torch.logsumexp(x, dim=1) - 0.9 * own - 0.1 * x.mean(dim=1)"),
    ("focal_loss", "(1.0 - torch.exp(own - torch.logsumexp(x, dim=1))) ** 2 * (torch.logsumexp(x, dim=1) - own)"),
    ("margin", "F.relu(1.0 + x - own.unsqueeze(1)).mean(dim=1)"),
    ("hinge", "F.relu(0.5 + x.amax(dim=1) - own)"),
    ("brier", "F.softmax(x, dim=1).square().sum(dim=1) - 2.0 * torch.exp(own - torch.logsumexp(x, dim=1))"),
)
_ENDS = (
    "{}.sum(dim=-1)",
    "{}.mean(dim=-1)",
    "{}.mean()",
    "{}.sum(dim=-1).mean()",
    "{}.amax(dim=-1)",
    "torch.sqrt({}.mean(dim=-1) + 0.01)",
)


def loss(s: Sketch) -> DrawnTensor:
    """A loss of every row, or of all: against targets of the same shape, or against classes."""
    x = rows(s, _WIDTHS[:12])
    if s.choices.chance(0.2):
        target = s.input("target", x.shape[:1], "torch.randint(0, " + x.channels.text + ", ({},))")
        s.steps.append(f"own = x.gather(1, {target}.unsqueeze(1)).squeeze(1)")
        word, text = s.choices.pick(_CLASS_LOSSES)
        return s.step(f"class_{word}", x, s.choices.pick(("{}", "({}).mean()", "({}).sum()")).format(text))
    s.input("target", x.shape)
    word, text = s.choices.pick(_ELEMENT_LOSSES)
    text = text.format(d=s.choices.pick((1, 25, 5, 75)))
    if s.choices.chance(0.3):
        weight = s.input("weight", s.choices.pick((x.shape, x.shape[-1:])), "torch.rand({})")
        text = f"{weight} * ({text})"
        word = f"weighted_{word}"
    s.step(f"{word}_loss", x, s.choices.pick(_ENDS).format(f"({text})"))
    return x


def distance(s: Sketch) -> DrawnTensor:
    """Of rows to rows beside them, and what a margin makes of it."""
    x = rows(s, _WIDTHS[:12])
    one = s.input("positive", x.shape)
    word, text = s.choices.pick(
        (
            ("cosine", "(x * {p}).sum(dim=-1) * torch.rsqrt(x.square().sum(dim=-1) * {p}.square().sum(dim=-1) + 1e-6)"),
            ("dot", "(x * {p}).sum(dim=-1)"),
            ("euclid", "torch.linalg.vector_norm(x - {p}, dim=-1)"),
            ("manhattan", "torch.abs(x - {p}).sum(dim=-1)"),
            ("chebyshev", "torch.abs(x - {p}).amax(dim=-1)"),
            ("covariance", "((x - x.mean(dim=-1, keepdim=True)) * ({p} - {p}.mean(dim=-1, keepdim=True))).mean(dim=-1)"),
        )
    )
    first = text.format(p=one)
    if s.choices.chance(0.5):
        other = s.input("negative", x.shape)
        s.steps.append(f"near = {first}")
        s.steps.append(f"far = {text.format(p=other)}")
        end = s.choices.pick(("F.relu(near - far + {c})", "F.softplus(near - far)", "torch.sigmoid({c} * (far - near))"))
        s.step(f"{word}_triplet", x, end.format(c=s.choices.pick((0.5, 1.0, 2.0))))
    else:
        s.step(word, x, s.choices.pick(("{}", "1.0 - {}", "F.relu(1.0 - {})", "torch.exp(-{})")).format(first))
    return x


def _values(s: Sketch) -> str:
    return s.choices.weighted(((4, "torch.randn({})"), (1, "torch.rand({})")))
