"""The rates of a chip that `calibrate` fitted: kept in the home folder, and used by the analytic prior on that chip.

The chip itself keeps its expected rates: its roofline says what no kernel exceeds, fitted rates what schedules take.
"""

import logging
import re
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_record, read_file
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.whole_file import whole_file

logger = logging.getLogger(__name__)
IN_HOME = "chips"


class FittedRates(Record):
    """Rates of a chip, fitted to `schedules` of `shapes`. `environment`: that in which they were measured. Units: as `Chip`.

    `version`: of the meaning of the rates. A file of another one is not used.
    """

    format: Literal["cudal2-chip"] = "cudal2-chip"
    version: Literal[1] = 1
    chip: str
    tensor_tflops: float = Field(gt=0)
    dram_tbps: float = Field(gt=0)
    launch_us: float = Field(gt=0)
    shapes: int
    schedules: int
    environment: Environment
    product: str
    created_at: datetime

    def of(self, chip: Chip) -> Chip:
        """The chip with these rates."""
        rates = {name: getattr(self, name) for name in ("tensor_tflops", "dram_tbps", "launch_us")}
        return chip.model_copy(update=rates)


def file_name(chip: str) -> str:
    """The name of a chip as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", chip).strip("-.") or "chip"


def rates_path(home: Path, chip: str) -> Path:
    return home / IN_HOME / f"{file_name(chip)}.json"


def read_rates(path: Path) -> FittedRates | None:
    """None where there is no file. Raises: UsageError for one that is damaged or of another version."""
    try:
        return parse_record(FittedRates, read_file(path))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise UsageError(f"{path} cannot be read ({exc}); delete it, or calibrate again") from exc
    except ValueError as exc:
        raise UsageError(f"{path}: {exc}; delete it, or calibrate again") from exc


def keep_rates(home: Path, rates: FittedRates) -> Path:
    """Raises: UsageError where the file cannot be written; an older one stays."""
    path = rates_path(home, rates.chip)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as place:
            place.write_text(rates.model_dump_json(indent=1), "utf-8")
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}; choose another home with CUDAL2_HOME") from exc
    return path


def rates_of(chip: Chip, home: Path) -> FittedRates | None:
    """The rates that were fitted on a chip, if any; those of an equally named file are its own only if they say so.

    What cannot be read is left out with a warning: a search must not fail for a file that it can do without.
    """
    try:
        rates = read_rates(rates_path(home, chip.name))
    except UsageError as exc:
        logger.warning("the fitted rates of %s are not used: %s", chip.name, exc)
        return None
    return rates if rates is not None and rates.chip == chip.name else None
