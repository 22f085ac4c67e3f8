"""Joins the real parts: the one place that knows which policy, sandbox, retriever and store a setting stands for."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from agent.default_index import open_retriever
from agent.parts import Parts
from contract.errors import UsageError
from contract.events import Emit
from contract.protocols import Policy
from contract.settings import Settings
from contract.task import GemmTask
from policies.schedule.families import families
from policies.schedule.policy import SchedulePolicy, predict
from policies.trajectories.store import Store
from sandbox.diagnosis import diagnose
from sandbox.headers import find_headers
from sandbox.local import LocalSandbox, open_sandbox
from sandbox.toolchain import nvrtc_version

POLICIES = ("schedule",)


@contextmanager
def open_parts(task: GemmTask, settings: Settings, store: Store, emit: Emit) -> Iterator[Parts]:
    """Everything a run needs, checked before any work is done.

    Raises: UsageError for an unknown policy or operands that do not fit, MachineError for a missing compiler or device.
    """
    policy = make_policy(task, settings)
    # The sandbox first: whatever is wrong with task and machine is said before minutes go into an index.
    with open_box(task, settings, emit) as sandbox, open_retriever(settings, emit) as retriever:
        yield Parts(sandbox=sandbox, policy=policy, retriever=retriever, store=store, diagnose=diagnose)


@contextmanager
def open_box(task: GemmTask, settings: Settings, emit: Emit) -> Iterator[LocalSandbox]:
    """The sandbox for a task. Raises: CompilerMissing, DeviceUnavailable, UsageError."""
    nvrtc_version()
    find_headers()
    with closing(
        open_sandbox(
            task=task,
            device=settings.device,
            compile_options=settings.compile_options(),
            verify_options=settings.verify_options(settings.seed),
            quick=settings.time_options(settings.seed, full=False),
            full=settings.time_options(settings.seed, full=True),
            worker=settings.worker_options(),
            predict=predict,
            emit=emit,
            profile=settings.profile_options(),
        )
    ) as sandbox:
        yield sandbox


def make_policy(task: GemmTask, settings: Settings) -> Policy:
    """The policy that the settings name. Raises: UsageError."""
    if settings.policy != "schedule":
        raise UsageError(f"policy {settings.policy!r} is not known; choose from {', '.join(POLICIES)}")
    return SchedulePolicy(families(task.arch), seed=settings.seed)
