"""The process that traces: it loads torch once, and forks a jailed child for each problem file, and for each check of a task.

Covered: the file runs in a process of its own, which opens no file outside libraries and its scratch folder, no connection,
and starts no process; memory, time and the size of the answer are limited. Problems never meet each other.
Not covered: a file can answer in the tracer's place. What comes back is data, which the parent checks as such.
"""

import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.sandbox.jail.entering import NOT_JAILED, Jail, enter
from cudal2_agent.sandbox.modules.tracing.deeds import Deeds
from cudal2_agent.sandbox.modules.tracing.problem import FILE
from cudal2_agent.sandbox.modules.tracing.trace_messages import (
    ANSWER,
    MAX_ANSWER_BYTES,
    CheckRequest,
    SoundnessFound,
    TracedModule,
    TraceRequest,
    Untraceable,
)
from cudal2_agent.sandbox.workers import forking
from cudal2_agent.sandbox.workers.confined import limit

MISSING = 4  # no torch here
_MOST_CHARS = 600
_MOST_LOG_CHARS = 20_000
_PAGE = resource.getpagesize()


def serve() -> int:
    """Load torch and what it loads later, then trace one problem after another until stdin ends."""
    try:
        from cudal2_agent.sandbox.modules.tracing.tracing import prepare
    except (ImportError, OSError) as exc:
        print(exc, file=sys.stderr)
        return MISSING
    prepare()
    return forking.serve(work)


def work(request: dict[str, Any]) -> int:
    """Answer a request in the jail, and leave the answer in the scratch folder."""
    trace = "trace" in request
    asked = TraceRequest.model_validate(request["trace"]) if trace else CheckRequest.model_validate(request["check"])
    size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE if sys.platform == "linux" else 0
    forking.set_limits(request | {"memory_bytes": None})
    limit(resource.RLIMIT_AS, size_bytes + asked.memory_bytes if size_bytes else None)
    try:
        enter(Jail.from_request(request["jail"]), network=False, programs=False)
    except OSError as exc:
        print(f"error: this process cannot be jailed: {exc}", file=sys.stderr)
        return NOT_JAILED
    deeds = Deeds(FILE)
    deeds.watch()
    answer = _answer(asked, deeds) if isinstance(asked, TraceRequest) else _checked(asked)
    deeds.active = False
    text = answer.model_dump_json()
    if len(text) > MAX_ANSWER_BYTES:
        text = Untraceable(reason=f"its graph takes more than {MAX_ANSWER_BYTES >> 20} MiB").model_dump_json()
    Path(ANSWER).write_text(text, encoding="utf-8")
    return 0


def _answer(asked: TraceRequest, deeds: Deeds) -> TracedModule | Untraceable:
    from cudal2_agent.sandbox.modules.tracing.tracing import trace

    try:
        found: TracedModule | Untraceable = trace(asked)
    except UsageError as exc:
        found = Untraceable(reason=str(exc)[:_MOST_CHARS])
    except MemoryError:
        found = Untraceable(reason=f"the problem file needs more than {asked.memory_bytes >> 20} MiB of memory")
    except SystemExit:
        found = Untraceable(reason="the problem file ends its process (sys.exit)")
    except BaseException as exc:  # noqa: BLE001 (whatever the file raises is about the file)
        found = Untraceable(reason=_told(exc), log="".join(traceback.format_exception(exc))[-_MOST_LOG_CHARS:])
    if deeds.told:
        return Untraceable(reason=f"the problem file tried to {deeds.told}; it may only compute")
    return found


def _checked(asked: CheckRequest) -> SoundnessFound | Untraceable:
    from cudal2_agent.sandbox.modules.soundness import check

    try:
        return SoundnessFound(soundness=check(asked.task, asked.seed))
    except (ValueError, RuntimeError, MemoryError) as exc:  # operations that the values do not suit
        return Untraceable(reason=f"wrong programs could not be tried: {_told(exc).partition(': ')[2]}"[:_MOST_CHARS])


def _told(error: BaseException) -> str:
    """One line: where in the file, and what."""
    kind, message = type(error).__name__, " ".join(str(error).split())
    if "alloc" in message and "memory" in message:
        message = "it needs more memory than a trace may use"
    if kind == "ModuleNotFoundError":
        message += "; install the package beside this one"
    places = [(frame.lineno, frame.line) for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    where = f"line {places[-1][0]}" if places else "torch.export"
    if kind in ("DataDependentOutputException", "GuardOnDataDependentSymNode", "UserError", "DynamicOutputShapeException"):
        return f"{where}: what the module computes depends on values of a tensor, which cannot be traced"
    return f"{where}: {kind}: {message}"[:_MOST_CHARS]


if __name__ == "__main__":
    sys.exit(serve())
