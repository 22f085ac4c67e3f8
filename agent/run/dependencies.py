"""The parts that a run needs. Tests put doubles in their place."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.observe.observation import Explain
from contract.build import Built
from contract.chip import Chip
from contract.diagnosis import Diagnosis
from contract.evaluation import Evaluation
from contract.knowledge import Retriever
from contract.profile import Profile
from contract.protocols import Policy, Sandbox, TrajectoryStore
from contract.task import GemmTask

Diagnose = Callable[[Built, GemmTask, Chip, Evaluation, Profile | None], Diagnosis]


@dataclass(frozen=True)
class Dependencies:
    """The parts of one run. The caller that opened them closes them."""

    sandbox: Sandbox
    policy: Policy
    retriever: Retriever
    store: TrajectoryStore
    diagnose: Diagnose
    explain: Explain
