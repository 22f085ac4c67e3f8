"""What a folder of results holds of a module: the task, the plan in plain numbers, and the names of the files."""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.module_task import ModuleTask

STORED, PROBLEM, CUBIN = "module.json", "problem.py", "kernel.cubin"


class StoredModule(Record):
    """`form`: of this record; a program with another version of the project reads no other. `plan`: for `task` on one chip."""

    form: Literal[1] = 1
    task: ModuleTask
    plan: ResolvedPlan


def read_stored(folder: Path) -> StoredModule:
    """Raises: LibraryError for a folder that is damaged or of another version."""
    try:
        return StoredModule.model_validate_json((folder / STORED).read_bytes())
    except (OSError, ValidationError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is damaged, or of another version of the project"
        raise LibraryError(f"{folder / STORED} cannot be used: {reason}") from exc
