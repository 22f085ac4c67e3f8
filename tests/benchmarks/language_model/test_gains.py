"""What a stage of `train lm` gains over the one before: invented proposals, and the committed ones in their page."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.h200.marked_page import filled
from benchmarks.language_model.gains import MARKS, main, read_values, table
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.lm.proposal_worth import ProposalComparison, TaskProposals

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks/results/h200_language_model_2026-11-24_grpo"


def write(folder: Path, proposer: str, values: dict[str, Sequence[float | None]]) -> None:
    (folder / "proposals").mkdir(exist_ok=True)
    rows = tuple(
        TaskProposals(proposer=proposer, shape=shape, values=tuple(own), bases=("measured",) * len(own), valid=0, distinct=0)
        for shape, own in values.items()
    )
    comparison = ProposalComparison(chip="H200", seed=0, figures=(), proposals=rows)
    (folder / "proposals" / f"{proposer}.json").write_text(comparison.model_dump_json())


def test_gains_are_paired_by_shape(tmp_path: Path) -> None:
    write(tmp_path, "sft", {"64x64x64": (0.0, 0.1), "64x64x128": (-2.0, 0.0)})
    write(tmp_path, "contrastive", {"64x64x128": (-1.5, 0.5), "64x64x64": (0.5, 0.6), "64x64x256": (9.0, 9.0)})
    [_, _, row] = table(read_values(tmp_path))
    gain = "+0.500 (+0.500 to +0.500)"
    assert row == f"| contrastive | sft | {gain} | {gain} | {gain} |"


def test_values_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "sft", {"64x64x64": (None, 0.1), "64x64x128": (None, None)})
    write(tmp_path, "contrastive", {"64x64x64": (0.3, None), "64x64x128": (1.0, 1.0)})
    [_, _, row] = table(read_values(tmp_path))
    gain = "+0.200 (+0.200 to +0.200)"
    assert row == f"| contrastive | sft | — | {gain} | {gain} |", "no first value of sft is known"


def test_the_page_has_the_table_of_the_committed_proposals() -> None:
    page = (ROOT / "docs/training/language_model.md").read_text(encoding="utf-8")
    assert filled(page, MARKS, "".join(f"{line}\n" for line in table(read_values(FOLDER)))) == page


def test_a_folder_without_proposals_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gains", str(tmp_path)])
    with pytest.raises(UsageError, match="has no proposals"):
        main()
