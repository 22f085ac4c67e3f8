"""`cudal2-agent trajectories export`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cudal2_agent.agent.cli.trajectories.selecting import filtered, opened
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError

if TYPE_CHECKING:
    from cudal2_agent.contract.records.trajectory import Trajectory
    from cudal2_agent.policies.exports.dataset import DatasetFormat
    from cudal2_agent.store.filters import StepFilter
    from cudal2_agent.store.store import Store

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent trajectories export --out steps.jsonl"
    "\n  cudal2-agent trajectories export --format preference --arch sm_90a --test-share 0.1 --out pairs"
    "\n  cudal2-agent trajectories export --format sweep --since 1d --piece-mb 4 --out sweep"
)
_PROGRESS_EVERY = 100
NOTHING = 1  # exit code of an export without a row


class ExportFormat(StrEnum):
    """What `--format` names."""

    STEPS = "steps"
    SFT = "sft"
    PREFERENCE = "preference"
    KTO = "kto"
    GRPO = "grpo"
    GROUPS = "groups"
    CONTRASTIVE = "contrastive"
    PARQUET = "parquet"
    SWEEP = "sweep"
    FLASHINFER = "flashinfer"


_TRAINERS = frozenset(ExportFormat) - {ExportFormat.STEPS, ExportFormat.SWEEP, ExportFormat.FLASHINFER}
# The formats that each option of its own is for.
_OPTIONS = {
    "messages": {ExportFormat.SFT},
    "good_speedup": {ExportFormat.SFT, ExportFormat.KTO},
    "min_margin": {ExportFormat.PREFERENCE, ExportFormat.KTO},
    "test_share": _TRAINERS,
    "test_shape": _TRAINERS,
    "seed": _TRAINERS,
    "piece_mb": {ExportFormat.SWEEP},
    "every": {ExportFormat.FLASHINFER},
}


def _option(flag: str, help_: str, metavar: str, default: str | bool = False) -> Any:
    return typer.Option(flag, help=help_, metavar=metavar, show_default=default)


RunIds = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs to export, like --run; default: all.", show_default=False)
]
Out = Annotated[Path | None, _option("--out", "File, or a folder for splits; default: stdout.", "PATH")]
GoodSpeedup = Annotated[float | None, _option("--good-speedup", "sft: the minimum; kto: what is good.", "RATIO")]
MinMargin = Annotated[float | None, _option("--min-margin", "preference, kto: minimum difference.", "REWARD", "0.05")]
TestShare = Annotated[float | None, _option("--test-share", "Share of the shapes to test on.", "SHARE")]
TestShapes = Annotated[list[str] | None, _option("--test-shape", "Shapes to test on.", "MxNxK…")]
Seed = Annotated[int | None, _option("--seed", "Draws the test shapes.", "N", "0")]
PieceMb = Annotated[float | None, _option("--piece-mb", "sweep: several files of at most this size.", "MB")]


@filtered
def export(
    selected: "StepFilter",
    run_ids: RunIds = None,
    format: Annotated[ExportFormat, typer.Option("--format", help="What is written.")] = ExportFormat.STEPS,
    out: Out = None,
    messages: Annotated[bool, typer.Option("--messages", help="sft: one column of messages.")] = False,
    good_speedup: GoodSpeedup = None,
    min_margin: MinMargin = None,
    test_share: TestShare = None,
    test_shape: TestShapes = None,
    seed: Seed = None,
    piece_mb: PieceMb = None,
    every: Annotated[bool, typer.Option("--every", help="flashinfer: all kernels, not only the fastest of each task.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --out: print the summary as JSON.")] = False,
) -> None:
    """Training data: JSON lines with all that is stored of a step, or what a trainer loads (docs/internals/trajectories.md)."""
    given = {
        "messages": messages or None,
        "good_speedup": good_speedup,
        "min_margin": min_margin,
        "test_share": test_share,
        "test_shape": test_shape or None,
        "seed": seed,
        "piece_mb": piece_mb,
        "every": every or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    _check(format, options)
    named = selected.model_copy(update={"runs": (*selected.runs, *(run_ids or ()))})
    with opened(named) as (store, wanted), _read(store, wanted, quiet=out is None and sys.stdout.isatty()) as trajectories:
        match format:
            case ExportFormat.SWEEP:
                summary = _sweep(trajectories, out, options)
            case ExportFormat.FLASHINFER:
                summary = _flashinfer(trajectories, out, options)
            case _:
                summary = _dataset(trajectories, format, out, options)
    counts = summary.model_dump(mode="json")
    written = _lines_in(counts)
    if out is not None and as_json:
        print(json.dumps({"out": str(out), **counts}))
    elif out is not None and written:
        print(f"{_told(counts)} written to {out}")
    left = _left_out(counts)
    if not written:
        rows = f"0 rows of {counts['steps']:,} steps" if counts.get("steps") else "no step is selected"
        print("; ".join([f"note: nothing was written: {rows}", *left]), file=sys.stderr)
        raise typer.Exit(NOTHING)
    if left:
        print(f"note: left out: {'; '.join(left)}", file=sys.stderr)


def _check(format: ExportFormat, options: dict[str, Any]) -> None:
    for name in options:
        if format not in _OPTIONS[name]:
            flag = f"--{name.replace('_', '-')}"
            formats = ", ".join(one for one in ExportFormat if one in _OPTIONS[name])
            raise UsageError(f"{flag} is for the formats {formats}; leave it out for {format}")


@contextmanager
def _read(store: "Store", wanted: "StepFilter", *, quiet: bool) -> "Iterator[Iterator[Trajectory]]":
    """The selected trajectories, with progress on stderr unless that would stand between the lines of the answer."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.contract.events import StoreProgress
    from cudal2_agent.store.statistics import step_count

    if quiet:
        yield store.trajectories(wanted)
        return
    total = step_count(store, wanted)
    with Progress() as progress:

        def counted() -> "Iterator[Trajectory]":
            done = said = 0
            for trajectory in store.trajectories(wanted):
                yield trajectory
                done += len(trajectory.steps)
                if done - said >= _PROGRESS_EVERY:
                    said = done
                    progress.emit(StoreProgress(stage="export", done=done, total=total))

        yield counted()


