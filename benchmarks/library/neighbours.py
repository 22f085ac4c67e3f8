"""Whether a kernel of the library also serves other M: entries lent to random neighbours, and the rule judged by them.

    python -m benchmarks.library.neighbours lend --out lent.jsonl.gz
    cudal2-agent library prepare --library lent.jsonl.gz
    python -m benchmarks.library shapes --library lent.jsonl.gz --shapes $(python -m benchmarks.library.neighbours shapes lent.jsonl.gz) --out FOLDER
    python -m benchmarks.library.neighbours rows lent.jsonl.gz FOLDER/shapes.json --out ROWS
    python -m benchmarks.library.neighbours judge ROWS

`lend` needs no GPU. Each entry's schedule is written anew for other M, between half and twice its own, and for nothing else.
`lend --allowed` keeps only what the rule lends, so that with another `--seed` a fresh run judges it.
`judge` prints what was measured by how far M is from the entry's. Below it stands what the rule of `cudal2/dispatch` serves, and
what it would serve with other thresholds. Both halves of the products are told, divided by N and K. Without ROWS it reads the
rows of the H200.
"""  # noqa: E501  # the third command is one line

import argparse
import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks import harness
from cudal2.dispatch.padded_m_rule import margin, shipped_rule
from cudal2.library.kernel_library import open_library, shipped_paths
from cudal2_agent.agent.library.entry_source import source_sha256
from cudal2_agent.agent.library.library_writing import manifest_of, write_library
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import Layout
from cudal2_agent.policies.schedule.families.registry import written

ROWS = Path(__file__).parents[1] / "results" / "h200_library_lent_2026-11-23.json"
SEED, OCTAVES = 1823, 1.0
SLOW = 0.98
RATIOS = (("M to 0.7 of the entry's", 0.0, 0.7), ("0.7 to 1", 0.7, 1.0), ("1 to 1.4", 1.0, 1.4), ("1.4 and more", 1.4, 9.0))
THRESHOLDS = (0.9, 0.95, 1.0, 1.05)
_HEAD = ("products", "count", "wholly above 1", "wholly below 1", f"below {SLOW}", "least", "geometric mean")


class LentProduct(Record):
    """A product that another M's kernel ran. `entry_m`: the M that it was chosen for, `entry_low`: lower end of its speedup
    over AutoTuning there. `ratio`, `low`, `high`: torch.mm's time over that of the lent kernel. Unit: microseconds.
    """

    shape: str
    entry_m: int
    entry_low: float
    family: str
    plain_us: float
    served_us: float
    ratio: float
    low: float
    high: float

    @property
    def m(self) -> int:
        return int(self.shape.partition("x")[0])

    @property
    def distance(self) -> float:
        return self.m / self.entry_m

    @property
    def second(self) -> bool:
        """To which half it belongs. Products of one N and K are in one half."""
        return hashlib.sha256(self.shape.partition("x")[2].encode()).digest()[0] % 2 == 1

    def allowed(self, least: float) -> bool:
        return _allowed(self.m, self.entry_m, self.entry_low, least)


def _allowed(m: int, entry_m: int, low: float, least: float) -> bool:
    return m < entry_m and margin(low, m, entry_m) >= least


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


def joined(entries: Sequence[LibraryEntry], origins: dict[str, int], rows: Sequence[dict[str, Any]]) -> Iterator[LentProduct]:
    """Measured rows with what their kernels were chosen for, which a lent entry still says. Rows that ran nothing are left."""
    of_shape = {entry.task.shape: entry for entry in entries}
    for row in rows:
        if row["served"]:
            entry = of_shape[row["shape"]]
            yield LentProduct(
                entry_m=origins[row["shape"]],
                entry_low=round(entry.evaluation.speedup.low, 4),
                family=str((entry.schedule or {})["family"]),
                **{name: row[name] for name in ("shape", "plain_us", "served_us", "ratio", "low", "high")},
            )


