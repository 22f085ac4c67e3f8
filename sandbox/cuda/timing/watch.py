"""Checks after every sample of a candidate, and full comparisons at positions drawn beforehand.

Covered: outputs of every launch of every sample, and their error beside the baselines' in the same round; module variables and
the bytes that a workspace must restore, after every sample; inputs, at the end where they are mapped read-only, else after
every sample; drawn launches after the rounds (`aftermath.py`). The kernel does not know the positions, and a failure ends the
measurement.
"""

import random
from collections.abc import Sequence

from cudal2_agent.contract.records.ruler import ComparedOutput
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.driver import Fault
from cudal2_agent.sandbox.cuda.timing.aftermath import Aftermath
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudgement, error_limit
from cudal2_agent.sandbox.cuda.timing.sampling import Lane
from cudal2_agent.sandbox.cuda.timing.track import BaseTrack

COMPARED = 2


class WrongWhileTimed(Fault):
    """A fault of timed launches of a verified kernel. `check`: which check found it."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


class Watch:
    """Checks one candidate's lane after each of `samples` samples. `compared`: how many outputs are compared in full."""

    def __init__(
        self, track: BaseTrack, contender: Contender, lane: Lane, samples: int, draw: random.Random, compared: int = COMPARED
    ) -> None:
        self._track, self._contender, self._lane, self._draw = track, contender, lane, draw
        self._compared = sorted(
            (draw.randrange(samples), draw.randrange(len(lane.launches))) for _ in range(min(compared, samples))
        )
        self._samples, self._done, self._wanted = samples, 0, min(compared, samples)
        self.compared: list[ComparedOutput] = []
        self.projected = 0
        self._judged: OutputJudgement | None = None  # of the last sample

    def look(self) -> None:
        """Check the sample that was just taken. Raises: WrongWhileTimed."""
        sample, self._done = self._done, self._done + 1
        self._judged = self._track.judge.project(self._lane.launches, self._draw)
        for check, why in (
            ("input", self._changed()),
            ("module-state", _listed(self._contender.altered())),
            ("workspace", self._unrestored()),
            ("outputs", self._judged.fault),
        ):
            if why is not None:
                raise WrongWhileTimed(check, f"timed launches: {why}")
        self.projected += len(self._lane.launches)
        for _, launch in (place for place in self._compared if place[0] == sample):
            self._compare(sample, launch)

    def weigh(self, baseline_rms: float) -> None:
        """Compare the error of the last sample with the baselines' in the same round. Raises: WrongWhileTimed."""
        judged = self._judged
        task = self._track.task
        if judged is None or not isinstance(task, GemmTask):  # a module's are judged element by element
            return
        if judged.error_rms <= (limit := error_limit(task, judged, baseline_rms)):
            return
        raise WrongWhileTimed("outputs", f"timed launches: RMS error {judged.error_rms:.3g} exceeds {limit:.3g}")

    def finish(self) -> None:
        """Run drawn launches once more, behind a late predecessor where the plan allows one. Raises: WrongWhileTimed."""
        aftermath = Aftermath(self._track, self._contender, self._lane, self._track.bystanders, self._draw)
        if (found := aftermath.fault()) is not None:
            raise WrongWhileTimed(found[0], f"after the rounds: {found[1]}")

    @property
    def complete(self) -> bool:
        """Whether all samples were taken, and everything was checked that was to be."""
        return self._done >= self._samples

    def settle(self) -> None:
        """Check a last sample, which was just taken, and compare as many outputs as were to be. Raises: as `look`."""
        self._samples = self._done + 1  # the inputs are compared now
        self.look()
        while len(self.compared) < self._wanted:
            self._compare(self._done - 1, self._draw.randrange(len(self._lane.launches)))

    def _compare(self, sample: int, launch: int) -> None:
        comparison = self._track.judge.compare(self._lane.launches[launch])
        if comparison.mismatches:
            raise WrongWhileTimed("outputs", f"launch {launch} of sample {sample}: {comparison.describe()}")
        self.compared.append(ComparedOutput(sample=sample, launch=launch))

    def _changed(self) -> str | None:
        """Inputs that are mapped read-only are compared at the end; others after every sample."""
        pools = self._track.pools
        return pools.changed() if self._done >= self._samples or not pools.read_only else None

    def _unrestored(self) -> str | None:
        if self._lane.workspaces is None:
            return None
        left = self._lane.workspaces.unrestored()
        return f"{left} bytes of the workspaces were not restored to zero" if left else None


def _listed(names: Sequence[str]) -> str | None:
    return f"module variables {', '.join(names)} were changed" if names else None
