"""Starts the process that measures a published file, and reads its answer."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.sandbox.cuda.published.published_row import PublishedRequest, PublishedRow, row_of
from cudal2_agent.sandbox.workers.process import ChildExit, Limits, run

CHILD = "cudal2_agent.sandbox.cuda.published.published_child"
GRACE_S = 20.0  # beyond the child's own limit
BUILD_JOBS = 4
_TAIL = 400
_REQUEST, _ANSWER, _STAGE = "request.json", "answer.json", "stage"


def measure(request: PublishedRequest, caches: Mapping[str, str], builds: Path, python: str | None = None) -> PublishedRow:
    """The row of one file. `caches`: environment of cupy and torch; `builds`: where inline extensions are compiled and kept.

    A process that ends while it captures is started once more without a CUDA graph. Raises: WorkerError.
    """
    row = _attempt(request, caches, builds, python)
    if row.status == "failed" and row.message.startswith("rounds: ") and request.capture:
        again = _attempt(request.model_copy(update={"capture": False}), caches, builds, python)
        note = f"not captured in a CUDA graph: with one, {row.message}"
        return again.model_copy(update={"notes": (*again.notes, note)})
    return row


def _attempt(request: PublishedRequest, caches: Mapping[str, str], builds: Path, python: str | None) -> PublishedRow:
    extensions = builds.resolve() / digest(request.text)
    extensions.mkdir(parents=True, exist_ok=True)
    environment = {
        **caches,
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "TRITON_CACHE_DIR": str(extensions / "triton"),
        "MAX_JOBS": str(BUILD_JOBS),
        "TEARDOWN_CUPTI": "1",  # what counts kernels leaves nothing behind
    }
    with tempfile.TemporaryDirectory(prefix="cudal2-published-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        (scratch / _REQUEST).write_text(request.model_dump_json(), encoding="utf-8")
        limits = Limits(wall_s=request.limit_s + GRACE_S)
        command = [python or sys.executable, "-P", "-m", CHILD, _REQUEST, _ANSWER, _STAGE]
        ended = run(command, scratch=scratch, limits=limits, extra_environment=environment)
        answer, stage = scratch / _ANSWER, scratch / _STAGE
        if answer.is_file() and not answer.is_symlink():
            try:
                return PublishedRow.model_validate_json(answer.read_bytes())
            except ValidationError as exc:
                raise WorkerError(f"the answer about a published file cannot be read: {exc}") from exc
        reached = stage.read_text("utf-8") if stage.is_file() else "start"
    return row_of(request, "failed", f"{reached}: {_how(ended, request.limit_s)}")


def _how(ended: ChildExit, limit_s: float) -> str:
    if ended.timed_out or ended.seconds >= limit_s:
        return f"no end after {limit_s:g} s; --minutes allows more"
    said = " ".join(ended.stderr.decode(errors="replace").split())[-_TAIL:]
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    return f"its process ended ({how}): {said}"
