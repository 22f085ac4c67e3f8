"""ncu's CSV (`--csv --page raw --print-units base`) as records.

It has two header rows, names and units, then one row per kernel. Covered: ncu's own lines between them, thousands
separators, missing values ("n/a", empty, not finite), a truncated last row, units of another size or spelling, units of
another kind. An uncertain value is left out, with a warning in the log.
"""

import csv
import logging
import math
import re
from collections.abc import Iterator, Sequence

from cudal2_agent.contract.records.profile import LaunchProfile
from cudal2_agent.sandbox.profiling.metric_set import MetricSet, MetricSpec

_NAME, _GRID, _BLOCK = "Kernel Name", "Grid Size", "Block Size"
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_SIZE = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")
_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# ncu's spellings of one unit, short ones newer.
_SPELLINGS = {"second": "s", "sec": "s", "bytes": "byte", "hz": "Hz"}
_PREFIXED = ("s", "byte", "Hz")

logger = logging.getLogger(__name__)


class Unreadable(Exception):
    """Text that is not such a table."""


def read_launches(text: str, metrics: MetricSet) -> tuple[LaunchProfile, ...]:
    """One record per kernel, in the order of launch; none where ncu counted none. Raises: Unreadable."""
    rows = _rows([line for line in text.splitlines() if line.startswith('"') and line.endswith('"')])
    if not rows:
        return ()
    names = rows[0]
    if missing := {_NAME, _GRID, _BLOCK} - set(names):
        raise Unreadable(f"no column {' or '.join(map(repr, sorted(missing)))}")
    if len(rows) < 2:
        return ()
    units = dict(zip(names, rows[1], strict=False))
    if units.get(_NAME):
        raise Unreadable("no row of units below the names")
    whole = [row for row in rows[2:] if len(row) == len(names)]
    if len(whole) < len(rows) - 2:
        logger.warning("%d row(s) of ncu's table were cut off", len(rows) - 2 - len(whole))
    return tuple(_launch(dict(zip(names, row, strict=True)), units, metrics) for row in whole)


def _rows(lines: Sequence[str]) -> list[list[str]]:
    """The table without its last line where that was truncated inside a field."""
    for whole in (lines, lines[:-1]):
        try:
            return list(csv.reader(whole, strict=True))
        except csv.Error as exc:
            error = exc
    raise Unreadable(f"it is not a CSV: {error}") from error


def _launch(row: dict[str, str], units: dict[str, str], metrics: MetricSet) -> LaunchProfile:
    return LaunchProfile(
        entry=row[_NAME], grid=_size(row[_GRID]), block=_size(row[_BLOCK]), metrics=dict(_values(row, units, metrics))
    )


def _values(row: dict[str, str], units: dict[str, str], metrics: MetricSet) -> Iterator[tuple[str, float]]:
    for name, spec in metrics.metrics.items():
        value = _number(row.get(spec.metric, ""))
        if value is None:
            continue
        factor = conversion(units[spec.metric], spec)
        if factor is None:
            logger.warning("%s comes in %r, not in %r; it is left out", spec.metric, units[spec.metric], spec.unit)
        else:
            yield name, value * factor


def conversion(unit: str, spec: MetricSpec) -> float | None:
    """The factor from ncu's unit to the metric set's; None where the units are of another kind."""
    (kind, factor), (wanted, wanted_factor) = _parse(unit), _parse(spec.unit)
    return factor / wanted_factor * spec.scale if kind == wanted else None


def _parse(unit: str) -> tuple[Sequence[str], float]:
    """The kind of a unit, numerator and denominator, and its size: `Kbyte/s` is (byte, s), 1000."""
    parts = [_atom(part) for part in unit.strip().split("/")]
    (_, size), *below = parts
    return [kind for kind, _ in parts], size / math.prod(factor for _, factor in below)


def _atom(name: str) -> tuple[str, float]:
    name = name.strip()
    for prefix, factor in _PREFIXES.items():
        rest = name.removeprefix(prefix)
        kind = _SPELLINGS.get(rest, rest)
        if name.startswith(prefix) and kind in _PREFIXED:
            return kind, factor
    return name, 1.0


def _number(text: str) -> float | None:
    """None for anything but a finite number."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def _size(text: str) -> tuple[int, int, int]:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise Unreadable(f"{text[:40]!r} is not the size of a grid or a block")
    x, y, z = (int(part) for part in match.groups())
    return x, y, z
