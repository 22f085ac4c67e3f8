"""`cudal2-agent tasks generate` and `fingerprint`: tasks that are drawn, and the problems that none of them may be."""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson

if TYPE_CHECKING:
    from cudal2_agent.agent.tasks.generation import Accepted
    from cudal2_agent.agent.tasks.held_out import HeldOut
    from cudal2_agent.sandbox.modules.tracing.tracer import Tracer

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent tasks generate --count 1000 --seed 7\n"
    "  cudal2-agent tasks generate --count 20 --out drawn --held-out my_benchmark --held-out theirs.json"
)
FINGERPRINT_EXAMPLE = "\b\nExample:\n  cudal2-agent tasks fingerprint my_benchmark --out my_benchmark.json"
HELD_OUT_ROWS = "held-out.jsonl"
CHECK_S = 60.0  # for the wrong programs of one draw
TELL_S = 10.0  # between two lines of progress


def generate(
    count: Annotated[int, typer.Option("--count", help="How many tasks.", min=1, max=999_999)] = 100,
    seed: Annotated[int, typer.Option("--seed", help="What they are drawn by.", min=0)] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where they are written.", show_default="the collection drawn-SEED"),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            "--held-out",
            metavar="SOURCE",
            help="Problems that none may equal, beside KernelBench's: a folder, a collection, or a file of `fingerprint`. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Checks at a time.", min=1, max=256, show_default="the processors"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw sound tasks from a grammar of operations and shapes, as files in KernelBench's form, by level.

    Each draw is traced in a jail, and wrong programs are tried at small sizes. A call that was killed resumes where it was.
    """
    from functools import partial

    from cudal2_agent.agent.library.row_file import append_row, read_row_file
    from cudal2_agent.agent.tasks.generation import DrawRow, Generation, check_with
    from cudal2_agent.agent.tasks.named_problems import FOLDER
    from cudal2_agent.agent.tasks.task_folder import TaskFolder
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer

    settings = load_settings()
    folder = TaskFolder(out or settings.home / FOLDER / f"drawn-{seed}")
    rows = read_row_file(folder.draws, DrawRow, "tasks generate")
    folder.require_seed(rows, seed)
    done: list[Accepted] = []
    with open_tracer() as tracer:
        outside = _held_out(held_out or [], folder.path, tracer)
        draws = Generation(
            seed,
            check_with(tracer, partial(tracer.soundness, timeout_s=CHECK_S), seed),
            rows,
            partial(append_row, folder.draws),
        )
        progress = _RateLine(count)
        for task in draws.accepted(count, jobs or settings.compile_jobs, outside):
            folder.write(task)
            done.append(task)
            progress.tell(done)
    _print_answer(done, folder.path, as_json)


def _print_answer(done: "Sequence[Accepted]", folder: Path, as_json: bool) -> None:
    from cudal2_agent.agent.tasks.generation import counted

    refused = counted(done)
    levels = dict(sorted(Counter(f"level{task.drawn.level}" for task in done).items()))
    drawn = len(done) + sum(refused.values())
    if as_json:
        found = {"folder": str(folder), "tasks": len(done), "drawn": drawn, "refused": refused, "levels": levels}
        print(json.dumps(found | {"check_seconds": round(sum(task.row.check.seconds for task in done), 1)}))
        return
    by_level = ", ".join(f"{number:,} in {name}" for name, number in levels.items())
    print(f"{len(done):,} sound tasks in {folder}: {by_level}")
    told = ", ".join(f"{number:,} {reason}" for reason, number in refused.items())
    print(f"{drawn:,} drawn{f'; refused: {told}' if told else ''}")


def fingerprint(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder, a collection, or a level of one.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Write hashes of problems, by text and by operations, for `generate --held-out`. Their text does not go with them."""
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.whole_file import whole_file
    from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer

    with open_tracer() as tracer:
        found = _fingerprinted(source, out.with_name(f".{out.name}.rows"), tracer)
    try:
        with whole_file(out) as place:
            place.write_text(found.model_dump_json(indent=1) + "\n", "utf-8")
    except OSError as exc:
        raise UsageError(f"{out} cannot be written ({exc.strerror}); name another file with --out") from exc
    out.with_name(f".{out.name}.rows").unlink(missing_ok=True)
    if as_json:
        print(json.dumps({"problems": found.problems, "texts": len(found.texts), "signatures": len(found.signatures)}))
    else:
        print(f"{found.problems:,} problems: {len(found.texts):,} texts, {len(found.signatures):,} signatures in {out}")


def _held_out(sources: Sequence[str], folder: Path, tracer: "Tracer") -> "list[HeldOut]":
    """Of KernelBench and of the sources. Problem files are traced once for a folder of tasks."""
    from cudal2_agent.agent.tasks.held_out import KERNELBENCH, read_held_out

    found = [read_held_out(KERNELBENCH)]
    for source in sources:
        is_file = source.endswith(".json") and Path(source).is_file()
        found.append(read_held_out(Path(source)) if is_file else _fingerprinted(source, folder / HELD_OUT_ROWS, tracer))
    if others := sorted({each.torch for each in found} - {_torch()}):
        _note(f"note: fingerprints of torch {', '.join(others)}; torch {_torch()} may take modules apart in another way")
    return found


def _fingerprinted(source: str, rows: Path, tracer: "Tracer") -> "HeldOut":
    """Fingerprints of problem files. `rows`: where they are kept until all are there."""
    from cudal2_agent.agent.cli.module_flags import read_problem
    from cudal2_agent.agent.library.row_file import append_row, read_row_file
    from cudal2_agent.agent.tasks.held_out import Fingerprint, fingerprints, held_out
    from cudal2_agent.agent.tasks.problem_sources import problems_of
    from cudal2_agent.contract.settings.settings import load_settings

    problems = problems_of(source, load_settings().home)
    known = {row.text: row for row in read_row_file(rows, Fingerprint, "tasks fingerprint")}
    found: list[Fingerprint] = []
    told_s = time.monotonic()
    for problem, each in fingerprints(problems, tracer, read_problem, known):
        found.append(each)
        if each.text not in known:
            known[each.text] = each
            append_row(rows, each)
        if each.reason:
            _note(f"note: {problem.name} is held out by its text only: {each.reason}")
        if time.monotonic() - told_s > TELL_S:
            told_s = time.monotonic()
            _note(f"{len(found):,} of {len(problems):,} problems of {source} traced")
    return held_out(Path(source).name, _torch(), found)


def _torch() -> str:
    """The version of PyTorch, without what it was built for."""
    from importlib.metadata import version

    return version("torch").partition("+")[0]


class _RateLine:
    """A line on stderr every TELL_S seconds, and one at the end."""

    def __init__(self, count: int) -> None:
        self._count, self._begin_s = count, time.monotonic()
        self._told_s, self._known = self._begin_s, 0

    def tell(self, done: "Sequence[Accepted]") -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_S and len(done) < self._count:
            return
        self._told_s = now_s
        rate = len(done) / max(now_s - self._begin_s, 1e-3)
        drawn = len(done) + sum(len(task.refused) for task in done)
        left_s = (self._count - len(done)) / rate
        _note(f"[{len(done):,}/{self._count:,}] {drawn:,} drawn, {rate:.1f} tasks/s, {left_s / 60:.0f} min left")


def _note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
