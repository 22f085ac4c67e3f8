"""All candidates of the red team: the rows of every table, and the files."""

from tests.redteam import (
    attacks_caching,
    attacks_counting,
    attacks_elsewhere,
    attacks_emulator,
    attacks_ending,
    attacks_files,
    attacks_keeping,
    attacks_knowing,
    attacks_state,
    attacks_values,
    honest_plain,
    honest_tiled,
)
from tests.redteam.case import Case
from tests.redteam.files import files

_TABLES = (
    attacks_keeping,
    attacks_counting,
    attacks_knowing,
    attacks_state,
    attacks_files,
    attacks_elsewhere,
    attacks_values,
    honest_plain,
    honest_tiled,
    attacks_emulator,
    attacks_caching,
    attacks_ending,
)


def corpus() -> list[Case]:
    """Every case once. Raises: ValueError for two of one name."""
    found = [*(case for table in _TABLES for case in table.cases()), *files()]
    names = [case.id for case in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the red team has two cases of each of these names: {', '.join(twice)}")
    return found
