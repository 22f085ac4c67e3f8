"""A worker process of `benchmarks.modules.kernelbench`: measures one task after another on one GPU that it shares in turns.

    python -m benchmarks.modules.measuring OPTIONS

OPTIONS is `Measuring` as JSON. It reads the path of a task, a line each, and answers with JSON lines: `ready` once, then for
each task `stage` as it enters one, and its `row`.
"""

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.modules.rows import Row, attempt_of, figures_of, head_of
from benchmarks.modules.turns import GpuTurn
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Evaluation, Measured
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.reward.speedup import median_us
from cudal2_agent.contract.settings.options import SCREEN_TIME, CompileOptions, TimeOptions, VerifyOptions
from cudal2_agent.policies.fusion.policy import FusionPolicy
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.workers.messages import CandidateBatch, Done, Evaluate, StageEntered

LARGE_BYTES = 2_000_000_000  # of operands, from which candidates are evaluated whole, one after another, and few
VERY_LARGE_BYTES = 6_000_000_000  # from which one candidate is, on one set of fresh data
LARGE_CANDIDATES = 2
FINALISTS, CLOSE = 2, 1.03  # of a screen, and how far behind the first one


class Measuring(Record):
    """`turns`: folder of the locks of this GPU. `autotuned`: names of tasks whose baselines include max-autotune."""

    turns: str
    cache: str
    candidates: int = 4
    rounds: int = 9
    budget_s: float = 4.0
    jobs: int = 2
    autotuned: tuple[str, ...] = ()


class Stages:
    """Tells each stage, takes the GPU's turn for it, and keeps the seconds of each without those of waiting."""

    def __init__(self, say: Callable[[Row], None]) -> None:
        self._say = say
        self.turn: GpuTurn | None = None  # of a GPU that other processes use too
        self.seconds: dict[str, float] = {}
        self._stage, self._begin_s, self._keeps = "", 0.0, False

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Once the GPU is had alone, keep it so: many short stages would wait for it each."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    def __call__(self, message: Any) -> None:
        if not isinstance(message, StageEntered):
            return
        if message.stage != self._stage:
            self.enter(message.stage)
        else:
            self._say({"stage": message.stage})  # of the next candidate: the limit is that of one

    def tell_pause(self, paused: bool) -> None:
        """While others have the GPU alone in the middle of a stage, its limit does not run."""
        self._say({"stage": "wait" if paused else self._stage or "start"})

    def enter(self, stage: str) -> None:
        """`time` has the GPU alone, `cpu` does not use it."""
        self.end()
        if self.turn is not None and not (self._keeps and self.turn.held == "alone"):
            self._say({"stage": "wait"})
            begin = time.monotonic()
            {"time": self.turn.alone, "cpu": self.turn.leave}.get(stage, self.turn.share)()
            self._add("wait", time.monotonic() - begin)
        self._say({"stage": stage})
        self._stage, self._begin_s = stage, self._working_s

    def end(self) -> None:
        if self._stage:
            self._add(self._stage, self._working_s - self._begin_s)
        self._stage = ""

    @property
    def _working_s(self) -> float:
        return time.monotonic() - (0.0 if self.turn is None else self.turn.paused_s)

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + seconds, 3)


def candidates_of(task: ModuleTask, asked: int) -> int:
    """How many candidates of a task are measured."""
    if task.operand_bytes > VERY_LARGE_BYTES:
        return min(asked, 1)
    return min(asked, LARGE_CANDIDATES) if task.operand_bytes > LARGE_BYTES else asked


