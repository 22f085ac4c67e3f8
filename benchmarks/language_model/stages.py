"""The three stages of `train lm` in order, with the worth of the model's proposals before, between and after them.

Run from the repository's root, first where the store is (minutes on a CPU, no GPU):
  python -m benchmarks.language_model.stages --prepare lm-data --jobs 8
then on a GPU, as often as needed; what is in OUT already is not done again:
  python -m benchmarks.language_model.stages --data lm-data --out lm-run --minutes 8
OUT gets the adapters `sft`, `contrastive` and `grpo`, the proposals of each proposer in `proposals`, and `results.json`:
figures, curves with the seconds of a group-relative step by part, settings, versions. The last lines are the table. Shapes of
`h200/held_out.json` train nothing and are all that is evaluated, unless --shapes names others.
Values: rewards where a GPU measures, else those of verified candidates' predicted times (`contract/reward/score.py`).
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.h200.grid import held_out
from cudal2_agent.agent.cli.render.progress import Progress
from cudal2_agent.agent.cli.render.proposal_table import proposal_lines
from cudal2_agent.agent.learning.environment.sandbox_score import open_score
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.records.task import GemmTask, parse_shape
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.exports.splits import ShapeSplit
from cudal2_agent.policies.lm.examples import STAGES, MapTasks, Stage, make_examples, read_examples, write_examples
from cudal2_agent.policies.lm.proposal_worth import (
    ModelProposer,
    PriorProposer,
    ProposalComparison,
    Proposer,
    ProposerFigures,
    RandomProposer,
    compare,
)
from cudal2_agent.policies.lm.replies.reply_reward import ScoredCandidates
from cudal2_agent.policies.lm.stages.stage_settings import LEARNING_RATES, StageSettings, work_of
from cudal2_agent.policies.lm.stored_searches import stored_searches
from cudal2_agent.store.store import open_store

BASE = "base model"
CONSTRAINED = ", constrained"  # to schedules of the task, token by token
CURVES = ("step", "loss", "mean_token_accuracy", "reward", "reward_std", "valid", "verified", "kl", "step_time")
PARTS = ("sample_s", "read_s", "build_s", "measure_s")  # of a group-relative step; the rest updates weights


def prepare(folder: Path, jobs: int, tasks: int | None, seed: int, emit: Emit) -> None:
    """The examples of all stages from the store of the settings, without the held-out shapes.

    `tasks`: of so many shapes at random; None is all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open_store(load_settings().store_url) as store:
        searches = list(stored_searches(store))
    if tasks is not None:
        shapes = sorted({one.task.shape for one in searches} - held_out())
        chosen = set(random.Random(seed).sample(shapes, min(tasks, len(shapes))))
        searches = [one for one in searches if one.task.shape in chosen]
    split = ShapeSplit(test_shapes=tuple(held_out()), seed=seed)
    with _mapping(jobs) as map_tasks:
        for stage, examples in make_examples(searches, STAGES, split, seed, emit, map_tasks).items():
            write_examples(folder / f"{stage}.json", examples)
            print(json.dumps({"stage": stage, **examples.counts.model_dump()}))


@contextmanager
def _mapping(jobs: int) -> Iterator[MapTasks]:
    if jobs == 1:
        yield map
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield partial(pool.map, chunksize=4)


