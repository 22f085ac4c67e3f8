"""The workbench: the tools that a model may use before it hands in a kernel."""

from typing import Protocol

from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation, Prediction
from cudal2_agent.contract.records.knowledge import Hit


class Workbench(Protocol):
    """Tools over one task, safe to call from several threads. `seconds`: what a call may take, waiting included.

    Raises: TimeoutError where a call takes longer; MachineError, WorkerError where this machine fails.
    """

    def compile(self, candidate: Candidate, seconds: float) -> Built | Evaluation:
        """The built candidate, or the evaluation that says why there is none."""
        ...

    def verify(self, candidate: Candidate, seconds: float) -> Evaluation:
        """The emulator's verdict: `Unmeasured` where the candidate is right, or could not be run, with the reason."""
        ...

    def predict(self, candidate: Candidate, seconds: float) -> Prediction | Evaluation:
        """The predicted time, or the evaluation of a candidate that cannot be built or is wrong."""
        ...

    def search(self, words: str, seconds: float) -> list[Hit]:
        """Hits of the knowledge base, best first; none without one."""
        ...
