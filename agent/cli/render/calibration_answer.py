"""The result of a calibration as text."""

from cudal2_agent.agent.cli.render.alignment import aligned
from cudal2_agent.agent.learning.calibration.adaptation import CalibrationResult

COLUMNS = ("first within 5 %", "best of 8 within 2 %", "rank correlation")


def calibration_lines(result: CalibrationResult) -> list[str]:
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
        (f"{result.base}, not adapted", result.shipped),
        ("adapted", result.policy),
    ]
    rows = [(name, *(_cell(column, figures[column]) for column in COLUMNS)) for name, figures in judged if figures]
    if rows:
        lines += aligned([("held back", *COLUMNS), *rows], right=frozenset((1, 2, 3)))
    for name, (expected, fitted) in result.rates.items():
        lines.append(f"{name:<26}{expected:10.3g} expected {fitted:10.3g} used")
    lines += [
        f"{one.part}: {'used from now on, ' + str(one.path) if one.path else 'left out: ' + one.reason}"
        for one in result.adopted
    ]
    return lines


def _cell(column: str, value: float) -> str:
    return f"{value:.0%}" if column.endswith("%") else f"{value:.2f}"
