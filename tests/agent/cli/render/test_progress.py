"""Progress: plain lines if stderr is not a terminal, a status line if it is."""

import io

import pytest
from rich.console import Console

from cudal2_agent.agent.cli.render.meter import Meter
from cudal2_agent.agent.cli.render.progress import Progress, StatusLine
from cudal2_agent.contract.events import (
    Event,
    IndexProgress,
    Notice,
    Proposed,
    Replied,
    Replying,
    RunFinished,
    RunStarted,
    StageStarted,
    StepFinished,
    Witnessed,
    WorkerRestarted,
)
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import CompileFailed, TestResult, Witness, Wrong
from cudal2_agent.contract.records.exchange import Usage
from tests.doubles import INSPECTION, TASK, candidate, measured, unmeasured

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


RACE = TestResult(tier="witness", name="shared-race", passed=False, message="warp 1 reads\nwhat warp 0 writes " * 9)
SAID = [
    (measured(5.0).model_copy(update={"witness": Witness(status="agreed")}), "agrees"),
    (measured(5.0).model_copy(update={"witness": Witness(status="in-part")}), "agrees, run in part"),
    (measured(5.0).model_copy(update={"witness": Witness(status="unavailable", reason="no\ncore " * 40)}), "none: no core"),
    (Wrong(test=RACE, tests=(RACE,), inspection=INSPECTION), "refused: witness/shared-race: warp 1 reads what"),
]


@pytest.mark.parametrize(("evaluation", "said"), SAID, ids=[said for _, said in SAID])
def test_a_proof_is_one_line_of_100_columns_and_sets_the_best(evaluation: object, said: str) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=False, width=200, soft_wrap=True, highlight=False)
    fields = {"candidate_id": "a" * 16, "seconds": 1.25, "evaluation": evaluation, "reward": None}
    with Progress(console) as progress:
        progress.emit(Witnessed.model_validate({**fields, "best_candidate_id": "a" * 16}))
        assert progress._best == ("best 5.00 us" if evaluation.__class__.__name__ == "Measured" else "")
    [line] = file.getvalue().splitlines()
    assert line.startswith(f"second witness aaaaaaaa in 1.2 s: {said}")
    assert len(line) <= 100


LONG = "the index could not be read; " * 8
LABEL = candidate(0).model_copy(
    update={"origin": Origin(policy="schedule", schedule={"family": "wgmma_tma", **{f"axis_{n}": n for n in range(2, 20)}})}
)
LONG_EVENTS: list[Event] = [
    STARTED.model_copy(update={"run_id": "16384x16384x16384-20261121-130401-ab12", "device": "NVIDIA H100 80GB HBM3"}),
    Notice(message=LONG),
    WorkerRestarted(reason=LONG),
    finished(0, measured(12345.0)).model_copy(update={"label": LABEL.short_name}),
    finished(1, CompileFailed(message=LONG, log="")).model_copy(update={"label": LABEL.short_name}),
    finished(2, unmeasured(3.0).model_copy(update={"reason": LONG})).model_copy(update={"label": LABEL.short_name}),
    RunFinished(run_id="16384x16384x16384-20261121-130401-ab12", reason=LONG, steps=2, best_candidate_id="a"),
]


@pytest.mark.parametrize("event", LONG_EVENTS, ids=lambda event: event.event)
def test_no_row_of_progress_is_longer_than_100_columns(event: Event) -> None:
    file = io.StringIO()
    with Progress(Console(file=file, force_terminal=False, width=200, soft_wrap=True, highlight=False)) as progress:
        progress.emit(event)
    rows = file.getvalue().splitlines()
    assert rows
    assert max(map(len, rows)) <= 100
    assert all(row.startswith("  ") for row in rows[1:])
    if isinstance(event, StepFinished):
        assert len(rows) == 1
        assert rows[0].startswith(f"step {event.index:>3}  wgmma_tma axis_2=2 axis_3=3 …  ")


def test_a_long_notice_is_shown_whole() -> None:
    file = io.StringIO()
    with Progress(Console(file=file, force_terminal=False, width=200, soft_wrap=True, highlight=False)) as progress:
        progress.emit(Notice(message=LONG))
    assert file.getvalue().replace("\n  ", " ").strip() == f"note: {LONG}".strip()


