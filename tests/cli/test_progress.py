"""Progress: plain lines where stderr is no terminal, a status line where it is one."""

import io

from rich.console import Console

from agent.cli.progress import Progress
from contract.evaluation import CompileFailed
from contract.events import Event, Notice, Proposed, RunFinished, RunStarted, StageStarted, StepFinished, WorkerRestarted
from tests.doubles import TASK, measured

STARTED = RunStarted(run_id="r", task=TASK, device="H200", budget=8, minutes=2.0, resumed_at_step=3)


def finished(index: int, evaluation: object, best: str | None = "a") -> StepFinished:
    fields = {"index": index, "candidate_id": "a", "label": "[bold]label[/bold]", "reward": None, "best_candidate_id": best}
    return StepFinished.model_validate({**fields, "evaluation": evaluation})


EVENTS: list[Event] = [
    STARTED,
    Proposed(round=1, policy="scripted", count=2, dropped=1),
    StageStarted(candidate_id="a", stage="verify"),
    finished(0, measured(5.0)),
    finished(1, CompileFailed(message="no", log="")),
    WorkerRestarted(reason="it crashed"),
    Notice(message="something"),
    RunFinished(run_id="r", reason="the end", steps=2, best_candidate_id="a"),
]


def shown(*, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, soft_wrap=True, highlight=False)
    with Progress(console) as progress:
        for event in EVENTS:
            progress.emit(event)
    return file.getvalue()


def test_plain_lines_without_a_terminal() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines == [
        "run r on H200: up to 8 candidates, 2 min, resumed at step 3",
        "round 1: 2 candidates from scripted, 1 dropped",
        "step   0  [bold]label[/bold]  5.00 us, 2.000x cuBLASLt-AutoTuning",
        "step   1  [bold]label[/bold]  compile failed: no",
        "worker restarted: it crashed",
        "note: something",
        "run r: the end, after 2 steps",
    ]


def test_a_terminal_has_the_lines_too() -> None:
    text = shown(terminal=True)
    assert "step   0  [bold]label[/bold]" in text
    assert "\x1b[" in text