class StagesRun:
    """One run in a folder. A part that is finished is not done again; no part begins after `deadline_s`."""

    def __init__(
        self, arguments: argparse.Namespace, emit: Emit, score: ScoredCandidates, chip: Any, deadline_s: float
    ) -> None:
        self._arguments, self._emit, self._scores, self._chip, self._deadline_s = arguments, emit, score, chip, deadline_s
        self._out: Path = arguments.out
        (self._out / "proposals").mkdir(parents=True, exist_ok=True)
        self.tasks = [_task(shape, chip.arch) for shape in _shapes(arguments)]

    def parts(self) -> list[tuple[str, Callable[[], None]]]:
        """Training and evaluation in order, each with a name."""
        found: list[tuple[str, Callable[[], None]]] = [
            (name, partial(self._evaluate, name, make))
            for name, make in (
                ("random valid", RandomProposer),
                ("analytic prior", PriorProposer),
                (BASE, partial(self._base, BASE, False)),
                (f"{BASE}{CONSTRAINED}", partial(self._base, f"{BASE}{CONSTRAINED}", True)),
            )
        ]
        before: Stage | None = None
        for stage in STAGES:
            if self._steps(stage):
                found.append((f"train {stage}", partial(self._train, stage, before)))
                for name, constrained in ((stage, False), (f"{stage}{CONSTRAINED}", True)):
                    found.append((name, partial(self._evaluate, name, partial(self._adapter, stage, name, constrained))))
                before = stage
        return found

    def finished(self, name: str) -> bool:
        stage = name.removeprefix("train ")
        return (self._out / stage).exists() if name != stage else self._place(name).exists()

    def run(self) -> None:
        for name, part in self.parts():
            if self.finished(name):
                continue
            if time.monotonic() > self._deadline_s:
                print(f"no time left for {name}; run the same command again")
                return
            began_s = time.monotonic()
            part()
            self.save()
            print(f"{name}: {time.monotonic() - began_s:.0f} s")

    def figures(self) -> list[ProposerFigures]:
        order = [name for name, _ in self.parts()]
        files = sorted((self._out / "proposals").glob("*.json"), key=lambda file: order.index(file.stem))
        return [one for file in files for one in ProposalComparison.model_validate_json(file.read_bytes()).figures]

    def results(self) -> dict[str, Any]:
        """Everything that the run holds so far, with the curve of a stage that was not finished."""
        trained = [stage for stage in STAGES if (self._out / stage).exists()]
        return {
            "chip": self._chip.name,
            "shapes": [task.shape for task in self.tasks],
            "figures": [one.model_dump() for one in self.figures()],
            "adapter": json.loads((self._out / trained[-1] / "cudal2.json").read_text("utf-8")) if trained else None,
            "curves": {stage: curve for stage in STAGES if (curve := self._curve(stage))},
        }

    def save(self) -> None:
        """Write what the run holds so far, so that a kill loses one part at most."""
        (self._out / "results.json").write_text(json.dumps(self.results(), indent=1), encoding="utf-8")

    def _curve(self, stage: Stage) -> list[dict[str, Any]]:
        logs = [folder / "log.jsonl" for folder in (self._out / stage, work_of(self._out / stage))]
        lines = next((_lines(log) for log in logs if log.exists()), [])
        return [{name: one[name] for name in (*CURVES, *PARTS) if name in one} for one in lines]

    def _steps(self, stage: Stage) -> int:
        steps: int = getattr(self._arguments, f"{stage}_steps")
        return steps

    def _place(self, name: str) -> Path:
        return self._out / "proposals" / f"{name}.json"

    def _evaluate(self, name: str, make: Callable[[], Proposer]) -> None:
        arguments = self._arguments
        found = compare([make()], self.tasks, self._chip, self._scores, self._emit, arguments.proposals, arguments.seed)
        self._place(name).write_text(found.model_dump_json(), encoding="utf-8")

    def _base(self, name: str, constrained: bool) -> Proposer:
        from cudal2_agent.policies.lm.base_model import load_base
        from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler

        return ModelProposer(name, ReplySampler(load_base(self._arguments.model)), constrained=constrained)

    def _adapter(self, stage: Stage, name: str, constrained: bool) -> Proposer:
        from cudal2_agent.policies.lm.adapter_folder import open_adapter
        from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler

        sampler = ReplySampler(open_adapter(self._out / stage, self._arguments.model)[0])
        return ModelProposer(name, sampler, constrained=constrained)

    def _train(self, stage: Stage, before: Stage | None) -> None:
        from cudal2_agent.policies.lm.stages.stages import begin, train_stage

        arguments = self._arguments
        settings = StageSettings(
            stage=stage,
            model=arguments.model,
            previous=str(self._out / before) if before else None,
            steps=self._steps(stage),
            seed=arguments.seed,
            learning_rate=LEARNING_RATES[stage],
            batch=arguments.grpo_batch if stage == "grpo" else arguments.batch,
            group=arguments.group,
            save_every=arguments.save_every,
            reply_tokens=arguments.reply_tokens,
        )
        if not work_of(self._out / stage).exists():
            begin(self._out / stage, settings, lambda: read_examples(arguments.data / f"{stage}.json", stage))
        train_stage(self._out / stage, self._emit, self._scores.score if stage == "grpo" else None)


def _task(shape: str, arch: Any) -> GemmTask:
    m, n, k = parse_shape(shape)
    return GemmTask(m=m, n=n, k=k, arch=arch)


def _shapes(arguments: argparse.Namespace) -> Sequence[str]:
    """The shapes to evaluate: those that are named, else some of the held-out ones, evenly by their order."""
    if arguments.shapes:
        return [str(shape) for shape in arguments.shapes]
    kept = sorted(held_out(), key=lambda shape: (_task(shape, "sm_90a").flops, shape))
    count = min(arguments.shape_count, len(kept))
    return [kept[(2 * number + 1) * len(kept) // (2 * count)] for number in range(count)]


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, help="write the examples to this folder, and end")
    parser.add_argument("--jobs", type=int, default=1, help="processes that make the examples")
    parser.add_argument("--tasks", type=int, help="make examples of so many shapes at random; all by default")
    parser.add_argument("--data", type=Path, default=Path("lm-data"), help="folder of the examples")
    parser.add_argument("--out", type=Path, default=Path("lm-run"))
    parser.add_argument("--model", help="the packaged model by default")
    parser.add_argument("--device", help="auto, emulator, or cuda:N")
    parser.add_argument("--minutes", type=float, default=8.0, help="no part begins after these")
    parser.add_argument("--sft-steps", type=int, default=400)
    parser.add_argument("--contrastive-steps", type=int, default=200)
    parser.add_argument("--grpo-steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--grpo-batch", type=int, default=32, help="replies of one step")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--reply-tokens", type=int, default=112)
    parser.add_argument("--shapes", nargs="*", help="shapes to evaluate")
    parser.add_argument("--shape-count", type=int, default=16, help="held-out shapes to evaluate where none are named")
    parser.add_argument("--proposals", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    began_s, arguments = time.monotonic(), _parser().parse_args()
    with Progress() as progress:
        if arguments.prepare:
            prepare(arguments.prepare, arguments.jobs, arguments.tasks, arguments.seed, progress.emit)
            return
        with open_score(load_settings(device=arguments.device), emit=progress.emit) as score:
            scores = ScoredCandidates(score, progress.emit)
            run = StagesRun(arguments, progress.emit, scores, score.chip, began_s + 60 * arguments.minutes)
            run.run()
            run.save()
            print("\n".join(proposal_lines(run.figures())))


if __name__ == "__main__":
    main()
