"""A task of either kind as columns: what the other kind has is null."""

import json
from typing import Any

from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask

# Names with their types.
TASK: dict[str, str] = {
    "kind": "string",
    **dict.fromkeys(("m", "n", "k"), "int64"),
    **dict.fromkeys(("bias", "gated"), "bool"),
    **dict.fromkeys(
        ("element", "accumulate", "layout", "activation", "problem", "dims", "arithmetic", "arch", "mode"), "string"
    ),
}


def task_columns(task: Task) -> dict[str, Any]:
    """The columns of `TASK`. `dims`: JSON. A module is traced again from its problem, dims and arithmetic."""
    own = task.model_dump(mode="json", include=set(TASK))
    end = {"bias": task.bias, "gated": task.gated} if isinstance(task, GemmTask) else {}
    return dict.fromkeys(TASK) | own | end | ({"dims": json.dumps(own["dims"])} if "dims" in own else {})