class Measurer:
    """Measures tasks by an evaluator and a builder; `stages` has the turns."""

    def __init__(self, options: Measuring, chip: Chip, builder: Builder, evaluator: Any, stages: Stages) -> None:
        self._options, self._chip, self._builder = options, chip, builder
        self._evaluator, self._stages = evaluator, stages

    def row(self, task: ModuleTask, candidates: Sequence[AnyCandidate] | None = None) -> Row:
        """The row of a task, whatever becomes of it. `candidates`: in the place of the fuser's first ones."""
        self._stages.seconds, begin, row = {}, time.monotonic(), head_of(task)
        self.tried: dict[str, tuple[AnyCandidate, Evaluation]] = {}
        try:
            row |= self._measured(task, candidates)
        except Exception as exc:  # noqa: BLE001 (one task's failure is a row of the results)
            row |= {"status": "failed", "message": f"{type(exc).__name__}: {' '.join(str(exc).split())[:600]}"}
        self._stages.end()
        row["candidates"] = [attempt_of(candidate, evaluation) for candidate, evaluation in self.tried.values()]
        return row | {"seconds": self._stages.seconds, "wall_s": round(time.monotonic() - begin, 1)}

    def _measured(self, task: ModuleTask, candidates: Sequence[AnyCandidate] | None) -> Row:
        self._stages.enter("cpu")
        if candidates is None:
            policy, count = FusionPolicy(), candidates_of(task, self._options.candidates)
            candidates = policy.propose(Observation(task=task, chip=self._chip, round=0, seed=0), count)
            if not candidates:
                return {"status": "no candidate", "message": policy.exhausted}
        built, large = self._built(candidates, task), task.operand_bytes > LARGE_BYTES
        found = self._one_by_one(task, built) if large else self._raced(task, self._ranked(task, built))
        if found is None:
            first = next(one for _, one in self.tried.values() if not isinstance(one, Measured))
            return {"status": first.status, "message": first.headline[:600]}
        one, measured = found
        return {"status": "measured", "best": one.candidate.id, **figures_of(measured)}

    def _built(self, candidates: Sequence[AnyCandidate], task: ModuleTask) -> list[Built]:
        found: dict[int, Built] = {}
        for position, outcome in self._builder.build(candidates, task):
            if isinstance(outcome, Built):
                found[position] = outcome
            else:
                self.tried[candidates[position].id] = candidates[position], outcome
        return [found[position] for position in sorted(found)]

    def _options_of(self, task: ModuleTask) -> TimeOptions:
        autotuned = task.name in self._options.autotuned
        budget_s = self._options.budget_s
        return TimeOptions(rounds=self._options.rounds, side=False, budget_s=budget_s, max_autotune=autotuned)

    def _one_by_one(self, task: ModuleTask, built: Sequence[Built]) -> tuple[Built, Measured] | None:
        """Of a large task the fastest of brief screens that is right: one candidate's memory at a time."""
        verify = VerifyOptions(rounds=1) if task.operand_bytes > VERY_LARGE_BYTES else VerifyOptions()
        for one in self._ranked(task, built, apart=True):
            request = Evaluate(built=one, task=task, verify=verify, time=self._options_of(task), effort="full")
            answer = self._evaluator.evaluate(request)
            assert isinstance(answer, Done)  # a time was asked for
            self.tried[one.candidate.id] = one.candidate, answer.evaluation
            if isinstance(answer.evaluation, Measured):
                return one, answer.evaluation
            if not answer.healthy:
                break
        return None

    def _ranked(self, task: ModuleTask, built: Sequence[Built], *, apart: bool = False) -> list[Built]:
        """Those that a brief screen found right, fastest first; all where there is one. None where a screen broke the GPU's
        context, in which nothing more is measured. `apart`: a screen for each.
        """
        if len(built) < 2:
            return list(built)
        brief = SCREEN_TIME.model_copy(update={"max_autotune": False})
        with self._stages.keeping():
            for batch in [[one] for one in built] if apart else [built]:
                if not all(done.healthy for done in self._batch("screen", task, batch, brief)):
                    return []
        right = [one for one in built if self._screened_us(one)]
        return sorted(right, key=self._screened_us)

    def _raced(self, task: ModuleTask, ranked: Sequence[Built]) -> tuple[Built, Measured] | None:
        """The fastest of the first ones beside all baselines; of the next ones where those are wrong after all."""
        left = list(ranked)
        while left:
            best = self._screened_us(left[0])
            finalists = [one for one in left[:FINALISTS] if self._screened_us(one) <= CLOSE * best]
            left = left[len(finalists) :]
            found: list[tuple[Built, Measured]] = []
            for done in self._batch("race", task, finalists, self._options_of(task)):
                if isinstance(done.evaluation, Measured):
                    found.append((finalists[done.position], done.evaluation))
                if not done.healthy:
                    left = []
            if found:
                return min(found, key=lambda each: median_us(each[1].timing))
        return None

    def _batch(self, effort: Any, task: ModuleTask, built: Sequence[Built], options: TimeOptions) -> list[Done]:
        request = CandidateBatch(effort=effort, built=tuple(built), task=task, verify=VerifyOptions(), time=options)
        done = list(self._evaluator.batch(request))
        for each in done:
            candidate = built[each.position].candidate
            self.tried[candidate.id] = candidate, each.evaluation
        return done

    def _screened_us(self, one: Built) -> float:
        """0 where there was no screen."""
        evaluation = self.tried.get(one.candidate.id, (None, None))[1]
        return median_us(evaluation.timing) if isinstance(evaluation, Measured) else 0.0


def main() -> None:
    options = Measuring.model_validate_json(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    import torch

    from cudal2_agent.sandbox.cuda.batch_evaluator import BatchEvaluator
    from cudal2_agent.sandbox.cuda.device import Device
    from cudal2_agent.sandbox.cuda.modules.tensors import give_back

    def say(message: Row) -> None:
        out.write(json.dumps(message) + "\n")

    torch.set_num_threads(1)
    device = Device(0)
    # The first compilation of a process loads the compiler, for up to 15 s. Where it fails, a baseline's fails too, and every
    # row says so.
    with contextlib.suppress(Exception):
        torch.compile(lambda x: torch.relu(x).sum(-1), fullgraph=True)(torch.ones(64, 64, device="cuda:0"))

    def idle() -> bool:
        """Not in the middle of a capture, where nothing may be waited for."""
        if device.stream.is_capturing() or torch.cuda.is_current_stream_capturing():
            return False
        device.poison()
        return True

    stages = Stages(say)
    stages.turn = turn = GpuTurn(Path(options.turns), idle, stages.tell_pause)
    evaluator = BatchEvaluator(device, stages)
    builder = Builder(CompileOptions(cache_dir=options.cache, jobs=options.jobs), device.chip)
    measurer = Measurer(options, device.chip, builder, evaluator, stages)
    say({"ready": {"memory_bytes": device.chip.memory_bytes, "gpu": device.environment.gpu}})
    for line in sys.stdin:
        row = measurer.row(ModuleTask.model_validate_json(Path(line.strip()).read_text("utf-8")))
        healthy = device.poison() is None
        if healthy:
            turn.share()
            evaluator.forget()
            torch._dynamo.reset()
            gc.collect()
            give_back()
            device.pool.free_all_blocks()
        turn.leave()
        say({"row": row})
        if not healthy:
            os._exit(3)  # a context that is broken stays so
    builder.close()


if __name__ == "__main__":
    main()
