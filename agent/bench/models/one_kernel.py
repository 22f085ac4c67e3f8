"""A policy that ends with its first right kernel: one candidate at a time, the first one and a number of repairs."""

from cudal2_agent.contract.protocols.protocols import Policy
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.trajectory import Observation


class OneKernel:
    """`contract.protocols.protocols.Policy` over another one. A round without a candidate uses up a repair."""

    reads_code = True

    def __init__(self, policy: Policy, repairs: int) -> None:
        self._policy, self._repairs = policy, repairs
        self.name = policy.name
        self.exhausted = ""

    def propose(self, observation: Observation, count: int) -> list[Candidate]:  # noqa: ARG002 (one at a time)
        if observation.best is not None:
            self.exhausted = "a kernel is right"
        elif observation.round > 1 + self._repairs:
            self.exhausted = f"the {self._repairs} repairs are used up"
        if self.exhausted:
            return []
        candidates = self._policy.propose(observation, 1)
        self.exhausted = self._policy.exhausted
        return candidates
