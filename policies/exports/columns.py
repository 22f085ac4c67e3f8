"""The columns of each format with their types: for the dataset card, so that readers need not guess them, and for Parquet."""

from typing import Any

from cudal2_agent.policies.exports.formats import ExportOptions
from cudal2_agent.policies.exports.samples import Provenance
from cudal2_agent.policies.exports.task_columns import TASK

# The name of a scalar type, a list of one type, or a struct of named types.
Column = str | list[Any] | dict[str, Any]
Columns = dict[str, Column]

_MESSAGES: Column = [{"role": "string", "content": "string"}]
_PROVENANCE: Columns = {
    name: "int64" if field.annotation is int else "string" for name, field in Provenance.model_fields.items()
}
_EARNED: Columns = {
    "reward": "float64",
    "gap_closed": "float64",
    "speedup": "float64",
    "outcome": "string",
    "provenance": _PROVENANCE,
}
_SCORES: Columns = {"shape": "string", **_EARNED}
# Records as JSON text. `hits`: what was retrieved; `seen_profile`: of the candidate that the prompt's diagnosis is of.
_RECORDS = (
    *("schedule", "plan", "evaluation", "diagnosis", "profile", "exchange"),
    *("hits", "seen_profile", "seconds", "versions"),
)
PARQUET: Columns = {
    "run_id": "string",
    "index": "int64",
    "round": "int64",
    "created_at": "timestamp[us, tz=UTC]",
    "policy": "string",
    "model": "string",
    "seed": "int64",
    "shape": "string",
    **TASK,
    "chip": "string",
    "environment": "string",
    "cutlass": "string",
    "candidate_id": "string",
    "observation_id": "string",
    "latest": "bool",
    "status": "string",
    "fault": "string",
    "verified": "bool",
    **dict.fromkeys(("reward", "gap_closed", "speedup", "time_us", "baseline_us", "predicted_us", "roofline_us"), "float64"),
    "source": "string",
    **dict.fromkeys(_RECORDS, "string"),
}

_TRAINERS: dict[str, Columns] = {
    "sft": {"prompt": _MESSAGES, "completion": _MESSAGES, **_SCORES},
    "preference": {
        "prompt": _MESSAGES,
        "chosen": _MESSAGES,
        "rejected": _MESSAGES,
        "shape": "string",
        **{f"chosen_{name}": kind for name, kind in _EARNED.items()},
        **{f"rejected_{name}": kind for name, kind in _EARNED.items()},
    },
    "kto": {"prompt": _MESSAGES, "completion": _MESSAGES, "label": "bool", **_SCORES},
    "grpo": {
        "prompt": _MESSAGES,
        "shape": "string",
        **TASK,
        "chip": "string",
        "environment": "string",
        **dict.fromkeys(("roofline_us", "baseline_us", "best_us", "best_reward", "mean_reward", "best_gap_closed"), "float64"),
        "provenance": _PROVENANCE,
    },
    "groups": {
        "prompt": _MESSAGES,
        "completions": ["string"],
        **{name: ["float64"] for name in ("rewards", "gap_closed", "advantages", "advantages_z")},
        "outcomes": ["string"],
        "shape": "string",
        "provenance": [_PROVENANCE],
    },
    "contrastive": {
        "prompt": _MESSAGES,
        "completion": _MESSAGES,
        "exemplars": ["string"],
        "buckets": ["int64"],
        **_SCORES,
    },
    "parquet": PARQUET,
}


def columns_of(format: str, options: ExportOptions) -> Columns:
    """The columns of a format in the order in which its rows have them."""
    if format == "sft" and options.messages:
        return {"messages": _MESSAGES, **_SCORES}
    return _TRAINERS[format]


def hub_features(columns: Columns) -> list[dict[str, Any]]:
    """The columns as a dataset card declares them (`dataset_info.features`)."""
    return [{"name": name, **_hub(column)} for name, column in columns.items()]


def _hub(column: Column) -> dict[str, Any]:
    match column:
        case str():
            return {"dtype": column}
        case dict():
            return {"struct": hub_features(column)}
        case [dict() as struct]:
            return {"list": hub_features(struct)}
        case _:
            return {"list": column[0]}
