"""What one proposer of `benchmarks.language_model.stages` gains over another, paired by shape, as a Markdown table.

Run from the repository's root:
    python -m benchmarks.language_model.gains benchmarks/results/NAME --page docs/training/language_model.md
The folder is the OUT of the stages, with a file per proposer in `proposals`. Unit: that of `Scored.value`, a logarithm of a
speedup. Intervals are 95 % and draw the shapes again. A shape counts where both values are known.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.h200.marked_page import between, fill, table_row
from cudal2_agent.agent.bench.proposals.estimates import estimate
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.lm.proposal_worth import ProposalComparison

MARKS = between("benchmarks.language_model.gains")
PAIRS = (
    ("contrastive", "sft"),
    ("grpo", "contrastive"),
    ("sft, constrained", "sft"),
    ("contrastive, constrained", "sft, constrained"),
    ("grpo, constrained", "contrastive, constrained"),
    ("grpo, constrained", "grpo"),
    ("grpo", "analytic prior"),
)

Values = Mapping[str, Sequence[float | None]]  # by shape, in the order of the proposals; None where nothing is known


def read_values(folder: Path) -> dict[str, Values]:
    """By proposer. Raises: UsageError."""
    files = sorted((folder / "proposals").glob("*.json"))
    if not files:
        raise UsageError(f"{folder} has no proposals; name a folder that benchmarks.language_model.stages wrote")
    rows = [row for file in files for row in ProposalComparison.model_validate_json(file.read_bytes()).proposals]
    found: dict[str, dict[str, Sequence[float | None]]] = {}
    for row in rows:
        found.setdefault(row.proposer, {})[row.shape] = row.values
    return dict(found)


def table(values: Mapping[str, Values]) -> Iterator[str]:
    yield table_row("proposals of", "over", "first", "all", "best")
    yield "|---" * 5 + "|"
    for one, other in PAIRS:
        if one in values and other in values:
            yield table_row(one, other, *_gains(values[one], values[other]))


def _gains(one: Values, other: Values) -> Iterator[str]:
    for kind in (_first, _mean, _best):
        pairs = [(kind(values), kind(other[shape])) for shape, values in one.items() if shape in other]
        gains = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        found = estimate(gains) if gains else None
        yield f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})" if found else "—"


def _first(values: Sequence[float | None]) -> float | None:
    return values[0] if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    return fmean(known) if (known := _known(values)) else None


def _best(values: Sequence[float | None]) -> float | None:
    return max(_known(values), default=None)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.language_model.gains",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, help="a page whose table is replaced")
    options = parser.parse_args()
    text = "".join(f"{line}\n" for line in table(read_values(options.folder)))
    if options.page:
        fill(options.page, MARKS, text)
    print(text, end="")


if __name__ == "__main__":
    main()
