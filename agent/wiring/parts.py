"""Opens the real parts of a run, as the settings say."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from cudal2_agent.agent.index.default_index import open_retriever
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.wiring.policy import open_policy
from cudal2_agent.agent.wiring.run_workbench import RunWorkbench
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.protocols import Policy, Sandbox, Workbench
from cudal2_agent.contract.records.knowledge import Retriever
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built
from cudal2_agent.sandbox.diagnosis.differences import explain
from cudal2_agent.sandbox.local import require_memory
from cudal2_agent.store.store import Store


@contextmanager
def open_dependencies(
    task: Task,
    settings: Settings,
    store: Store,
    run_id: str,
    emit: Emit,
    author: Callable[[Workbench], Policy] | None = None,
) -> Iterator[Dependencies]:
    """Everything a run needs, checked before any work. `run_id`: the run in whose log the policy records its exchanges.

    `author`: makes a policy over the run's tools in place of the one that the settings name.

    Raises: UsageError for an impossible policy or operands that do not fit, MachineError for a missing compiler or device.
    """
    # The sandbox opens before the index, so that errors of task and machine appear before minutes of indexing.
    workbench = RunWorkbench(task)
    with (
        nullcontext(author(workbench)) if author else open_policy(task, settings, store, run_id, emit, workbench) as policy,
        open_sandbox_of(task.arch, settings, emit, baselines=store) as sandbox,
    ):
        require_memory(task, sandbox.chip)
        with open_retriever(settings, emit, build=policy.reads_code) as retriever:
            workbench.connect(sandbox, retriever)
            yield joined(sandbox, policy, retriever, store)


def joined(sandbox: Sandbox, policy: Policy, retriever: Retriever, store: Store) -> Dependencies:
    """Open parts as the dependencies of a run."""
    return Dependencies(
        sandbox=sandbox, policy=policy, retriever=retriever, store=store, diagnose=diagnose_built, explain=explain
    )
