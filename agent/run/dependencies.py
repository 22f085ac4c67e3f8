"""The parts that a run needs. Tests put doubles in their place."""

from collections.abc import Callable
from dataclasses import dataclass

from cudal2_agent.agent.observe.observation import Explain
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols import Policy, Sandbox, TrajectoryStore
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.knowledge import Retriever
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import Profile

Diagnose = Callable[[Built, Task, Chip, Evaluation, Profile | None], Diagnosis]


@dataclass(frozen=True)
class Dependencies:
    """The parts of one run. The caller that opened them closes them."""

    sandbox: Sandbox
    policy: Policy
    retriever: Retriever
    store: TrajectoryStore
    diagnose: Diagnose
    explain: Explain
