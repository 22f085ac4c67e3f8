"""Draws the shapes by which unaligned rows and shapes off the grid are judged: `drawn_shapes.json`.

Run from the repository's root: python -m benchmarks.speed.drawn_shapes
Eighty products have rows that are no multiples of 16 bytes, sixteen of each kind; fifty have aligned rows and lie off the grid.
Of each kind one half is for tuning; by the other half nothing may be tuned. A shape is M x N x K with its layout.
"""

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import execute, script, write_json
from benchmarks.speed.grid import apart, grid_shapes
from cudal2_agent.contract.records.task import GemmTask, Layout

SEED, EACH, ALIGNED = 45, 16, 50
SHAPES = Path(__file__).with_name("drawn_shapes.json")
# Of public models, none a multiple of 8: GPT-2, RoBERTa, Whisper, BERT, CamemBERT, LLaMA with a padding token, XLM-R, mBART.
VOCABULARIES = (50257, 50265, 51865, 30522, 32005, 32001, 250002, 250027)
HIDDEN = (768, 1024, 1280, 2048, 4096)
# Which size the rows of each operand have, and sizes that leave one operand alone unaligned: that of A, B and D, or D with B.
ODD_SIZE: Mapping[Layout, str] = {Layout.NN: "k", Layout.TN: "n", Layout.NT: "m"}


def draw() -> dict[str, object]:
    """Kinds of shapes, each in two halves."""
    rng = random.Random(SEED)
    kinds: dict[str, Callable[[int], str]] = {
        "compute-bound, all rows odd": lambda at: _named(rng, at, (1024, 6144), (1024, 6144), (1024, 6144), odd="mnk"),
        "one odd operand": lambda at: _named(rng, at, (256, 8192), (256, 8192), (256, 8192), odd=ODD_SIZE[_layout(at)]),
        "rows of 4 or 8 bytes": lambda at: _in_words(rng, at),
        "vocabularies": lambda at: _vocabulary(rng, at),
        "M up to 64": lambda at: _named(rng, at, (1, 64), (512, 16384), (512, 16384), odd="mnk"),
    }
    found = {name: _halves([make(at) for at in range(EACH)]) for name, make in kinds.items()}
    known = {*grid_shapes(), *apart()}
    aligned: list[str] = []
    while len(aligned) < ALIGNED:
        shape = _named(rng, len(aligned), (1, 8192), (64, 16384), (64, 16384))
        aligned += [shape] if shape.split()[0] not in known else []
    return {"seed": SEED, "unaligned": found, "aligned": _halves(aligned)}


def _halves(shapes: list[str]) -> dict[str, list[str]]:
    """Every second one is held out, but for the layouts, which take turns of three."""
    return {"tuning": shapes[::2], "held_out": shapes[1::2]}


def _layout(at: int) -> Layout:
    return list(Layout)[at % 3]


def _size(rng: random.Random, limits: tuple[int, int], step: int, rest: int = 0) -> int:
    """Log-uniform, `rest` above a multiple of `step`."""
    low, high = (math.log(limit) for limit in limits)
    return max(int(math.exp(rng.uniform(low, high))) // step * step, step if rest == 0 else 0) + rest


def _named(rng: random.Random, at: int, m: tuple[int, int], n: tuple[int, int], k: tuple[int, int], odd: str = "") -> str:
    """The sizes in `odd` are odd, the others multiples of 8; M of an aligned product in which it is no row is free."""
    layout, limits = _layout(at), {"m": m, "n": n, "k": k}
    free = {"m"} if layout is not Layout.NT and not odd else set()
    sizes = [
        _size(rng, limits[name], 2, 1) if name in odd else _size(rng, limits[name], 1 if name in free else 8)
        for name in ("m", "n", "k")
    ]
    return f"{'x'.join(map(str, sizes))} {layout.value}"


def _in_words(rng: random.Random, at: int) -> str:
    step = 2 if at % 4 < 2 else 4
    sizes = [_size(rng, (256, 6144), 8, rng.choice((step, 8 - step))) for _ in range(3)]
    return f"{'x'.join(map(str, sizes))} {_layout(at).value}"


def _vocabulary(rng: random.Random, at: int) -> str:
    """The last product of a language model: nn, or tn with the weight as it is stored."""
    tokens = _size(rng, (1, 8192 if VOCABULARIES[at % 8] < 100_000 else 512), 1)
    return f"{tokens}x{VOCABULARIES[at % 8]}x{rng.choice(HIDDEN)} {('nn', 'tn')[at // 8]}"


def shapes() -> dict[str, object]:
    """The committed shapes."""
    return dict(json.loads(SHAPES.read_text(encoding="utf-8")))


def task_of(named: str) -> GemmTask:
    shape, layout = named.split()
    m, n, k = map(int, shape.split("x"))
    return GemmTask(m=m, n=n, k=k, layout=Layout(layout))


def main() -> None:
    script(__file__, __doc__).parse_args()
    write_json(SHAPES, draw())


if __name__ == "__main__":
    execute(main)
