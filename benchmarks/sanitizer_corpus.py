"""What compute-sanitizer finds of the seeded faults that the emulator is tested with, and what it says of the right kernels.

Run from the repository's root, on a machine with an sm_90 GPU and the CUDA toolkit; then, anywhere:
    python -m benchmarks.sanitizer_corpus run --commit HASH --out benchmarks/results/NAME.json
    python -m benchmarks.sanitizer_corpus table benchmarks/results/NAME.json --out benchmarks/results/NAME.md
Every kernel is launched once under each of the four tools, and once plainly, each time in a process of its own. Plans are
resolved for the number of SMs at which their fault shows. The JSON is written after every launch, so that a run that is cut
short keeps what it has and says what is missing. The run ends where right kernels fail, plainly or under a tool.
"""

import argparse
import datetime
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sanitizer_launch import ENDED, FAULT, HUNG, Launchable, put
from benchmarks.sanitizer_table import AGREEMENT, PLAIN, TOOLS, Outcome, Result, Row, agreement, render, right_name
from contract.candidate import Candidate
from contract.chip import LIMITS
from contract.options import CompileOptions
from contract.plan import resolve
from contract.task import GemmTask
from sandbox.building.compiler import Compiled, Compiler
from sandbox.cuda.device import Device
from sandbox.workers.process import Limits, run
from tests.sandbox.emulator.corpus import FAULTS

