"""Joins the real parts: the one place that knows which sandbox, retriever and store a setting stands for."""

from collections.abc import Iterator
from contextlib import contextmanager

from agent.index.default_index import open_retriever
from agent.run.dependencies import Dependencies
from agent.wiring.policy import open_policy
from agent.wiring.sandbox import open_sandbox_for
from contract.events import Emit
from contract.settings import Settings
from contract.task import GemmTask
from policies.trajectories.store import Store
from sandbox.diagnosis.diagnosis import diagnose_built
from sandbox.diagnosis.differences import explain


@contextmanager
def open_dependencies(task: GemmTask, settings: Settings, store: Store, run_id: str, emit: Emit) -> Iterator[Dependencies]:
    """Everything a run needs, checked before any work is done. `run_id`: under which its policy keeps what it asked.

    Raises: UsageError for a policy that cannot be or operands that do not fit, MachineError for a missing compiler or device.
    """
    # The sandbox before the index: whatever is wrong with task and machine is said before minutes go into it.
    with (
        open_policy(task, settings, store, run_id, emit) as policy,
        open_sandbox_for(task, settings, emit) as sandbox,
        open_retriever(settings, emit) as retriever,
    ):
        yield Dependencies(
            sandbox=sandbox, policy=policy, retriever=retriever, store=store, diagnose=diagnose_built, explain=explain
        )
