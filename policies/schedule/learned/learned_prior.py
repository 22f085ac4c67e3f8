"""The prior that learned from earlier runs: the analytic prior's times, corrected by a network."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.schedule.learned.boosted_trees import BoostedTrees, ScheduleTrees
from cudal2_agent.policies.schedule.learned.features import features_of
from cudal2_agent.policies.schedule.learned.network import Network, Opinion
from cudal2_agent.policies.schedule.learned.policy_file import PolicyCard, kind_of
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, Crowding, Judge, SecondOpinion
from cudal2_agent.policies.schedule.prior import Floats

CAUTION = 0.5  # deviations of the ensemble that count as time: its members disagree where nothing was measured
UNSEEN = 1.1  # of the expected time, of forms of kernels that no run behind the shipped priors has measured
ASKED = 256  # schedules, those that the network expects to be fastest, that the trees order
GOOD_SHARE, BEHIND_SHARE, ANALYTIC_SHARE = 0.125, 0.25, 0.125  # of a first round
UNLIKE_SHARE = 0.375  # the rest of it is mostly one tile


class LearnedPrior:
    """A search asks it as it asks the analytic prior. Second opinions are those of `trees`, else the analytic prior's."""

    crowding = Crowding(group=1.01, family=1.0)
    parents = 12
    precedent_limit = 1.05  # of 467 beyond it 7 came within 2 % of their search's best, of 233 within it 64 (log/)

    def __init__(self, card: PolicyCard, network: Network, trees: ScheduleTrees | None = None) -> None:
        self.card, self._network = card, network
        self.name = card.name
        self.second_opinions: tuple[SecondOpinion, ...] = (SecondOpinion(ANALYTIC.predict_us, ANALYTIC_SHARE),)
        if trees is not None:
            self.second_opinions = (
                SecondOpinion(_judge(trees.good, -1), GOOD_SHARE, ASKED),
                SecondOpinion(_judge(trees.behind, 1), BEHIND_SHARE, ASKED),
                SecondOpinion(ANALYTIC.predict_us, UNLIKE_SHARE, unlike=True),
            )

    def knows(self, task: GemmTask, chip: Chip) -> bool:
        """Whether it learned from the chip, and may be used for tasks of this kind."""
        of_kind = not self.card.kinds or kind_of(task) in self.card.kinds
        return chip.name in self.card.chips and task.arch is chip.arch and of_kind

    def predict_us(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats:
        if not entries:
            return np.zeros(0)
        opinion, logarithm = self._opinion(entries, task, chip)
        unseen = np.where([entry.family.unmeasured(entry.schedule, task) for entry in entries], UNSEEN, 1.0)
        predicted: Floats = unseen * np.exp(logarithm + opinion.error + CAUTION * opinion.spread)
        return predicted

    def encoding(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> "LearnedEncoding":
        return LearnedEncoding(self, entries, task, chip)

    def embed(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats:
        """Points that lie close together where the prior errs alike. Shape: (entries, dimensions)."""
        return self._opinion(entries, task, chip)[0].embedding

    def _opinion(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> tuple[Opinion, Floats]:
        features, logarithm = features_of(entries, task, chip)
        return self._network(features), logarithm


def _judge(trees: BoostedTrees, sign: int) -> Judge:
    """`sign`: 1 where lower estimates are better, else -1."""
    return lambda entries, task, chip: sign * trees(features_of(entries, task, chip)[0])


class LearnedEncoding:
    """The embedding of a pool's entries, which is computed once, when a run has times: a first round needs none."""

    def __init__(self, prior: LearnedPrior, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> None:
        self._prior, self._entries, self._task, self._chip = prior, entries, task, chip

    @cached_property
    def fitted(self) -> Floats:
        return self._prior.embed(self._entries, self._task, self._chip)

    def __call__(self, entries: Sequence[PoolEntry]) -> Floats:
        return self._prior.embed(entries, self._task, self._chip)