PROGRAM = (sys.executable, "-m", "benchmarks.sanitizer_launch")
SAID_CHARS, SAID_LINES = 300, 3
# No API errors: the launcher asks the driver for a kernel's parameters until there is no next. The connections are ports,
# of which every tool that runs at the same time takes one.
COMMON = ("--check-exit-code", "no", "--show-backtrace", "no", "--max-connections", "64")
OPTIONS: dict[str, tuple[str, ...]] = {
    "memcheck": ("--padding", "65536", "--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "all", "--racecheck-deadlock-timeout", "5000"),
    "initcheck": (),
    "synccheck": (),
}

_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)(?:.*\((\d+) errors?, (\d+) warnings?\))?", re.MULTILINE)
_ABOUT_THE_RUN = r"COMPUTE-SANITIZER|\w+ SUMMARY|Internal|Target|Error: (?:process|couldn't|Could not|Target|No attachable)"
_REPORT = re.compile(rf"^=+ (?!{_ABOUT_THE_RUN})(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Subject:
    """A kernel on a task, by the name of its fault, or by its own where it is right."""

    name: str
    candidate: Candidate
    task: GemmTask
    sms: int


@dataclass(frozen=True)
class Job:
    """One launch: the folder of a kernel, and the tool that watches it."""

    kernel: str
    tool: str
    folder: Path


def subjects() -> tuple[list[Subject], list[Subject]]:
    """The kernels that the faults are patches of, each once, and the faults."""
    right = {right_name(each): Subject(right_name(each), each.right(), each.task, each.sms) for each in FAULTS}
    return list(right.values()), [Subject(each.id, each.wrong(), each.task, each.sms) for each in FAULTS]


def prepare(listed: Sequence[Subject], home: Path, workers: int) -> dict[str, Path]:
    """Compile kernels into folders that can be launched. Raises: SystemExit where one does not compile."""
    compiler = Compiler(CompileOptions(cache_dir=str(home / "compiled")))

    def write(subject: Subject) -> Path:
        compiled = compiler.compile(subject.candidate, subject.task.arch)
        if not isinstance(compiled, Compiled):
            raise SystemExit(f"{subject.name}: {compiled}")
        plan = resolve(subject.candidate.plan, subject.task, LIMITS[subject.task.arch], subject.sms)
        folder = home / subject.name
        put(folder, Launchable(plan=plan, task=subject.task), Path(compiled.cubin_path).read_bytes())
        return folder

    with ThreadPoolExecutor(workers) as pool:
        return {subject.name: folder for subject, folder in zip(listed, pool.map(write, listed), strict=True)}


def judge(said: str, tool: str, *, killed: bool) -> tuple[Outcome, int, int]:
    """What a run's output says: its outcome, and how many errors and warnings; where it was cut short, reports count."""
    summary = _SUMMARY.search(said)
    counts = summary.groups() if summary else (str(len(_REPORT.findall(said))), None, None)
    errors, warnings = (int(counts[1] or counts[0]), int(counts[2] or 0))
    if errors or warnings:
        return "reported", errors, warnings
    if FAULT in said:
        return "crashed", 0, 0
    if killed or HUNG in said:
        return "timed out", 0, 0
    watched = tool == PLAIN or (summary is not None and "Internal Sanitizer" not in said)
    return ("nothing" if ENDED in said and watched else "failed"), 0, 0


def told(said: str, outcome: Outcome) -> tuple[str, ...]:
    """The lines of a run's output that are worth keeping: its first reports, CUDA's error, or what a tool failed with."""
    lines = said.splitlines()
    kept = {
        "reported": _REPORT.findall(said)[:SAID_LINES],
        "crashed": [line for line in lines if FAULT in line],
        "failed": lines[-SAID_LINES:],
    }
    return tuple(line[:SAID_CHARS] for line in kept.get(outcome, ()))


def watch(job: Job, sanitizer: str, limit_s: float, cancel: threading.Event) -> Row | None:
    """Launch a kernel under a tool; None where it was called off."""
    watcher = () if job.tool == PLAIN else (sanitizer, "--tool", job.tool, *COMMON, *OPTIONS[job.tool])
    scratch = job.folder / job.tool
    scratch.mkdir()
    ended = run(
        (*watcher, *PROGRAM, str(job.folder.resolve())),
        scratch=scratch,
        limits=Limits(wall_s=limit_s, network=True),  # the tool speaks with the process over a port
        cancel=cancel,
    )
    if cancel.is_set():
        return None
    said = (ended.stdout + ended.stderr).decode(errors="replace")
    outcome, errors, warnings = judge(said, job.tool, killed=ended.timed_out)
    return Row(
        kernel=job.kernel,
        tool=job.tool,
        outcome=outcome,
        errors=errors,
        warnings=warnings,
        said=told(said, outcome),
        seconds=round(ended.seconds, 1),
    )


class Bench:
    """Works through jobs, several at once, until the time is over. `keep`: is given all rows after every row."""

    def __init__(self, sanitizer: str, limit_s: float, deadline: float, workers: int, keep: Callable[[Sequence[Row]], None]):
        self._sanitizer, self._limit_s, self._deadline, self._workers = sanitizer, limit_s, deadline, workers
        self._keep = keep
        self.rows: list[Row] = []

    def work(self, jobs: Sequence[Job]) -> list[Row]:
        """Rows of these jobs, as many as there was time for."""
        cancel, first = threading.Event(), len(self.rows)
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(watch, job, self._sanitizer, self._limit_s, cancel) for job in jobs]
            try:
                for future in as_completed(futures, timeout=max(0.0, self._deadline - time.monotonic())):
                    self._take(future.result(), len(jobs) - (len(self.rows) - first))
            except TimeoutError:
                print("the time is over", flush=True)
            finally:
                cancel.set()
                pool.shutdown(wait=False, cancel_futures=True)
        return self.rows[first:]

    def _take(self, row: Row | None, left: int) -> None:
        assert row is not None  # only what is called off has none, and this is taken before anything is
        self.rows.append(row)
        self._keep(self.rows)
        words = f" ({row.said[0][:100]})" if row.said else ""
        print(f"{left:4} {row.kernel}, {row.tool}: {row.outcome}{words}, {row.seconds:.1f} s", flush=True)


