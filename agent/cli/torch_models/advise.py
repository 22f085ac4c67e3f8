"""`cudal2-agent advise`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, choice
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import ElementType

if TYPE_CHECKING:
    from cudal2_agent.agent.library.advise.advice import Advice
    from cudal2_agent.agent.library.advise.products import Recording

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent advise model.py --shapes-out missing.json\n"
    "  cudal2-agent advise --trace trace.json.gz --chip H200"
)
SHAPES = Path("missing.json")


def advise(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.py", help="Defines model() and inputs(). It runs with your rights.", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="A trace of torch.profiler instead, with shapes.", show_default=False),
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option("--library", metavar="FOLDER|FILE", help="Default: the one that ships for the chip.", show_default=False),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option("--chip", help="Default: the trace's GPU, else the one here, else the library's.", show_default=False),
    ] = None,
    element: Annotated[
        str | None,
        typer.Option("--element", help="f16 or bf16: count matrix products of other elements as this one.", show_default=False),
    ] = None,
    passes: Annotated[
        int | None,
        typer.Option("--passes", min=1, help="Passes in the trace; default: its profiler steps, else 1.", show_default=False),
    ] = None,
    shapes_out: Annotated[
        Path | None,
        typer.Option("--shapes-out", metavar="FILE", help="Write what is missing, for `campaign run`.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a PyTorch model would gain by a kernel library, per pass: forward and backward, in microseconds and per cent.

    A gain is measured, over cuBLASLt-AutoTuning; times that are predicted are marked and never part of it.
    """
    from cudal2_agent.agent.cli.render.advice_table import advice_lines
    from cudal2_agent.agent.library.advise.search_plan import plan_searches

    if (file is None) == (trace is None):
        raise UsageError("name either a model, FILE.py, or a trace with --trace FILE")
    if passes is not None and trace is None:
        raise UsageError("--passes counts those of a trace; a model runs once")
    recording = _recorded(file, trace, element, passes)
    advice = _advice(str(file or trace), recording, library, chip)
    plans = plan_searches(advice, shapes_out or SHAPES, write=shapes_out is not None)
    if as_json:
        print(json.dumps({**advice.model_dump(mode="json"), "searches": [plan.model_dump(mode="json") for plan in plans]}))
    else:
        print("\n".join(advice_lines(advice, plans, written=shapes_out is not None)))


def _recorded(file: Path | None, trace: Path | None, element: str | None, passes: int | None) -> "Recording":
    from cudal2_agent.agent.library.advise.profiler_trace import read_trace
    from cudal2_agent.agent.library.advise.recording import record_model

    half = choice("--element", ElementType, element) if element else None
    recording = record_model(file) if file else read_trace(trace or Path())
    recording = recording.model_copy(update={"passes": passes}) if passes else recording
    try:
        return (recording.in_half_precision(half) if half else recording).both_ways()
    except ValueError as exc:
        raise UsageError("--element changes matrix products of other elements, and this trace has GPU times of them") from exc


def _advice(source: str, recording: "Recording", library: Path | None, chip: str | None) -> "Advice":
    from cudal2_agent.agent.library.advise.advice import advise as advise_on
    from cudal2_agent.agent.library.advise.known_kernels import (
        autotuning_times,
        chip_of,
        find_target,
        latest_searches,
        open_kernels,
    )
    from cudal2_agent.agent.library.advise.library_times import LibraryTimes
    from cudal2_agent.agent.library.measured_kernels import kernels_of_store
    from cudal2_agent.agent.wiring.gpus import visible_gpus
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.store import open_store

    target = find_target(chip, recording, visible_gpus())
    kernels = open_kernels(library, target.name if target else None)
    known = chip_of(target, kernels)
    with open_store(load_settings().store_url) as store:
        searches = latest_searches(kernels_of_store(store), known.name)
    return advise_on(source, recording, kernels, searches, LibraryTimes(autotuning_times(searches), known))
