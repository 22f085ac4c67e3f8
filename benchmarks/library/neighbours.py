"""Whether a kernel of the library also serves other M: entries lent to random neighbours, and the rule that follows.

    python -m benchmarks.library.neighbours lend --out lent.jsonl.gz
    cudal2-agent library prepare --library lent.jsonl.gz
    python -m benchmarks.library shapes --library lent.jsonl.gz --shapes $(python -m benchmarks.library.neighbours shapes lent.jsonl.gz) --out FOLDER
    python -m benchmarks.library.neighbours judge lent.jsonl.gz FOLDER/shapes.json

`lend` needs no GPU. Each entry's schedule is written anew for other M, between half and twice its own, and for nothing else.
`judge` divides the entries by their N and K into two halves. One half gives the rule: for each class of M the widest band of
ratios in which no product is below 0.98 and at most 2.5 % are wholly below 1. The other half judges it.
"""  # noqa: E501  # the third command is one line

import argparse
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from agent.library.entry_source import source_sha256
from agent.library.library_writing import manifest_of, write_library
from contract.library import LibraryEntry
from contract.task import Layout
from cudal2.library.kernel_library import open_library
from cudal2.library.shipped_libraries import shipped_paths
from policies.schedule.families.registry import written

SEED, OCTAVES = 1823, 1.0
LEAST, MAX_BELOW = 0.98, 0.025
CLASSES = ((1, 128), (129, 512), (513, 2048), (2049, 1 << 30))  # M of the entry
MIN_PRODUCTS = 8  # of a band


class LentProduct(NamedTuple):
    """A product that another M's kernel ran. `entry_m`: the M that the kernel was chosen for; `times`: a row of the shapes."""

    m: int
    entry_m: int
    n: int
    k: int
    times: dict[str, Any]

    @property
    def distance(self) -> float:
        return self.m / self.entry_m

    @property
    def judging(self) -> bool:
        """Whether it belongs to the half that judges. Entries of one N and K are in one half."""
        return hashlib.sha256(f"{self.n}x{self.k}".encode()).digest()[0] % 2 == 1


class Band(NamedTuple):
    """M over the entry's M from `low` to `high`, for entries of an M from `min_m` to `max_m`."""

    min_m: int
    max_m: int
    low: float
    high: float

    def holds(self, one: LentProduct) -> bool:
        return self.min_m <= one.entry_m <= self.max_m and self.low <= one.distance <= self.high


def lent(entries: Sequence[LibraryEntry], each: int, seed: int = SEED) -> Iterator[tuple[LibraryEntry, int]]:
    """Entries for other M, each with the M that its kernel was chosen for. No two are of one product."""
    rng, known = random.Random(seed), {(entry.task.m, entry.task.n, entry.task.k) for entry in entries}
    for entry in rng.sample(entries, len(entries)):
        for _ in range(each):
            m = max(1, round(entry.task.m * 2 ** rng.uniform(-OCTAVES, OCTAVES)))
            if (m, entry.task.n, entry.task.k) in known or entry.schedule is None:
                continue
            task = entry.task.model_copy(update={"m": m})
            with suppress(ValueError):  # not every schedule fits every M
                hash_ = source_sha256(written(entry.schedule, task))
                known.add((m, entry.task.n, entry.task.k))
                update = {"task": task, "source_sha256": hash_, "cubin_sha256": None}
                yield entry.model_copy(update=update), entry.task.m


def bands(products: Sequence[LentProduct]) -> list[Band]:
    """The widest band of each class of M that keeps what the library promises."""
    found = []
    for min_m, max_m in CLASSES:
        members = [one for one in products if min_m <= one.entry_m <= max_m]
        ends = sorted({one.distance for one in members})
        tried = [Band(min_m, max_m, low, high) for low in ends for high in ends if low <= high]
        kept = [(count, band) for band in tried if (count := sum(map(band.holds, members))) and _keeps(band, members)]
        if kept and max(kept)[0] >= MIN_PRODUCTS:
            found.append(max(kept)[1])
    return found


