"""The folder of generated tasks: `level1/12_conv2d_gelu.py` and so on, and what was found of every draw.

It has the form of a collection, so that `drawn-7:1/12` names a task of one in `tasks/` of the home folder.
"""

from collections.abc import Iterable
from pathlib import Path

from cudal2_agent.agent.tasks.generation import Accepted, DrawRow
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.whole_file import whole_file

DRAWS = "draws.jsonl"


class TaskFolder:
    """`draws`: the file that holds the rows of all draws."""

    def __init__(self, path: Path) -> None:
        """Raises: UsageError for a folder of something else."""
        self.path, self.draws = path, path / DRAWS
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is no folder; name another one with --out")
        if path.is_dir() and not self.draws.is_file() and any(path.iterdir()):
            raise UsageError(f"{path} holds files that were not generated; name another folder with --out")
        self._written = {int(file.name.partition("_")[0]): file for file in _problems(path)}

    def require_seed(self, rows: Iterable[DrawRow], seed: int) -> None:
        """Raises: UsageError where the rows of earlier calls are of another seed."""
        if other := next((row for row in rows if row.seed != seed), None):
            raise UsageError(f"{self.path} holds tasks of seed {other.seed}; name another folder with --out")

    def write(self, task: Accepted) -> Path:
        """The task as a file, in the place of another one of its number. Raises: UsageError."""
        file = self.path / f"level{task.drawn.level}" / f"{task.number}_{task.drawn.name}.py"
        old = self._written.get(task.number)
        try:
            if old != file or file.read_text("utf-8") != task.drawn.text:
                file.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(file) as place:
                    place.write_text(task.drawn.text, "utf-8")
            if old is not None and old != file:
                old.unlink()
        except OSError as exc:
            raise UsageError(f"{file} cannot be written ({exc.strerror}); name another folder with --out") from exc
        self._written[task.number] = file
        return file


def _problems(path: Path) -> Iterable[Path]:
    return (file for file in path.glob("level*/*_*.py") if file.name.partition("_")[0].isdigit())
