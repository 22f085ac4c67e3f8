"""Draws products with a bias, as shapes of a campaign: layers of public models that add one, at rows that programs have.

    python -m benchmarks.library.biased_layers --out biased.json
    cudal2-agent campaign run --shapes biased.json --element bf16 --name biased

A model is drawn, then one of its layers, then M: few rows, as in decoding; whole sequences and images; or any number.
"""

import math
import random
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import execute, script, write_text
from cudal2_agent.agent.campaign.shapes import RecordedProduct, ShapeFile
from cudal2_agent.contract.records.task import Layout

COUNT, SEED = 100, 46
SEQUENCES = (77, 197, 256, 512, 577, 729, 1024, 1500, 2048)  # texts, images of 224 to 384 pixels, thirty seconds of speech
MOST_ROWS = 8192


class BiasedModel(NamedTuple):
    """`joined`: outputs of the product for queries, keys and values. `everywhere`: whether the other layers add a bias, too."""

    name: str
    hidden: int
    inner: int
    joined: int
    everywhere: bool = True

    def layers(self) -> list[tuple[int, int]]:
        """(N, K) of those that add a bias."""
        rest = [(self.hidden, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner)]
        return [(self.joined, self.hidden), *(rest if self.everywhere else [])]


def _equal_heads(name: str, hidden: int, inner: int | None = None) -> BiasedModel:
    return BiasedModel(name, hidden, inner or 4 * hidden, 3 * hidden)


MODELS = (
    _equal_heads("Whisper-tiny", 384),
    _equal_heads("Whisper-small, GPT-2, BERT-base, ViT-B", 768),
    _equal_heads("GPT-2-medium, BERT-large, ViT-L", 1024),
    _equal_heads("SigLIP-so400m", 1152, 4304),
    _equal_heads("Whisper-large, GPT-2-large, ViT-H", 1280),
    _equal_heads("GPT-2-xl", 1600),
    _equal_heads("Phi-2", 2560),
    _equal_heads("OPT-6.7B", 4096),
    BiasedModel("StarCoder2-3B", 3072, 12288, 3584),
    BiasedModel("StarCoder2-15B", 6144, 24576, 7168),
    BiasedModel("Qwen2.5-1.5B", 1536, 8960, 2048, everywhere=False),
    BiasedModel("Qwen2.5-7B", 3584, 18944, 4608, everywhere=False),
    BiasedModel("Qwen2.5-32B", 5120, 27648, 7168, everywhere=False),
    BiasedModel("Qwen2.5-72B", 8192, 29568, 10240, everywhere=False),
)


def draw(count: int = COUNT, seed: int = SEED) -> ShapeFile:
    """Unlike products, BF16 or F16 as the campaign says; the weight is stored as `torch.nn.Linear` has it."""
    rng, found = random.Random(seed), dict[tuple[int, int, int], RecordedProduct]()
    while len(found) < count:
        n, k = rng.choice(rng.choice(MODELS).layers())
        m = _rows(rng)
        found[m, n, k] = RecordedProduct(m=m, n=n, k=k, layout=Layout.TN.value, part="forward", count=1, bias=True)
    return ShapeFile(products=tuple(found.values()))


def _rows(rng: random.Random) -> int:
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randint(1, 64)
    if kind == 1:
        length = rng.choice(SEQUENCES)
        return length * rng.choice([batch for batch in (1, 2, 4, 8, 16) if batch * length <= MOST_ROWS])
    return int(math.exp(rng.uniform(math.log(65), math.log(MOST_ROWS))))


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of shapes")
    parser.add_argument("--count", type=int, default=COUNT, help="products")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    found = draw(options.count, options.seed)
    write_text(options.out, found.model_dump_json() + "\n")
    print(f"{len(found.products)} products in {options.out}")


if __name__ == "__main__":
    execute(main)
