"""The options that say which runs and steps a command takes, and how they become a `StepFilter`.

Values that only a store knows, such as its chips, are checked against it by `resolve`.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from cudal2_agent.agent.cli.arguments import read_arch
from cudal2_agent.contract.errors import UsageError

if TYPE_CHECKING:
    from cudal2_agent.store.filters import StepFilter
    from cudal2_agent.store.store import Store

SHOWN_VALUES = 12
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
Command = Callable[..., None]


def _many(flag: str, help_: str, metavar: str, *others: str) -> object:
    option = typer.Option(flag, *others, help=help_, metavar=metavar, show_default=False)
    return Annotated[list[str] | None, option]


def _one(flag: str, help_: str, metavar: str, type_: type = str) -> object:
    return Annotated[type_ | None, typer.Option(flag, help=help_, metavar=metavar, show_default=False)]


_TIME = "an ISO date or time in UTC, or an age such as 12h, 7d or 2w"
OPTIONS: dict[str, object] = {
    "run": _many("--run", "Runs: an id or its unique beginning. Filters marked … may be repeated.", "ID…"),
    "shape": _many("--shape", "Shapes.", "MxNxK…", "--task"),
    "arch": _many("--arch", "Architectures.", "ARCH…"),
    "chip": _many("--chip", "Chips.", "NAME…"),
    "policy": _many("--policy", "Policies of the runs.", "NAME…"),
    "outcome": _many("--outcome", "Outcomes: measured, wrong, rejected, …", "STATUS…"),
    "min_speedup": _one("--min-speedup", "Minimum speedup over cuBLASLt-AutoTuning.", "RATIO", float),
    "max_speedup": _one("--max-speedup", "Maximum speedup over cuBLASLt-AutoTuning.", "RATIO", float),
    "cutlass": _many("--cutlass", "CUTLASS releases that a run could look up.", "RELEASE…"),
    "environment": _many("--environment", "Environments: a key as `trajectories stats` shows it, or a part of it.", "KEY…"),
    "since": _one("--since", f"Runs that started then or later: {_TIME}.", "TIME"),
    "until": _one("--until", "Runs that started before.", "TIME"),
}


STEP_OPTIONS = {name: OPTIONS[name] for name in ("outcome", "min_speedup", "max_speedup", "environment")}


def filtered(command: Command) -> Command:
    """The command with all filter options in place of its parameter `selected`."""
    return _with_options(command, OPTIONS)


def filtered_steps(command: Command) -> Command:
    """The command with the options that tell steps of one run apart, in place of its parameter `selected`."""
    return _with_options(command, STEP_OPTIONS)


def _with_options(command: Command, options: Mapping[str, object]) -> Command:
    parameters: list[inspect.Parameter] = []
    for name, own in inspect.signature(command).parameters.items():
        if name == "selected":
            parameters += [
                inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                for option, annotation in options.items()
            ]
        else:
            parameters.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def read(**given: Any) -> None:
        flags = {name: given.pop(name) for name in options}
        command(selected=read_filters(**flags), **given)

    read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    read.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return read


def read_filters(
    *,
    run: Sequence[str] | None = None,
    shape: Sequence[str] | None = None,
    arch: Sequence[str] | None = None,
    chip: Sequence[str] | None = None,
    policy: Sequence[str] | None = None,
    outcome: Sequence[str] | None = None,
    min_speedup: float | None = None,
    max_speedup: float | None = None,
    cutlass: Sequence[str] | None = None,
    environment: Sequence[str] | None = None,
    since: str | None = None,
    until: str | None = None,
) -> "StepFilter":
    """What the flags select. Raises: UsageError, naming the flag."""
    from cudal2_agent.contract.records.task import parse_shape
    from cudal2_agent.store.filters import StepFilter

    began, ended = read_time("--since", since), read_time("--until", until)
    if began and ended and began >= ended:
        raise UsageError(f"--since {since} is not before --until {until}; no run started between them")
    minimum, maximum = _ratio("--min-speedup", min_speedup), _ratio("--max-speedup", max_speedup)
    if minimum is not None and maximum is not None and minimum > maximum:
        raise UsageError(f"--min-speedup {minimum:g} is above --max-speedup {maximum:g}; no speedup is both")
    return StepFilter(
        runs=tuple(run or ()),
        shapes=tuple("x".join(map(str, parse_shape(text))) for text in shape or ()),
        archs=tuple(read_arch(text) for text in arch or ()),
        chips=tuple(chip or ()),
        policies=tuple(policy or ()),
        outcomes=tuple(_outcome(text) for text in outcome or ()),
        environments=tuple(environment or ()),
        cutlass=tuple(cutlass or ()),
        min_speedup=minimum,
        max_speedup=maximum,
        since=began,
        until=ended,
    )


def read_time(flag: str, text: str | None) -> datetime | None:
    """An ISO date or time, UTC unless it names another zone, or an age before now. Raises: UsageError."""
    if text is None:
        return None
    try:
        if age := re.fullmatch(r"(\d{1,6})([hdw])", text.strip(), flags=re.ASCII):
            return datetime.now(UTC) - int(age[1]) * _UNITS[age[2]]
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise UsageError(f"{flag} {text!r} is not a time; write a date like 2026-11-21, a time, or an age like 7d") from exc


@contextmanager
def opened(selected: "StepFilter") -> "Iterator[tuple[Store, StepFilter]]":
    """The store of the settings, and the selection with the values that this store knows. Raises: UsageError."""
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store:
        yield store, resolve(selected, store)


def resolve(selected: "StepFilter", store: "Store") -> "StepFilter":
    """The selection with whole run ids and the store's own spelling. Raises: UsageError, listing what the store holds."""
    from cudal2_agent.store.statistics import known_values

    changes: dict[str, tuple[str, ...]] = {}
    if selected.runs:
        changes["runs"] = tuple(find_run(store, text) for text in selected.runs)
    for field, flag in (("chips", "--chip"), ("policies", "--policy"), ("cutlass", "--cutlass")):
        if wanted := getattr(selected, field):
            known = known_values(store, field)
            changes[field] = tuple(_known(flag, text, known) for text in wanted)
    if selected.environments:
        known = known_values(store, "environments")
        changes["environments"] = tuple(key for text in selected.environments for key in _parts(text, known))
    return selected.model_copy(update=changes)


