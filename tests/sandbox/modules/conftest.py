"""One tracer for all tests: a process that loads torch takes seconds to start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.modules.tracing.tracer import TraceOptions, Tracer, open_tracer

PROBLEMS = Path(__file__).parent / "problems"
Traced = Callable[..., ModuleTask]


@pytest.fixture(scope="session")
def tracer() -> Iterator[Tracer]:
    with open_tracer(TraceOptions(timeout_s=120.0, memory_bytes=2 << 30)) as opened:
        yield opened


@pytest.fixture(scope="session")
def traced(tracer: Tracer) -> Traced:
    """The task of a file in `problems/`; arguments as of `Tracer.trace`."""
    return lambda name, **asked: tracer.trace((PROBLEMS / f"{name}.py").read_text("utf-8"), name, **asked)
