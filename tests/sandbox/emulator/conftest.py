"""Fixtures of the emulator's tests. Tests that need the core are skipped where it is not built."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.building import compile_in_this_process, leave_machine_code_unread

_NEEDS_CORE = ["test_*.py", "core/*", "kernels/*", "large/*", "lowering/*", "golden/test_replay.py", "golden/test_taint.py"]
collect_ignore_glob = [] if importlib.util.find_spec("cudal2_agent.sandbox.emulator._core") else _NEEDS_CORE


@pytest.fixture(scope="module", autouse=True)
def _quick_builds(kept_builds: Path) -> Iterator[None]:
    """The emulator runs PTX: neither the compiler's child nor the machine code is of interest here."""
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        leave_machine_code_unread(patch)
        yield