def table(products: Sequence[LentProduct]) -> str:
    """Markdown: all products by how far M is from the entry's, then what thresholds of the rule allow of each half."""
    lines = []
    for name, low, high in RATIOS:
        lines.append(_cells(name, [one for one in products if low < one.distance <= high]))
    for half in (False, True):
        for least in THRESHOLDS:
            held = [one for one in products if one.second is half and one.allowed(least)]
            lines.append(_cells(f"{'second' if half else 'first'} half, low · m / M at least {least}", held))
    return "\n".join(harness.table(_HEAD, lines))


def _cells(name: str, products: Sequence[LentProduct]) -> tuple[object, ...]:
    above, below = sum(one.low > 1.0 for one in products), sum(one.high < 1.0 for one in products)
    ratios = [one.ratio for one in products]
    least, mean = (f"{min(ratios):.3f}", f"{geometric_mean(ratios):.3f}") if ratios else ("-", "-")
    return name, len(ratios), above, below, sum(one < SLOW for one in ratios), least, mean


def _lend(options: argparse.Namespace) -> None:
    library = open_library(options.library)
    own = [entry for entry in library if entry.task.layout is Layout.NN and entry.wins and entry.schedule is not None]
    drawn = random.Random(options.seed).sample(own, min(options.entries, len(own)))
    found = list(lent(drawn, options.each, options.seed))
    if options.allowed:
        least = shipped_rule().least
        found = [(entry, m) for entry, m in found if _allowed(entry.task.m, m, entry.evaluation.speedup.low, least)]
    made = sorted((entry for entry, _ in found), key=lambda entry: entry.id)
    manifest = manifest_of(tuple(made), name="lent", chip=library.manifest.chip)
    write_library(options.out, manifest, tuple(made))
    origins = {entry.task.shape: m for entry, m in found}
    options.out.with_name("lent_from.json").write_text(json.dumps(origins), encoding="utf-8")
    print(f"{len(made)} products of {len(drawn)} entries")


def _shapes(options: argparse.Namespace) -> None:
    print(" ".join(entry.task.shape for entry in open_library(options.library)))


def _rows(options: argparse.Namespace) -> None:
    library = open_library(options.library)
    origins = json.loads(options.library.with_name("lent_from.json").read_text("utf-8"))
    measured = json.loads(options.rows.read_text("utf-8"))
    products = list(joined(list(library), origins, measured["rows"]))
    said = {name: measured[name] for name in ("command", "gpu", "torch")}
    said["entries_measured"] = sorted({entry.evaluation.environment for entry in library})
    lines = ",\n".join(one.model_dump_json() for one in products)
    options.out.write_text(f'{json.dumps(said)[:-1]}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(products)} of {len(measured['rows'])} products ran a lent kernel")


def read_products(path: Path) -> list[LentProduct]:
    return [LentProduct.model_validate(row) for row in json.loads(path.read_text("utf-8"))["rows"]]


def _judge(options: argparse.Namespace) -> None:
    print(table(read_products(options.rows)))


def main() -> None:
    parser = harness.script(__file__, __doc__)
    commands = parser.add_subparsers(required=True)
    lend = commands.add_parser("lend", help="write a library of entries for other M")
    lend.add_argument("--library", type=Path, default=shipped_paths()[0], help="default: the one that ships for the H200")
    lend.add_argument("--entries", type=int, default=120)
    lend.add_argument("--each", type=int, default=2, help="other M of each entry")
    lend.add_argument("--seed", type=int, default=SEED)
    lend.add_argument("--allowed", action="store_true", help="only what the rule of dispatch lends")
    lend.add_argument("--out", type=Path, required=True)
    lend.set_defaults(run=_lend)
    shapes = commands.add_parser("shapes", help="print the products of such a library")
    shapes.add_argument("library", type=Path)
    shapes.set_defaults(run=_shapes)
    rows = commands.add_parser("rows", help="keep what was measured of them in one file")
    rows.add_argument("library", type=Path)
    rows.add_argument("rows", type=Path)
    rows.add_argument("--out", type=Path, required=True)
    rows.set_defaults(run=_rows)
    judge = commands.add_parser("judge", help="what the rule is worth")
    judge.add_argument("rows", type=Path, nargs="?", default=ROWS)
    judge.set_defaults(run=_judge)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    harness.execute(main)
