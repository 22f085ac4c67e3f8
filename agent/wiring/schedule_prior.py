"""Which prior the schedule policy searches with: one that learned from the chip where there is one, else the analytic one."""

import logging
from functools import cache
from pathlib import Path

from contract.chip import Chip
from contract.errors import UsageError
from contract.settings import Settings
from contract.task import GemmTask
from policies.schedule.learned.learned_prior import LearnedPrior
from policies.schedule.learned.weights import policy_files, read_weights
from policies.schedule.optimiser.pool_prior import ANALYTIC, Prior, PriorOf

AUTO, ANALYTIC_NAME = "auto", "analytic"
logger = logging.getLogger(__name__)


def open_prior(settings: Settings) -> PriorOf:
    """The prior of each task and chip, as `schedule_prior` says.

    `auto`: the last of the known policies that learned from the chip, those of the home folder behind those that ship.
    Raises: UsageError for a policy that is not there or cannot be used.
    """
    choice = settings.schedule_prior
    if choice == ANALYTIC_NAME:
        return lambda _task, _chip: ANALYTIC
    if choice == AUTO:
        files = tuple(policy_files(settings.home))
        return lambda task, chip: _newest(files, task, chip)
    named = _read(find_policy(choice, settings.home))
    return lambda _task, _chip: named


def find_policy(name: str, home: Path) -> Path:
    """The file of a policy by its name or path. Raises: UsageError."""
    if Path(name).is_file():
        return Path(name)
    found = [path for path in policy_files(home) if path.stem == name]
    if not found:
        known = ", ".join(["auto", "analytic", *(path.stem for path in policy_files(home))])
        raise UsageError(f"there is no policy {name!r}; choose from {known}, or name a file")
    return found[-1]


def _newest(files: tuple[Path, ...], task: GemmTask, chip: Chip) -> Prior:
    """What cannot be read is left out here: a search must not fail for weights that nobody asked for."""
    for path in reversed(files):
        try:
            prior = _read(path)
        except UsageError as exc:
            logger.warning("%s", exc)
            continue
        if prior.knows(task, chip):
            return prior
    return ANALYTIC


@cache
def _read(path: Path) -> LearnedPrior:
    return LearnedPrior(*read_weights(path))