def check(bench: Bench, right: Mapping[str, Path], wrong: Mapping[str, Path]) -> None:
    """All kernels plainly, the right ones under the tools, then the faults, with those that hang last.

    Raises: SystemExit where right kernels do not run, or none of them does under a tool.
    """
    everything = {**right, **wrong}
    plain = bench.work([Job(name, PLAIN, folder) for name, folder in everything.items()])
    if broken := [row for row in plain if row.kernel in right and row.outcome != "nothing"]:
        raise SystemExit(f"right kernels do not run: {broken[0].kernel}: {broken[0].outcome}: {' '.join(broken[0].said)}")
    first = bench.work([Job(name, tool, folder) for name, folder in right.items() for tool in TOOLS])
    for tool in TOOLS:
        rows = [row for row in first if row.tool == tool]
        if rows and all(row.outcome not in ("nothing", "reported") for row in rows):
            raise SystemExit(f"{tool} does not work here: {rows[0].outcome}: {' '.join(rows[0].said)}")
    hanging = {row.kernel for row in plain if row.outcome == "timed out"}
    ordered = sorted(wrong, key=lambda name: name in hanging)
    bench.work([Job(name, tool, wrong[name]) for name in ordered for tool in TOOLS])


def find_sanitizer() -> str:
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if found is None:
        raise SystemExit("compute-sanitizer was not found; it comes with the CUDA toolkit: put its folder on the search path")
    return found


def version(sanitizer: str, scratch: Path) -> str:
    said = run((sanitizer, "--version"), scratch=scratch, limits=Limits(wall_s=30)).stdout.decode(errors="replace")
    return next((line.removeprefix("Version ") for line in said.splitlines() if line.startswith("Version ")), said.strip())


def run_all(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    sanitizer = find_sanitizer()
    right, wrong = subjects()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        start = Result(
            command=f"python -m benchmarks.sanitizer_corpus {' '.join(sys.argv[1:])}",
            commit=arguments.commit,
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            sanitizer=version(sanitizer, home),
            options={tool: " ".join((*COMMON, *options)) for tool, options in OPTIONS.items()},
            environment=Device(0).environment,
        )
        everything = [(one.name, tool) for one in (*right, *wrong) for tool in (PLAIN, *TOOLS)]

        def keep(rows: Sequence[Row]) -> None:
            done = {(row.kernel, row.tool) for row in rows}
            missing = tuple(f"{name}, {tool}" for name, tool in everything if (name, tool) not in done)
            seconds = round(time.monotonic() - started)
            result = start.model_copy(update={"seconds": seconds, "rows": tuple(rows), "not_run": missing})
            unfinished = arguments.out.with_suffix(".unfinished")
            unfinished.write_text(result.model_dump_json(indent=1) + "\n")
            unfinished.replace(arguments.out)

        folders = prepare([*right, *wrong], home / "kernels", arguments.workers)
        print(f"{len(folders)} kernels compiled, {time.monotonic() - started:.0f} s", flush=True)
        bench = Bench(sanitizer, arguments.limit_s, started + 60 * arguments.minutes, arguments.workers, keep)
        keep(bench.rows)
        check(bench, *({one.name: folders[one.name] for one in side} for side in (right, wrong)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="what", required=True)
    checked = commands.add_parser("run")
    checked.add_argument("--commit", required=True, help="the commit that is run")
    checked.add_argument("--out", type=Path, required=True)
    checked.add_argument("--workers", type=int, default=12, help="launches at once")
    checked.add_argument("--limit-s", type=float, default=40.0, help="of one launch with its process's start")
    checked.add_argument("--minutes", type=float, default=8.0, help="of everything")
    compared = commands.add_parser("table")
    compared.add_argument("result", type=Path)
    compared.add_argument("--agreement", type=Path, default=AGREEMENT, help="what the GPU and the emulator found")
    compared.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.what == "run":
        run_all(arguments)
        return
    result = Result.model_validate_json(arguments.result.read_text())
    arguments.out.write_text(render(result, agreement(arguments.agreement.read_text())))


if __name__ == "__main__":
    main()