class Ticking:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def embedding(done: int, total: int | None = 1000) -> IndexProgress:
    return IndexProgress(release="cutlass-4.2.0", stage="embed", done=done, total=total)


def test_the_meter_tells_rate_and_time_left() -> None:
    ticking = Ticking()
    meter = Meter(ticking)
    assert meter.line(embedding(0)) == "cutlass-4.2.0: embedding pieces 0 of 1,000"
    ticking.now_s = 2.0
    assert meter.line(embedding(200)) == "cutlass-4.2.0: embedding pieces 200 of 1,000, 100/s, 8 s left"
    assert meter.line(embedding(1000)) == "cutlass-4.2.0: embedding pieces 1,000 of 1,000, 500/s"
    assert meter.line(embedding(200, total=None)) == "cutlass-4.2.0: embedding pieces 200, 100/s"
    assert meter.line(IndexProgress(release="notes", stage="fetch", done=0, total=1)) == "notes: fetching"


def test_a_log_gets_few_lines_of_indexing() -> None:
    ticking = Ticking()
    meter = Meter(ticking)
    said = []
    for done in range(1001):
        ticking.now_s = done / 40
        if meter.is_due(embedding(done)):
            said.append(done)
    assert said == [0, 400, 800]


@pytest.mark.parametrize("terminal", [False, True])
def test_indexing_is_shown(terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, soft_wrap=True, highlight=False)
    with Progress(console) as progress:
        progress.emit(embedding(0))
        progress.emit(embedding(1))
    assert ("cutlass-4.2.0: embedding pieces 0 of 1,000\n" in file.getvalue()) is not terminal
    assert "1 of 1,000" not in file.getvalue() or terminal


def test_a_terminal_has_the_lines_too() -> None:
    text = shown(terminal=True)
    assert "step   0  [bold]label[/bold]" in text
    assert "\x1b[" in text


def test_the_status_lines_clocks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking()
    monkeypatch.setattr("cudal2_agent.agent.cli.render.progress.time.monotonic", ticking)
    line = StatusLine("verify 2bd09041", "best 2.53 us predicted", deadline_s=100.0, since_s=0.0)
    assert line.__rich__().plain == "verify 2bd09041  best 2.53 us predicted  100 s left"
    ticking.now_s = 12.0
    assert line.__rich__().plain == "verify 2bd09041, 12 s  best 2.53 us predicted  88 s left"
    assert StatusLine("verify 2bd09041", "", None, 0.0).__rich__().plain == "verify 2bd09041, 12 s"


def replied(sample: int, problem: str) -> Replied:
    usage = Usage(prompt_tokens=900, completion_tokens=1200, counted="server")
    common = {
        "round": 2,
        "sample": sample,
        "turn": 0,
        "status": "complete",
        "problem": problem,
        "usage": usage,
        "candidates": 0 if problem else 1,
    }
    return Replied.model_validate({**common, "seconds": 61.0, "total_tokens": 12_300, "total_cost": 0.0})


def test_replies_under_way_share_one_status_and_leave_a_line_each() -> None:
    file = io.StringIO()
    stages: list[str] = []
    with Progress(Console(file=file, force_terminal=True, width=200, soft_wrap=True, highlight=False)) as progress:
        for event in (
            STARTED,
            Replying(round=2, sample=0, characters=900),
            Replying(round=2, sample=3, characters=300),
            Replying(round=2, sample=0, characters=1000),
            replied(0, ""),
            replied(3, "no code"),
            Replying(round=2, sample=1, characters=7),
            Proposed(round=2, policy="chat", count=1),
            Replying(round=3, sample=0, characters=5),
        ):
            progress.emit(event)
            assert progress._status is not None
            assert isinstance(progress._status.status, StatusLine)
            stages.append(progress._status.status.doing)
    assert stages == [
        "waiting for candidates",
        "1 reply in progress, 900 characters",
        "2 replies in progress, 1,200 characters",
        "2 replies in progress, 1,300 characters",
        "1 reply in progress, 300 characters",
        "waiting for replies",
        "1 reply in progress, 7 characters",
        "building",
        "1 reply in progress, 5 characters",
    ]
    assert "reply 2.1: 1,200 tokens in 61 s, a candidate; 12,300 tokens so far" in file.getvalue()
    assert "reply 2.4: 1,200 tokens in 61 s, no code; 12,300 tokens so far" in file.getvalue()
