"""`cudal2-agent calibrate`: adapts the rates of the chip and the learned prior to the GPU in front of it."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import Accumulate, AsJson, Device, Mode, choice

if TYPE_CHECKING:
    from cudal2_agent.contract.events import Event

EXAMPLE = "\b\nExample:\n  cudal2-agent calibrate --minutes 10\n  cudal2-agent calibrate --mode server --device cuda:1 --json"


def calibrate(
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="Of measuring, those of earlier calls included.")] = 10.0,
    mode: Mode = "offline",
    accumulate: Accumulate = "f32",
    device: Device = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the schedules.", show_default="0")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a spread of shapes on this GPU and adapt to it what ranks schedules. The same command resumes an interrupted one.

    What does not order held-back shapes at least as well as before is left out.
    """
    from cudal2_agent.agent.cli.render.calibration_answer import calibration_lines
    from cudal2_agent.agent.learning.calibration.calibration_session import calibrate_device
    from cudal2_agent.contract.records.task import AccumulatorType, TimingMode
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(device=device, seed=seed)
    kind = choice("--mode", TimingMode, mode), choice("--accumulate", AccumulatorType, accumulate)
    try:
        result = calibrate_device(settings, minutes, *kind, _say, _notices)
    except KeyboardInterrupt:
        _say("interrupted: the shapes so far are kept, and the same command resumes")
        raise
    if settings.schedule_prior != "auto" and any(one.part == "prior" and one.path for one in result.adopted):
        _say(f"searches use the prior {settings.schedule_prior}; cudal2-agent prior use auto lets them find this one")
    print(result.model_dump_json() if as_json else "\n".join(calibration_lines(result)))


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _notices(event: "Event") -> None:
    """Of the runs' events those that a user should know of: a line for each shape says the rest."""
    from cudal2_agent.contract.events import Notice, WorkerRestarted

    if isinstance(event, Notice):
        _say(event.message)
    elif isinstance(event, WorkerRestarted):
        _say(f"a worker was started again: {event.reason}")
