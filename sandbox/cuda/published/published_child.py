"""Measures one published file: `python -m cudal2_agent.sandbox.cuda.published.published_child REQUEST ANSWER STAGE`.

Covered: compiling and loading take no turn on the GPU; the turn lasts until the process is gone, and its memory with it; the
process ends itself at its deadline, even in a hung kernel; the stage that was reached is on disk before it begins.
"""

import contextlib
import faulthandler
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.cuda.published.published_row import PublishedRequest, PublishedRow, Stage, row_of

MOST_CHARS = 600
_HELD = contextlib.ExitStack()


class StageFile:
    """Writes the stage that was reached, and how long each took."""

    def __init__(self, path: Path) -> None:
        self._path, self._begin = path, time.monotonic()
        self.name: Stage = "start"
        self.seconds: dict[str, float] = {}
        self.enter("start")

    def enter(self, stage: Stage) -> None:
        now = time.monotonic()
        self.seconds[self.name] = round(self.seconds.get(self.name, 0.0) + now - self._begin, 1)
        self.name, self._begin = stage, now
        self._path.write_text(stage, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    request_path, answer_path, stage_path = (Path(word) for word in (sys.argv[1:] if arguments is None else arguments))
    request = PublishedRequest.model_validate_json(request_path.read_bytes())
    faulthandler.dump_traceback_later(request.limit_s, exit=True)
    stages = StageFile(stage_path)
    try:
        row = _measured(request, stages)
    except Cudal2Error as exc:
        row = row_of(request, "failed", f"{stages.name}: {exc}")
    except (Exception, SystemExit) as exc:  # noqa: BLE001 (whatever the file raises is about the file)
        reason = " ".join(str(exc).split())[:MOST_CHARS]
        row = row_of(request, "failed", f"{stages.name}: {type(exc).__name__}: {reason}")
    stages.enter("done")
    answer_path.write_text(row.model_copy(update={"seconds": stages.seconds}).model_dump_json(), encoding="utf-8")
    return 0


def _measured(request: PublishedRequest, stages: StageFile) -> PublishedRow:
    from cudal2_agent.sandbox.cuda.device import Device
    from cudal2_agent.sandbox.cuda.modules.tensors import memory_told, use_stream
    from cudal2_agent.sandbox.cuda.published.instances import Published
    from cudal2_agent.sandbox.cuda.published.published_cases import Cases, WrongForm
    from cudal2_agent.sandbox.cuda.published.published_program import without_states
    from cudal2_agent.sandbox.cuda.published.switches import Replaced, Switches
    from cudal2_agent.sandbox.workers.turns import DeviceTurn

    task = without_states(request.task)
    device = Device(request.device)
    place = use_stream(device)
    switches, replaced = Switches(task.arithmetic), Replaced()
    stages.enter("load")
    with switches.learning():
        published = Published(request.text, task, Path.cwd())
    _HELD.enter_context(DeviceTurn(request.turns, request.device).taken())
    with switches.learning():
        instance = published.build(request.seed, place)
    stages.enter("cases")
    cases = Cases(task, published, instance, place, switches, request.seed)
    row = row_of(request, "judged", weights=instance.describe(), environment=device.environment)
    try:
        with memory_told():
            tests = tuple(cases.tests())
    except WrongForm as exc:
        return row.model_copy(update={"status": "failed", "message": str(exc)})
    told: dict[str, Any] = {"tests": tests, "notes": _unequal(request)}
    if not cases.changed_input:  # timed inputs are read-only
        stages.enter("rounds")
        told |= _timed(request, task, device, place, published, switches, cases, told)
    found = [*replaced.findings(instance.model), *switches.findings(), *cases.findings, *told.get("findings", ())]
    return row.model_copy(update={**told, "findings": tuple(found)})


def _unequal(request: PublishedRequest) -> tuple[str, ...]:
    changed = [buffer.name for buffer in request.task.buffers if buffer.role is Role.STATE]
    return (f"{', '.join(changed[:3])}: states that it changes were not compared",) if changed else ()


def _timed(
    request: PublishedRequest,
    task: ModuleTask,
    device: Any,
    place: Any,
    published: Any,
    switches: Any,
    cases: Any,
    told: dict[str, Any],
) -> dict[str, Any]:
    """What the rounds add to a row. Work on other streams is waited for, in rounds of their own, where a call has some."""
    from cudal2_agent.contract.records.evaluation import TestResult
    from cudal2_agent.sandbox.cuda.published.published_program import CALL, GRAPH, InstanceProgram, PublishedContender
    from cudal2_agent.sandbox.cuda.published.published_timer import PublishedTimer, count_instances

    weight_bytes = sum(buffer.bytes for buffer in task.buffers if buffer.role is Role.PARAMETER)
    with switches.learning():
        instances = [published.build(request.seed + 1 + index, place) for index in range(count_instances(weight_bytes))]

    def contenders(joins: bool) -> list[PublishedContender]:
        def program(one: Any) -> InstanceProgram:
            return InstanceProgram(one.model, published.inputs, joins=joins)

        forms = [True, False] if request.capture else [True]
        return [PublishedContender(task, program, instances, switches, streamed=streamed) for streamed in forms]

    timer, findings = PublishedTimer(task, device, instances), []
    with contextlib.closing(timer):
        times = timer.compare(contenders(joins=False), request.time)
        beside = cases.other_streams()
        if beside != 0:
            times = timer.compare(contenders(joins=True), request.time)
            if beside:
                findings.append(
                    f"{beside} kernels and copies of a call run on other streams; its calls were timed to their end"
                )
    notes = (*told["notes"], *times.notes)
    if beside is None:
        notes = (*notes, "no profiler runs here, so that each of its calls waited for all streams")
    timed = tuple(
        TestResult(tier="while-timed", name=f"timed-{name}", passed=name not in times.wrong, message=times.wrong.get(name, ""))
        for name in times.timings
    )
    return {
        "status": "measured",
        "tests": (*told["tests"], *timed),
        "call": times.timings.get(CALL),
        "graph": times.timings.get(GRAPH),
        "baselines": times.baselines,
        "telemetry": times.telemetry,
        "notes": notes,
        "findings": findings,
    }


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # without finalisation: what a file loaded may hang there
