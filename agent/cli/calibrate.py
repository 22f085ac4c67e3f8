"""`cudal2-agent calibrate`: adapts the prior, the timing model and the learned policy to the GPU in front of it."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli.arguments import Accumulate, AsJson, Device, Mode, choice

if TYPE_CHECKING:
    from agent.calibration.calibration_result import CalibrationResult
    from contract.events import Event

EXAMPLE = "\b\nExample:\n  cudal2-agent calibrate --minutes 10\n  cudal2-agent calibrate --mode server --device cuda:1 --json"
COLUMNS = ("first within 5 %", "best of 8 within 2 %", "rank correlation")


def calibrate(
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="Of measuring, those of earlier calls included.")] = 10.0,
    mode: Mode = "offline",
    accumulate: Accumulate = "f32",
    device: Device = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the schedules.", show_default="0")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a spread of shapes on this GPU and adapt to it what ranks schedules. Interrupted, it goes on when called again.

    What does not order held-back shapes at least as well as before is left out.
    """
    from agent.calibration.calibration_session import calibrate_device
    from contract.settings import load_settings
    from contract.task import AccumulatorType, TimingMode

    settings = load_settings(device=device, seed=seed)
    kind = choice("--mode", TimingMode, mode), choice("--accumulate", AccumulatorType, accumulate)
    try:
        result = calibrate_device(settings, minutes, *kind, _say, _notices)
    except KeyboardInterrupt:
        _say("interrupted: the shapes so far are kept, and the same command goes on")
        raise
    if settings.schedule_prior != "auto" and any(one.part == "policy" and one.path for one in result.adopted):
        _say(f"searches use the prior {settings.schedule_prior}; cudal2-agent policy use auto lets them find the policy")
    lines = [*(point.model_dump_json() for point in result.curve), result.model_dump_json(exclude={"curve"})]
    print("\n".join(lines if as_json else calibration_lines(result)))


def calibration_lines(result: "CalibrationResult") -> list[str]:
    """The answer as text."""
    lines = [
        f"chip     {result.chip}, {result.kind}",
        f"measured {result.schedules:,} schedules of {result.shapes} shapes in {result.minutes:.1f} minutes; "
        f"{result.held_back} shapes judge",
    ]
    judged = [
        (f"before ({result.before_name})", result.before),
        ("analytic prior", result.analytic),
        ("  with fitted rates", result.fitted),
        *((_curve_name(point.minutes, result.base), point.figures) for point in result.curve),
    ]
    rows = [(name, figures) for name, figures in judged if figures]
    if rows:
        lines.append(f"{'held back':<26}" + "".join(f"{name:>22}" for name in COLUMNS))
        lines += [
            f"{name:<26}" + "".join(f"{_cell(column, figures[column]):>22}" for column in COLUMNS) for name, figures in rows
        ]
    for name, (expected, fitted) in result.rates.items():
        lines.append(f"{name:<26}{expected:10.3g} expected {fitted:10.3g} used")
    lines += [
        f"{one.part}: {'used from now on, ' + str(one.path) if one.path else 'left out: ' + one.reason}"
        for one in result.adopted
    ]
    return lines


def _curve_name(minutes: float, base: str | None) -> str:
    return f"adapted, {minutes:.1f} min" if minutes else f"{base}, not adapted"


def _cell(column: str, value: float) -> str:
    return f"{value:.0%}" if column.endswith("%") else f"{value:.2f}"


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _notices(event: "Event") -> None:
    """Of the runs' events those that a user should know of: a line for each shape says the rest."""
    from contract.events import Notice, WorkerRestarted

    if isinstance(event, Notice):
        _say(event.message)
    elif isinstance(event, WorkerRestarted):
        _say(f"a worker was started again: {event.reason}")
