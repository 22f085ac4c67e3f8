"""How many candidates a search tries where nobody says: few suffice where the prior was trained on the chip."""

from cudal2_agent.agent.wiring.schedule_prior import open_prior
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.run_settings import TRAINED_BUDGET
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior


def with_budget(settings: Settings, task: GemmTask, chip: Chip) -> Settings:
    """The settings with the budget that they name, else with the one that suffices for the task on the chip.

    Raises: UsageError for a prior that cannot be used.
    """
    if "budget" in settings.model_fields_set or settings.policy != "schedule":
        return settings
    prior = open_prior(settings)(task, chip)
    trained = isinstance(prior, LearnedPrior) and prior.knows(task, chip)
    return settings.model_copy(update={"budget": TRAINED_BUDGET}) if trained else settings
