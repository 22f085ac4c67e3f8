"""Proposes with several policies: the first opens the run, then each round is split by their success so far (`bandit`)."""

import random
import time
from collections.abc import Callable, Mapping

from cudal2_agent.contract.errors import EndpointError
from cudal2_agent.contract.events import Emit, Notice, ignore
from cudal2_agent.contract.protocols import Policy
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.portfolio.bandit import Pull, costs, first_tries, improved, posteriors, split

OPENING_ROUNDS = 1  # that the first arm has alone, so that the others start from a proven kernel
SURE_ROUNDS = 4  # after the opening, in which every arm has at least one slot


class Portfolio:
    """Deterministic in (seed, observation) if its arms are; the split depends on the observation alone.

    `budget`: candidates of the whole run. The first arm must accept the same observation more than once, because it fills
    the slots that the others leave. An arm is dropped until the process ends if it is exhausted or its server fails.
    """

    name = "portfolio"

    def __init__(
        self,
        arms: Mapping[str, Policy],
        budget: int,
        seed: int = 0,
        emit: Emit = ignore,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not arms:
            raise ValueError("a portfolio needs at least one policy")
        self.reads_code = any(arm.reads_code for arm in arms.values())
        self.exhausted = ""
        self._arms = dict(arms)
        self._opener = next(iter(arms))
        self._budget = budget
        self._seed = seed
        self._emit = emit
        self._now_s = now_s
        self._failure: EndpointError | None = None

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Slots that an arm leaves go to the next, and finally to the first. Raises: EndpointError where no arm is left."""
        shares = self._shares(observation, count) if self._arms else {}
        written = {attempt.candidate_id for attempt in observation.attempts}
        batch: list[Candidate] = []
        due, exhausted = 0, False
        for name, share in shares.items():
            due += share
            new = self._ask(name, observation, due, written)
            exhausted |= name == self._opener and len(new) < due
            batch += new
            due -= len(new)
        if due and self._opener in self._arms and not exhausted:
            again = self._ask(self._opener, observation, shares[self._opener] + due, written)
            batch += again[:due]
        if self._failure and not (self._arms or batch or self.exhausted):
            raise self._failure
        return batch

    def _shares(self, observation: Observation, count: int) -> dict[str, int]:
        """Slots by arm."""
        arms = list(self._arms)
        if observation.round <= OPENING_ROUNDS:
            return {arm: count if arm == arms[0] else 0 for arm in arms}
        tries = first_tries(observation.attempts)
        left = max(self._budget - len(tries), count)
        outcomes = zip(tries, improved(tries), costs(tries, left, observation.seconds_left), strict=True)
        pulls = [Pull(arm=attempt.policy, success=success, cost=cost) for attempt, success, cost in outcomes]
        past = min(observation.round - OPENING_ROUNDS - 1, SURE_ROUNDS) if count >= len(arms) else 0
        missing = {arm: max(past - sum(pull.arm == arm for pull in pulls), 0) for arm in arms}
        minimum = int(observation.round <= OPENING_ROUNDS + SURE_ROUNDS)
        rng = random.Random(f"{self._seed}:{observation.seed}:{observation.round}")
        return split(posteriors(arms, pulls, missing), count, minimum, rng)

    def _ask(self, name: str, observation: Observation, count: int, written: set[str]) -> list[Candidate]:
        """At most `count` new candidates of one arm; none where its server fails."""
        if count < 1:
            return []
        begin_s = self._now_s()
        try:
            proposed = self._arms[name].propose(observation, count)
        except EndpointError as exc:
            self._failure = exc
            self._drop(name, str(exc))
            return []
        reason = self._arms[name].exhausted
        if reason:
            self._drop(name, reason)
            self.exhausted = "" if self._arms else reason
        fresh = {one.id: one for one in proposed if one.id not in written}
        new = list(fresh.values())[:count]
        written.update(one.id for one in new)
        share_s = (self._now_s() - begin_s) / max(len(new), 1)
        return [_with_seconds(candidate, share_s) for candidate in new]

    def _drop(self, name: str, reason: str) -> None:
        del self._arms[name]
        if self._arms:
            self._emit(Notice(message=f"{reason}; the run goes on without the {name} policy"))


def _with_seconds(candidate: Candidate, seconds: float) -> Candidate:
    """The candidate with the time that its own arm took to write it, so that no arm is charged for another."""
    return candidate.model_copy(update={"origin": candidate.origin.model_copy(update={"seconds": seconds})})
