"""How a product is divided among CTAs, and a CTA's tile among its threads: the axes of a product of our own."""

from typing import Literal

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.values import ProductValue

HALVES = (BufferElement.F16, BufferElement.BF16)

_THREADS, _SUMS = 512, 32768  # of an SM, at most: half of its registers hold sums
_REGISTERS, _BESIDE_DOUBLES = 65536, 88  # of an SM; of a thread, beside its sums in f64
_BESIDE_FILTERED, _MOST_REGISTERS = 62, 255  # of a thread, beside its sums of transformed numbers; of a thread
_SHARED_BYTES = 232_448  # of an SM


Kind = Literal["tile", "dmma", "mma", "wgmma", "winograd2d", "winograd3d"]


class SumTile(Record):
    """A CTA computes m x n of the result, k terms at a time.

    `split`: CTAs that share the terms, whose sums a second launch adds. `packed`: a launch before copies the weight of a
    convolution as its tiles are read, with the terms by tap.
    `tile`: in f32, a thread tm x tn of it. `dmma`: in f32 by matrix instructions in f64, which multiply exactly and at the rate
    of f32 on the chips that have them; a warp tm x tn of it. `mma`: the same in half precision.
    `wgmma`: by those of warpgroups, of which each computes tm x tn; operands are whole matrices.
    `winograd2d`, `winograd3d`: in f32 by minimal filtering, m channels of the result at n tiles of 2 outputs in each dimension;
    a thread tm x tn of one of their points.
    """

    kind: Kind = "tile"
    m: int
    n: int
    k: int
    tm: int
    tn: int
    split: int = 1
    packed: bool = False

    @property
    def threads(self) -> int:
        lanes = {"tile": 1, "dmma": 32, "mma": 32, "wgmma": 128}.get(self.kind, self.points)
        return self.m // self.tm * (self.n // self.tn) * lanes + (32 if self.kind == "wgmma" else 0)

    @property
    def points(self) -> int:
        """Of minimal filtering: products for each tile, channel and channel of the result; else 1."""
        return {"winograd2d": 16, "winograd3d": 64}.get(self.kind, 1)

    @property
    def filtering_bytes(self) -> int:
        """Of shared memory, of minimal filtering: two stages of transformed inputs and one of filters, or sums; a barrier."""
        stages = self.k * (2 * (self.points + 1) * self.n + self.points * self.m)
        together = self.m // self.tm * 4
        return 4 * max(stages, together * (self.points * (self.n + 4) + 4)) + 8

    @property
    def resident(self) -> int:
        """CTAs of an SM together, by the registers of their sums."""
        if self.kind == "wgmma":
            return 1
        sums = self.points * self.m * self.n // self.threads
        if self.points > 1:
            registers = self.threads * min(sums + _BESIDE_FILTERED, _MOST_REGISTERS)
            return max(min(_REGISTERS // registers, _SHARED_BYTES // (self.filtering_bytes + 1024)), 1)
        if self.kind == "dmma":
            return max(_REGISTERS // (self.threads * (2 * sums + _BESIDE_DOUBLES)), 1)
        return max(min(_THREADS, _SUMS // sums) // self.threads, 1)

    def text(self) -> str:
        words = [self.kind, f"{self.m}x{self.n}x{self.k}", f"{self.tm}x{self.tn}"]
        return " ".join(words + [f"s{self.split}"] * (self.split > 1) + ["packed"] * self.packed)

    @classmethod
    def parse(cls, text: str) -> "SumTile":
        """Raises: ValueError."""
        kind, tile, own, *others = text.split()
        m, n, k = map(int, tile.split("x"))
        tm, tn = map(int, own.split("x"))
        parts = next((int(word.removeprefix("s")) for word in others if word != "packed"), 1)
        axes = {"kind": kind, "m": m, "n": n, "k": k, "tm": tm, "tn": tn, "split": parts, "packed": "packed" in others}
        return cls.model_validate(axes)


TILES = tuple(
    SumTile(m=m, n=n, k=k, tm=tm, tn=tn)
    for m, n, k, tm, tn in (
        (128, 128, 8, 8, 8),
        (128, 128, 16, 8, 8),
        (64, 128, 8, 8, 8),
        (64, 128, 16, 8, 8),
        (128, 64, 8, 8, 8),
        (64, 64, 8, 8, 4),
        (48, 128, 8, 12, 4),
        (64, 64, 16, 4, 4),
        (32, 128, 8, 4, 8),
        (32, 64, 16, 4, 4),
        (16, 128, 8, 4, 4),
        (128, 32, 8, 8, 4),
    )
)
DOUBLE_TILES = tuple(
    SumTile(kind="dmma", m=m, n=n, k=k, tm=tm, tn=tn)
    for m, n, k, tm, tn in (
        (128, 128, 32, 64, 32),
        (128, 128, 16, 64, 32),
        (64, 128, 32, 32, 32),
        (64, 128, 32, 64, 32),
        (128, 64, 32, 64, 32),
        (64, 64, 32, 32, 32),
        (32, 128, 32, 32, 32),
        (128, 32, 32, 32, 32),
    )
)
MATRIX_TILES = tuple(
    SumTile(kind="mma", m=m, n=n, k=k, tm=tm, tn=tn)
    for m, n, k, tm, tn in (
        (128, 128, 32, 64, 32),
        (128, 256, 32, 64, 64),
        (256, 128, 32, 64, 64),
        (128, 128, 64, 64, 32),
        (64, 128, 32, 32, 32),
        (128, 64, 32, 32, 32),
        (64, 256, 32, 64, 32),
        (64, 64, 64, 32, 16),
        (32, 128, 32, 32, 16),
        (128, 32, 32, 32, 16),
        (16, 128, 64, 16, 16),
    )
)
WARPGROUP_TILES = tuple(SumTile(kind="wgmma", m=128, n=n, k=64, tm=64, tn=n) for n in (256, 128, 192, 64))
# A step has as many channels as there are threads for each tile of outputs.
WINOGRAD_TILES = {
    2: tuple(
        SumTile(kind="winograd2d", m=m, n=n, k=16 * m // tm // tn, tm=tm, tn=tn)
        for m, n, tm, tn in ((64, 32, 16, 8), (32, 64, 8, 16), (32, 32, 8, 8), (32, 32, 16, 8), (16, 64, 8, 8))
    ),
    3: tuple(
        SumTile(kind="winograd3d", m=m, n=n, k=64 * m // tm // tn, tm=tm, tn=tn)
        for m, n, tm, tn in ((24, 32, 12, 16), (16, 32, 8, 16), (24, 16, 12, 16), (16, 16, 8, 16))
    ),
}


def tile_kind(product: ProductValue) -> Literal["tile", "mma"] | None:
    """Of the tiles that can compute a product; None where its elements are of other types."""
    elements = {each.element for each in (*product.operands, product)}
    if elements == {BufferElement.F32}:
        return "tile"
    return "mma" if len(elements) == 1 and elements <= set(HALVES) else None
