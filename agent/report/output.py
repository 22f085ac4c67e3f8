"""The output folder of a run. Every file is written completely or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cudal2.modules.stored_module import PROBLEM
from cudal2_agent.agent.report.keeping import replaces_pytorch
from cudal2_agent.agent.report.module_folder import problem_at, write_module
from cudal2_agent.agent.report.plan_picture import draw_plan, plan_of_best
from cudal2_agent.agent.report.progress_plot import draw_progress
from cudal2_agent.agent.report.report import render_report
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.whole_file import whole_file

_PROBE = ".cudal2-writable"


def reserve(out: Path) -> None:
    """Make the output folder and check that it is writable, before any work. Raises: UsageError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / _PROBE
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as exc:
        raise UsageError(f"output folder {out} cannot be written ({exc.strerror}); choose another with --out") from exc


def write_output(out: Path, outcome: RunResult, built: Built | None, artifact: bytes | None = None) -> None:
    """Write the best kernel with plan, cubin and evaluation, the settings, the report and its plot; for a module that is worth
    replacing also what a program imports.

    `built`: the best candidate as built, None where there is none. `artifact`: its compiled code.
    Raises: UsageError where the folder is no longer writable; the store still has everything.
    """
    try:
        if outcome.best is not None:
            _write_best(out, outcome, built, artifact)
        if isinstance(outcome.run.task, ModuleTask):
            write_text(out / PROBLEM, problem_at(outcome.run.task))
            if (plan := plan_of_best(outcome.best, outcome.run)) is not None:
                write_text(out / "plan.svg", draw_plan(plan, outcome.run.task, outcome.best))
        write_text(out / "settings.json", outcome.run.model_dump_json(indent=1) + "\n")
        write_text(out / "progress.svg", draw_progress(outcome.steps, outcome.best))
        write_text(out / "report.md", render_report(outcome, out))
    except OSError as exc:
        raise UsageError(
            f"output folder {out} could not be written ({exc.strerror}); nothing is lost: "
            f"cudal2-agent runs show {outcome.run.run_id}"
        ) from exc


def _write_best(out: Path, outcome: RunResult, built: Built | None, artifact: bytes | None) -> None:
    assert outcome.best is not None
    candidate = outcome.best.candidate
    write_text(out / "kernel.cu", candidate.source)
    write_text(out / "evaluation.json", outcome.best.evaluation.model_dump_json(indent=1) + "\n")
    if isinstance(candidate, Candidate):
        write_text(out / "plan.json", candidate.plan.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    if built is not None and artifact is not None:
        with whole_file(out / ("kernel.cubin" if isinstance(candidate, Candidate) else "kernel.so")) as place:
            place.write_bytes(artifact)
        task = outcome.run.task
        if isinstance(task, ModuleTask) and built.plan is not None and replaces_pytorch(task, outcome.best):
            write_module(out, task, built.plan, write_text)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A text file that appears once it is complete. After a failure the old file stays."""
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield file