def _keeps(band: Band, products: Sequence[LentProduct]) -> bool:
    held = [one.times for one in products if band.holds(one)]
    below = sum(times["high"] < 1.0 for times in held)
    return all(times["ratio"] >= LEAST for times in held) and below <= MAX_BELOW * len(held)


def table(products: Sequence[LentProduct], rule: Sequence[Band]) -> str:
    """Markdown: both halves by how far M is from the entry's, then what the rule serves of each."""
    lines = ["| products | count | wholly above 1 | wholly below 1 | below 0.98 | least |", "|---|---|---|---|---|---|"]
    for name, low, high in (("M to 0.7", 0.0, 0.7), ("0.7 to 1", 0.7, 1.0), ("1 to 1.4", 1.0, 1.4), ("1.4 and more", 1.4, 9.0)):
        lines.append(_line(name, [one for one in products if low < one.distance <= high]))
    for name, judging in (("rule, half that gave it", False), ("rule, half that judges", True)):
        held = [one for one in products if one.judging is judging and any(band.holds(one) for band in rule)]
        lines.append(_line(name, held))
    return "\n".join(lines)


def _line(name: str, products: Sequence[LentProduct]) -> str:
    times = [one.times for one in products]
    above, below = sum(one["low"] > 1.0 for one in times), sum(one["high"] < 1.0 for one in times)
    least = f"{min(one['ratio'] for one in times):.3f}" if times else "-"
    return f"| {name} | {len(times)} | {above} | {below} | {sum(one['ratio'] < LEAST for one in times)} | {least} |"


def _lend(options: argparse.Namespace) -> None:
    library = open_library(options.library)
    own = [entry for entry in library if entry.task.layout is Layout.NN and entry.wins and entry.schedule is not None]
    drawn = random.Random(SEED).sample(own, min(options.entries, len(own)))
    made = sorted((entry for entry, _ in lent(drawn, options.each)), key=lambda entry: entry.id)
    manifest = manifest_of(tuple(made), name="lent", chip=library.manifest.chip)
    write_library(options.out, manifest, tuple(made))
    origins = {entry.task.shape: m for entry, m in lent(drawn, options.each)}
    options.out.with_name("lent_from.json").write_text(json.dumps(origins), encoding="utf-8")
    print(f"{len(made)} products of {len(drawn)} entries")


def _shapes(options: argparse.Namespace) -> None:
    print(" ".join(entry.task.shape for entry in open_library(options.library)))


def _judge(options: argparse.Namespace) -> None:
    origins = json.loads(options.library.with_name("lent_from.json").read_text("utf-8"))
    rows = json.loads(options.rows.read_text("utf-8"))["rows"]
    products = []
    for row in rows:
        m, n, k = map(int, row["shape"].split("x"))
        if row["served"]:
            products.append(LentProduct(m, origins[row["shape"]], n, k, row))
    rule = bands([one for one in products if not one.judging])
    print(table(products, rule))
    for band in rule:
        print(f"M of the entry {band.min_m} to {band.max_m}: {band.low:.3f} to {band.high:.3f} of it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    lend = commands.add_parser("lend", help="write a library of entries for other M")
    lend.add_argument("--library", type=Path, default=shipped_paths()[0], help="default: the one that ships for the H200")
    lend.add_argument("--entries", type=int, default=120)
    lend.add_argument("--each", type=int, default=2, help="other M of each entry")
    lend.add_argument("--out", type=Path, required=True)
    lend.set_defaults(run=_lend)
    shapes = commands.add_parser("shapes", help="print the products of such a library")
    shapes.add_argument("library", type=Path)
    shapes.set_defaults(run=_shapes)
    judge = commands.add_parser("judge", help="the rule, and what it is worth")
    judge.add_argument("library", type=Path)
    judge.add_argument("rows", type=Path)
    judge.set_defaults(run=_judge)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
