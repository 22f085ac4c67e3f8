"""The linear layers of eight public language models, as shapes of a campaign: what a shipped library is to serve.

    python -m benchmarks.library.model_layers --out layers.json
    cudal2-agent campaign run --shapes layers.json --element bf16 --name layers

Sizes are those of the published configurations. Weights are as serving engines hold them, with queries, keys and values in one
and gate and up in one, or as transformers holds them; whole and in halves for two GPUs (--parallel). A weight that several
models have counts for each of them. To add a model, add a row to MODELS.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import execute, script, write_text
from cudal2_agent.agent.campaign.shapes import RecordedProduct, ShapeFile
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Layout

ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WHOLE, HALVES = 1, 2  # GPUs that share a weight


class PublicModel(NamedTuple):
    """Sizes of a decoder layer: `heads` of queries, `kv_heads` of keys and of values, each of `head` elements.

    `bias`: whether the projections to queries, keys and values add one.
    """

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    bias: bool = False


MODELS = (
    PublicModel("Llama-3.2-3B", hidden=3072, inner=8192, heads=24, kv_heads=8, head=128),
    PublicModel("Llama-3.1-8B", hidden=4096, inner=14336, heads=32, kv_heads=8, head=128),
    PublicModel("Llama-3.1-70B", hidden=8192, inner=28672, heads=64, kv_heads=8, head=128),
    PublicModel("Qwen2.5-7B", hidden=3584, inner=18944, heads=28, kv_heads=4, head=128, bias=True),
    PublicModel("Qwen3-8B", hidden=4096, inner=12288, heads=32, kv_heads=8, head=128),
    PublicModel("Qwen3-32B", hidden=5120, inner=25600, heads=64, kv_heads=8, head=128),
    PublicModel("Gemma-2-9B", hidden=3584, inner=14336, heads=16, kv_heads=8, head=256),
    PublicModel("Mistral-Small-24B", hidden=5120, inner=32768, heads=32, kv_heads=8, head=128),
)


class Weight(NamedTuple):
    """A weight as it is stored: N outputs of K inputs."""

    n: int
    k: int
    bias: bool = False


def weights(model: PublicModel, parallel: int, *, joined: bool) -> Iterator[Weight]:
    """The weights of a layer on one of `parallel` GPUs. `joined`: as serving engines hold them.

    Outputs of the first product of a pair are shared out, and inputs of the second. A bias is added once, by the former.
    """
    queries, values = model.heads * model.head // parallel, model.kv_heads * model.head // parallel
    inner = model.inner // parallel
    first = (queries + 2 * values,) if joined else (queries, values)
    yield from (Weight(n, model.hidden, model.bias) for n in first)
    yield Weight(model.hidden, queries)
    yield Weight(2 * inner if joined else inner, model.hidden)
    yield Weight(model.hidden, inner)


def shape_file(models: Sequence[PublicModel], parallel: Sequence[int], rows: Sequence[int], *, joined: bool) -> ShapeFile:
    """Each product once, counted by the models that have it."""
    counts: dict[Weight, int] = {}
    for model in models:
        for weight in {one for gpus in parallel for one in weights(model, gpus, joined=joined)}:
            counts[weight] = counts.get(weight, 0) + 1
    return ShapeFile(
        products=tuple(
            RecordedProduct(m=m, n=one.n, k=one.k, layout=Layout.TN.value, part="forward", count=count, bias=one.bias)
            for one, count in sorted(counts.items())
            for m in rows
        )
    )


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of shapes")
    parser.add_argument("--models", default=",".join(one.name for one in MODELS), help="names with commas; default: all eight")
    parser.add_argument("--parallel", type=int, choices=(WHOLE, HALVES), nargs="+", default=[WHOLE, HALVES])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="M")
    parser.add_argument("--single", action="store_true", help="weights as transformers holds them")
    options = parser.parse_args()
    known = {one.name: one for one in MODELS}
    if unknown := [name for name in options.models.split(",") if name not in known]:
        raise UsageError(f"--models {unknown[0]!r} is not known; choose from {', '.join(known)}")
    models = [known[name] for name in options.models.split(",")]
    found = shape_file(models, options.parallel, options.rows, joined=not options.single)
    write_text(options.out, found.model_dump_json() + "\n")
    print(f"{len(found.products)} products in {options.out}")


if __name__ == "__main__":
    execute(main)
