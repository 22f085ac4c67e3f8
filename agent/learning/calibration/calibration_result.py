"""What a calibration reports: figures on the shapes that were held back, and what of it is used from now on."""

from pathlib import Path

from cudal2_agent.contract.base import Record

Figures = dict[str, float]


class Adopted(Record):
    """A part that was fitted. `path`: its file, where it is used from now on; None where `reason` says why it is left out."""

    part: str
    path: Path | None
    reason: str


class CalibrationResult(Record):
    """`before`: of what searches used until now. `analytic`, `fitted`: of the analytic prior with expected and fitted rates.
    `shipped`, `policy`: of the policy `base` that was trained on, as it was and adapted. Figures are on `held_back` shapes;
    empty where nothing could be judged.

    `rates`: tensor TFLOP/s, DRAM TB/s and microseconds per launch, expected and fitted.
    """

    chip: str
    kind: str
    minutes: float
    shapes: int
    schedules: int
    held_back: int
    before_name: str = ""
    before: Figures = {}
    analytic: Figures = {}
    fitted: Figures = {}
    shipped: Figures = {}
    policy: Figures = {}
    rates: dict[str, tuple[float, float]] = {}
    base: str | None = None
    adopted: tuple[Adopted, ...] = ()
