"""The card of a data set: README.md with the front matter that the Hugging Face hub and `datasets` read."""

import json
from collections.abc import Mapping
from typing import Any

from cudal2_agent.policies.chat.prompts.quoting import inline
from cudal2_agent.policies.exports.columns import Columns, hub_features
from cudal2_agent.policies.exports.counts import REASONS, ExportSummary
from cudal2_agent.policies.exports.formats import ExportOptions
from cudal2_agent.policies.exports.samples import OWN_LICENCE

_PURPOSE = {
    "sft": "Prompts with verified kernels as completions, for supervised fine-tuning (TRL `SFTTrainer`).",
    "preference": "Pairs of answers to one prompt with different rewards (TRL `DPOTrainer`).",
    "kto": "Single answers labelled good or bad (TRL `KTOTrainer`).",
    "grpo": "Prompts with the task and reference times, for on-line training with a reward function (TRL `GRPOTrainer`).",
    "groups": "All answers to a prompt with rewards and advantages, for off-line policy gradients.",
    "contrastive": "Answers to prompts that show scored kernels of different buckets, as in CUDA-L1 (arXiv 2507.14111).",
    "parquet": "All steps as a flat table.",
}
_REWARD = """\
`reward` is 1.5 · tanh(ln(s) / 1.5), where s is the median of the paired speedups over cuBLASLt-AutoTuning, measured in the
same rounds. What is not verified (rejected, not compiled, crashed, timed out, wrong) has -2. `gap_closed` is the share of the
gap between cuBLASLt-AutoTuning and the roofline that was closed, from -1 to 1. A null reward is withheld: nothing was measured,
or no second witness confirmed a kernel that a model wrote. It is neither bad nor 0, and no row of a format that needs a reward
has one. Kernels of two environments (chip, driver, toolkit, cuBLAS) are never compared in a pair or a group.
"""
_LICENCE = f"""\
Kernels that the schedule policy wrote are under {OWN_LICENCE}, the licence of cudal2-agent. Prompts show the device primitives
of cudal2-agent ({OWN_LICENCE}), and may quote CUTLASS (BSD-3-Clause, Copyright NVIDIA CORPORATION & AFFILIATES). For code and
text that a language model wrote, the terms of that model apply. `licence` in the provenance says which of these a row needs.
"""


def render_card(summary: ExportSummary, columns: Columns, options: ExportOptions) -> str:
    """The card as Markdown. Values of the front matter are JSON, which is YAML too."""
    front = "\n".join(f"{name}: {json.dumps(value)}" for name, value in _front_matter(summary, columns).items())
    parts = [
        f"---\n{front}\n---",
        f"# GEMM kernels as training data: {summary.format}",
        f"{_PURPOSE[summary.format]} Written by cudal2-agent; its page docs/guide/training.md describes the columns.",
        "## Rows\n\n" + _rows(summary),
        "## Splits\n\n" + _splits(summary, options),
        "## Left out\n\n" + _left_out(summary),
        "## Rewards\n\n" + _REWARD.strip(),
        "## Environments\n\n" + _table("environment", "candidates", summary.environments),
        "## Versions\n\n" + _table("package", "versions", {name: ", ".join(v) for name, v in summary.versions.items()}),
        "## Licence\n\n" + _LICENCE + (f"\n{_table('licence', 'candidates', summary.licences)}" if summary.licences else ""),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _front_matter(summary: ExportSummary, columns: Columns) -> dict[str, Any]:
    suffix = "parquet" if summary.format == "parquet" else "jsonl"
    splits = [split for split, rows in summary.rows.items() if rows] or ["train"]  # readers refuse an empty file
    files = [{"split": split, "path": f"{split}.{suffix}"} for split in splits]
    return {
        "license": _hub_licences(summary),
        "task_categories": ["text-generation"],
        "tags": ["cuda", "gemm", "gpu-kernels", "code", f"cudal2-{summary.format}"],
        "pretty_name": f"GEMM kernels by cudal2-agent ({summary.format})",
        "size_categories": [_size(sum(summary.rows.values()))],
        "configs": [{"config_name": "default", "data_files": files}],
        "dataset_info": {"features": hub_features(columns)},
    }


def _hub_licences(summary: ExportSummary) -> list[str]:
    """The hub's identifiers. Terms of models and other licences are `other`."""
    text = " ".join(summary.licences)
    found = [OWN_LICENCE.lower()]
    found += ["bsd-3-clause"] if "BSD-3-Clause" in text else []
    return found + (["other"] if "terms of" in text or "its own licence" in text else [])


def _size(rows: int) -> str:
    bounds = (("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6), ("1M<n<10M", 10**7))
    return next((name for name, bound in bounds if rows < bound), "10M<n<100M")


def _rows(summary: ExportSummary) -> str:
    rows = {split: f"{count} rows, {summary.shapes.get(split, 0)} shapes" for split, count in summary.rows.items()}
    policies = ", ".join(f"{inline(name)} ({count} steps)" for name, count in summary.policies.items())
    return f"From {summary.runs} runs with {summary.steps} steps by the policies {policies}.\n\n" + _table(
        "split", "holds", rows
    )


def _splits(summary: ExportSummary, options: ExportOptions) -> str:
    if not options.test_share and not options.test_shapes:
        return "There is one split."
    listed = f" and {len(options.test_shapes)} listed shapes" if options.test_shapes else ""
    leaked = summary.left_out.get("leaked", 0)
    return (
        f"A shape (M, N, K), or a module at all its sizes, is in one split as a whole: {options.test_share:.0%} of them by "
        f"a hash with seed {options.seed}{listed} are for testing. {leaked} rows for training that named a test shape were "
        "left out."
    )


def _left_out(summary: ExportSummary) -> str:
    counted = {said: summary.left_out.get(reason, 0) for reason, said in REASONS.items()}
    return _table("what", "number", counted)


def _table(left: str, right: str, rows: Mapping[str, object]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *lines])


def _cell(value: object) -> str:
    return inline(str(value)).replace("|", "\\|")
