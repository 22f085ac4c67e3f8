"""Which prior the schedule policy searches with: one that was trained on the chip where there is one, else the analytic one.

The default budget follows from it.
"""

import logging
from functools import cache, partial
from pathlib import Path

from cudal2_agent.agent.wiring.chip_rates import rates_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.run_settings import CHAT_MINUTES, HANDED_IN, TRAINED_BUDGET
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior
from cudal2_agent.policies.schedule.learned.policy_file import ANALYTIC_NAME, AUTO, find_policy, known_policies, read_weights
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, Prior, PriorOf, RatedPrior

logger = logging.getLogger(__name__)

UNTIMED_BUDGET = 8  # candidates of a module where none is timed: more would only be proved


def open_prior(settings: Settings) -> PriorOf:
    """The prior of each task and chip, as `schedule_prior` says.

    `auto`: the last of the known priors that were trained on the chip, those of the home folder after those that ship.
    Without one, the analytic prior, with rates that were fitted on the chip where there are some.
    Raises: UsageError for a prior that is not there or cannot be used.
    """
    choice = settings.schedule_prior
    if choice == ANALYTIC_NAME:
        return lambda _task, _chip: ANALYTIC
    if choice == AUTO:
        known, reasons = known_policies(settings.home)
        for reason in reasons:
            _say_once(reason)
        files = tuple(one.path for one in known)
        fallback = cache(partial(_fallback, settings.home))
        return lambda task, chip: _newest(files, task, chip) or fallback(chip)
    named = read_prior(find_policy(choice, settings.home).path)
    return lambda _task, chip: _chosen(named, chip)


@cache
def read_prior(path: Path) -> LearnedPrior:
    """Raises: UsageError for weights that are damaged or of another version."""
    return LearnedPrior(*read_weights(path))


def _chosen(prior: LearnedPrior, chip: Chip) -> Prior:
    if chip.name not in prior.card.chips:
        _say_once(f"prior {prior.name} was trained on {', '.join(prior.card.chips)}, not on {chip.name}; it is used as asked")
    return prior


@cache
def _say_once(message: str) -> None:
    logger.warning("%s", message)


def _newest(files: tuple[Path, ...], task: GemmTask, chip: Chip) -> Prior | None:
    """What cannot be read is left out here: a search must not fail for weights that nobody asked for."""
    for path in reversed(files):
        try:
            prior = read_prior(path)
        except UsageError as exc:
            _say_once(str(exc))
            continue
        if prior.knows(task, chip):
            return prior
    return None


def _fallback(home: Path, chip: Chip) -> Prior:
    rates = rates_of(chip, home)
    return ANALYTIC if rates is None else RatedPrior(rates.of(chip))


def with_budget(settings: Settings, task: Task, chip: Chip, *, measures: bool = True) -> Settings:
    """The settings with the budget and the minutes that they name, else with those that suit the policy, task and chip.

    `measures`: whether candidates are timed; without it the plans of a module that move the same bytes are not told apart.

    Raises: UsageError for a prior that cannot be used.
    """
    if "minutes" not in settings.model_fields_set and settings.policy in ("chat", "portfolio", HANDED_IN):
        settings = settings.model_copy(update={"minutes": CHAT_MINUTES})
    if settings.policy == HANDED_IN:
        return settings
    if isinstance(task, ModuleTask) and not measures and "budget" not in settings.model_fields_set:
        return settings.model_copy(update={"budget": UNTIMED_BUDGET})
    if "budget" in settings.model_fields_set or settings.policy != "schedule" or not isinstance(task, GemmTask):
        return settings
    return settings.model_copy(update={"budget": TRAINED_BUDGET}) if is_trained(settings, task, chip) else settings


def is_trained(settings: Settings, task: GemmTask, chip: Chip) -> bool:
    """Whether the prior of a task was trained on the chip. Raises: UsageError for a prior that cannot be used."""
    prior = open_prior(settings)(task, chip)
    return isinstance(prior, LearnedPrior) and prior.knows(task, chip)
