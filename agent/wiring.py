"""Joins the real parts: the one place that knows which sandbox, retriever and store a setting stands for."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from agent.default_index import open_retriever
from agent.parts import Parts
from agent.policy_choice import open_policy
from contract.events import Emit
from contract.settings import Settings
from contract.task import GemmTask
from policies.schedule.policy import predict
from policies.schedule.rewriting import rewrite
from policies.trajectories.store import Store
from sandbox.diagnosis import diagnose_built
from sandbox.headers import find_headers
from sandbox.local import LocalSandbox, open_sandbox
from sandbox.profiling.differences import explain
from sandbox.toolchain import nvrtc_version


@contextmanager
def open_parts(task: GemmTask, settings: Settings, store: Store, run_id: str, emit: Emit) -> Iterator[Parts]:
    """Everything a run needs, checked before any work is done. `run_id`: under which its policy keeps what it asked.

    Raises: UsageError for a policy that cannot be or operands that do not fit, MachineError for a missing compiler or device.
    """
    # The sandbox before the index: whatever is wrong with task and machine is said before minutes go into it.
    with (
        open_policy(task, settings, store, run_id, emit) as policy,
        open_box(task, settings, emit) as sandbox,
        open_retriever(settings, emit) as retriever,
    ):
        yield Parts(sandbox=sandbox, policy=policy, retriever=retriever, store=store, diagnose=diagnose_built, explain=explain)


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
            emulate=settings.emulate_options(),
            rewrite=rewrite,
        )
    ) as sandbox:
        yield sandbox
