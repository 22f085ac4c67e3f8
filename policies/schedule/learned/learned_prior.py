"""The prior that learned from earlier runs: the analytic prior's times, corrected by a network."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from contract.chip import Chip
from contract.task import GemmTask
from policies.schedule.learned.boosted_trees import BoostedTrees
from policies.schedule.learned.features import features_of
from policies.schedule.learned.network import Network, Opinion
from policies.schedule.learned.policy_file import PolicyCard, kind_of
from policies.schedule.optimiser.pool_entry import PoolEntry
from policies.schedule.optimiser.pool_prior import ANALYTIC, Crowding, SecondOpinion
from policies.schedule.prior import Floats

CAUTION = 0.5  # deviations of the ensemble that count as time: its members disagree where nothing was measured
ASKED = 256  # schedules, those that the network expects to be fastest, that the trees order
TREES_SHARE, ANALYTIC_SHARE = 0.25, 0.125  # of a first round


class LearnedPrior:
    """A search asks it as it asks the analytic prior. The second opinion is that of `trees`, else the analytic prior's."""

    crowding = Crowding(group=1.01, family=1.0)
    parents = 12
    precedent_limit = 1.05  # of 467 beyond it 7 came within 2 % of their search's best, of 233 within it 64 (LOG.md)

    def __init__(self, card: PolicyCard, network: Network, trees: BoostedTrees | None = None) -> None:
        self.card, self._network = card, network
        self.name = card.name
        self.second: SecondOpinion | None = SecondOpinion(ANALYTIC.predict_us, ANALYTIC_SHARE)
        if trees is not None:
            self.second = SecondOpinion(
                lambda entries, task, chip: trees(features_of(entries, task, chip)[0]), TREES_SHARE, ASKED
            )

    def knows(self, task: GemmTask, chip: Chip) -> bool:
        """Whether it learned from the chip, and may be used for tasks of this kind."""
        of_kind = not self.card.kinds or kind_of(task) in self.card.kinds
        return chip.name in self.card.chips and task.arch is chip.arch and of_kind

    def predict_us(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats:
        if not entries:
            return np.zeros(0)
        opinion, logarithm = self._opinion(entries, task, chip)
        predicted: Floats = np.exp(logarithm + opinion.error + CAUTION * opinion.spread)
        return predicted

    def encoding(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> "LearnedEncoding":
        return LearnedEncoding(self, entries, task, chip)

    def embed(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> Floats:
        """Points that lie close together where the prior errs alike. Shape: (entries, dimensions)."""
        return self._opinion(entries, task, chip)[0].embedding

    def _opinion(self, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> tuple[Opinion, Floats]:
        features, logarithm = features_of(entries, task, chip)
        return self._network(features), logarithm


class LearnedEncoding:
    """The embedding of a pool's entries, which is computed once, when a run has times: a first round needs none."""

    def __init__(self, prior: LearnedPrior, entries: Sequence[PoolEntry], task: GemmTask, chip: Chip) -> None:
        self._prior, self._entries, self._task, self._chip = prior, entries, task, chip

    @cached_property
    def fitted(self) -> Floats:
        return self._prior.embed(self._entries, self._task, self._chip)

    def __call__(self, entries: Sequence[PoolEntry]) -> Floats:
        return self._prior.embed(entries, self._task, self._chip)