def find_run(store: "Store", text: str) -> str:
    """The id of a run by the id or by its unique beginning. Raises: UsageError."""
    from cudal2_agent.store.statistics import run_ids

    found = run_ids(store, text)
    if text in found or len(found) == 1:
        return text if text in found else found[0]
    if not found:
        raise UsageError(f"there is no run {text!r}; `cudal2-agent runs list` shows those there are")
    raise UsageError(f"run {text!r} is not unique; choose from {_listed(found)}")


def _known(flag: str, text: str, known: Sequence[str]) -> str:
    for value in known:
        if value.lower() == text.lower():
            return value
    raise _unknown(flag, text, known)


def _parts(text: str, known: Sequence[str]) -> Sequence[str]:
    if text in known:
        return [text]
    found = [value for value in known if text and text.lower() in value.lower()]
    if not found:
        raise _unknown("--environment", text, known)
    return found


def _unknown(flag: str, text: str, known: Sequence[str]) -> UsageError:
    if not known:
        return UsageError(f"{flag} {text!r} selects nothing: the store has none yet")
    return UsageError(f"{flag} {text!r} is not in the store; choose from {_listed(known)}")


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - SHOWN_VALUES:,} more" if len(values) > SHOWN_VALUES else ""
    return ", ".join(values[:SHOWN_VALUES]) + more


def _outcome(text: str) -> str:
    from cudal2_agent.contract.records.evaluation import Evaluation

    variants = get_args(get_args(Evaluation)[0])
    choices = [variant.model_fields["status"].default for variant in variants]
    wanted = text.lower().replace("-", "_")
    if wanted not in choices:
        raise UsageError(f"--outcome {text!r} is not known; choose from {', '.join(choices)}")
    return wanted


def _ratio(flag: str, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{flag} {value:g} is not a speedup; write a ratio like 1.05")
    return value
