"""Finished benches in a file, one JSON object a line, oldest first."""

from pathlib import Path

from pydantic import ValidationError

from cudal2_agent.agent.bench.models.bench_figures import BenchResult
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.whole_file import whole_file


def read_results(path: Path) -> list[BenchResult]:
    """Raises: UsageError for a file that cannot be read or has a line of another kind."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read: {reason}") from exc
    results = []
    for number, line in enumerate(lines, 1):
        try:
            results += [BenchResult.model_validate_json(line)] if line.strip() else []
        except ValidationError as exc:
            raise UsageError(f"{path}:{number} is not a result of model-bench") from exc
    return results


def append_result(path: Path, result: BenchResult) -> None:
    """Raises: UsageError where the file cannot be written."""
    results = [*(read_results(path) if path.exists() else []), result]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as place:
            place.write_text("".join(f"{one.model_dump_json()}\n" for one in results), encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}; choose another file with --results") from exc
