"""The rates of a chip that `calibrate` fitted: kept in the home folder, and used where the chip is met again."""

import re
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from contract.base import Record
from contract.chip import Chip
from contract.errors import UsageError
from contract.evaluation import Environment
from contract.events import Emit, Notice
from contract.whole_file import whole_file

IN_HOME = "chips"
VERSION = 1  # raise it when the meaning of a rate changes: older files are then ignored


class FittedRates(Record):
    """Rates of a chip, fitted to `schedules` of `shapes`. `environment`: that in which they were measured. Units: as `Chip`."""

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
        return FittedRates.model_validate_json(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read ({exc}); delete it, or calibrate again") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{path}: {where}: {first['msg']}; delete it, or calibrate again") from exc


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


def with_own_rates(chip: Chip, home: Path, emit: Emit) -> Chip:
    """A GPU's chip with the rates that were fitted on it, if any. What cannot be read is left out with a notice."""
    path = rates_path(home, chip.name)
    try:
        rates = read_rates(path)
    except UsageError as exc:
        emit(Notice(message=f"the fitted rates of {chip.name} are not used: {exc}"))
        return chip
    return chip if rates is None or rates.chip != chip.name else rates.of(chip)