def _dataset(trajectories: "Iterator[Trajectory]", format: ExportFormat, out: Path | None, options: dict[str, Any]) -> Record:
    from cudal2_agent.agent.wiring.policy import primitives
    from cudal2_agent.contract.records.task import parse_shape
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.policies.chat.prompts.composition import Prompts
    from cudal2_agent.policies.exports.dataset import export_dataset
    from cudal2_agent.policies.exports.formats import ExportOptions

    shapes = tuple("x".join(map(str, parse_shape(text))) for text in options.get("test_shape", ()))
    names = {
        "messages": "messages",
        "good_speedup": "min_speedup",
        "min_margin": "margin",
        "test_share": "test_share",
        "seed": "seed",
    }
    chosen = _validated(ExportOptions, {names[name]: value for name, value in options.items() if name in names}, names)
    prompts = Prompts(load_settings().chat.prompt_tokens, primitives())
    kind = cast("DatasetFormat", format.value)
    return export_dataset(trajectories, kind, out, chosen.model_copy(update={"test_shapes": shapes}), prompts)


def _validated(record: type[Any], values: dict[str, Any], names: dict[str, str]) -> Any:
    """Raises: UsageError, naming the flag."""
    from pydantic import ValidationError

    try:
        return record.model_validate(values)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        [flag] = [name for name, field in names.items() if field == first["loc"][0]]
        raise UsageError(f"--{flag.replace('_', '-')}: {first['msg'].lower()}, not {first['input']}") from exc


def _sweep(trajectories: "Iterator[Trajectory]", out: Path | None, options: dict[str, Any]) -> Record:
    from cudal2_agent.store.sweep.sweep_files import SweepOptions, SweepSummary, export_sweep, write_sweep

    if out is not None:
        piece_mb = options.get("piece_mb")
        if piece_mb is not None and not 0 < piece_mb < 1e6:
            raise UsageError(f"--piece-mb {piece_mb:g} is not a size; write megabytes like 4")
        return export_sweep(trajectories, out, SweepOptions(piece_bytes=round(piece_mb * 1e6) if piece_mb else None))
    if "piece_mb" in options or sys.stdout.isatty():
        raise UsageError("a sweep is compressed; name a file with --out, or write it to a pipe without --piece-mb")
    return SweepSummary(files=(), runs=0, steps=write_sweep(trajectories, sys.stdout.buffer), bytes=0)


def _flashinfer(trajectories: "Iterator[Trajectory]", out: Path | None, options: dict[str, Any]) -> Record:
    from cudal2_agent.agent.wiring.policy import primitives
    from cudal2_agent.policies.exports.flashinfer.flashinfer import write_flashinfer

    if out is None:
        raise UsageError("flashinfer-bench reads a folder; name one with --out")
    return write_flashinfer(trajectories, out, dict(primitives()), every=bool(options.get("every")))


def _lines_in(counts: dict[str, Any]) -> int:
    """The number of rows, steps or traces that a summary counts as written."""
    rows = counts.get("rows")
    return sum(rows.values()) if rows is not None else counts["traces"] if "traces" in counts else counts["steps"]


def _left_out(counts: dict[str, Any]) -> list[str]:
    """What an export left out: number and reason each, the most frequent first."""
    from cudal2_agent.policies.exports.counts import REASONS

    reasons = counts.get("left_out", {}) if counts.get("format") != ExportFormat.STEPS else {}
    told = [f"{number:,} {REASONS[reason]}" for reason, number in sorted(reasons.items(), key=lambda one: -one[1])]
    return told + ([f"{counts['skipped']:,} steps that the format cannot express"] if counts.get("skipped") else [])


def _told(counts: dict[str, Any]) -> str:
    """The counts of a summary in one line."""
    rows = counts.get("rows")
    if rows is not None and counts["format"] != ExportFormat.STEPS:
        return ", ".join(f"{count:,} rows ({split})" for split, count in rows.items()) + f" of {counts['steps']:,} steps"
    return ", ".join(f"{value:,} {name}" for name, value in counts.items() if isinstance(value, int) and value)
