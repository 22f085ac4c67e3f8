"""From a built candidate to a kernel that the emulator can run."""

import os
import tempfile
from pathlib import Path

from cudal2_agent.contract.plan.plan import LaunchPlan, ResolvedPlan
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.sandbox.building.compile_child import PTX
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel


class NotEmulated(Exception):
    """A candidate that the emulator cannot execute, in words for its record."""


def require_torch() -> None:
    """Import torch, which takes seconds, in a process that may write no file: what torch imports asks for a temporary folder.

    Raises: NotEmulated where torch is not installed.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = os.sep
    try:
        import torch  # noqa: F401
    except ImportError as exc:
        raise NotEmulated(f"modules are proved with PyTorch, which cannot be imported here: {exc}") from exc


def plan_of(built: Built) -> LaunchPlan:
    """Raises: NotEmulated."""
    if not isinstance(built.candidate, Candidate):
        raise NotEmulated("a host candidate launches its kernels itself, which takes a GPU")
    return built.candidate.plan


def load_kernel(built: Built, plan: ResolvedPlan, task: Task) -> EmulatedKernel:
    """A built candidate's programs, from the PTX beside its cubin. Raises: Unsupported, PtxError, LaunchRefused."""
    ptx = Path(built.artifact_path).with_name(PTX).read_text(encoding="utf-8", errors="replace")
    return EmulatedKernel(built.candidate.id, ptx, plan, task, atomics=plan_of(built).atomics)
