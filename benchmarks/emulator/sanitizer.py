"""What compute-sanitizer reports of the seeded faults of the emulator's tests, and of the right kernels.

Run from the repository's root, on a machine with an sm_90 GPU and the CUDA toolkit; then, anywhere:
    python -m benchmarks.emulator.sanitizer run --out benchmarks/results/NAME.json
    python -m benchmarks.emulator.sanitizer table benchmarks/results/NAME.json --out benchmarks/results/NAME.md
Every kernel is launched once under each of the four tools and once without a tool, each time in its own process. Plans are
resolved for the number of SMs at which their fault shows. The JSON is written after every launch, so that an interrupted run
keeps its results and names what is missing. The run ends if right kernels fail, with or without a tool.
"""

import argparse
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

from benchmarks.emulator.sanitizer_table import (
    AGREEMENT,
    PLAIN,
    TOOLS,
    LaunchOutcome,
    SanitizerResult,
    SanitizerRow,
    agreement,
    render,
    right_name,
)
from benchmarks.emulator.watched_launch import ENDED, FAULT, HUNG, Launchable, put
from benchmarks.harness import execute, result_arguments, script, stamp, write_text
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.workers.process import Limits, run
from tests.sandbox.emulator.corpus import FAULTS

PROGRAM = (sys.executable, "-m", "benchmarks.emulator.watched_launch")
SAID_CHARS, SAID_LINES = 300, 3
# API errors are not reported, because the launcher queries kernel parameters until the driver returns an error.
# Each concurrent tool takes one connection, which is a port.
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
class SanitizerSubject:
    """A kernel on a task, named after its fault; a right kernel has its own name."""

    name: str
    candidate: Candidate
    task: GemmTask
    sms: int


@dataclass(frozen=True)
class Job:
    """One launch: the folder of a kernel, and the tool."""

    kernel: str
    tool: str
    folder: Path


def subjects() -> tuple[list[SanitizerSubject], list[SanitizerSubject]]:
    """The right kernels that the faults patch, each once, and the faults."""
    right = {right_name(each): SanitizerSubject(right_name(each), each.right(), each.task, each.sms) for each in FAULTS}
    return list(right.values()), [SanitizerSubject(each.id, each.wrong(), each.task, each.sms) for each in FAULTS]


def prepare(listed: Sequence[SanitizerSubject], home: Path, workers: int) -> dict[str, Path]:
    """Compile kernels into folders that can be launched. Raises: SystemExit if one does not compile."""
    compiler = Compiler(CompileOptions(cache_dir=str(home / "compiled")))

    def write(subject: SanitizerSubject) -> Path:
        compiled = compiler.compile(subject.candidate, subject.task.arch)
        if not isinstance(compiled, Compiled):
            raise SystemExit(f"{subject.name}: {compiled}")
        plan = resolve(subject.candidate.plan, subject.task, LIMITS[subject.task.arch], subject.sms)
        folder = home / subject.name
        put(folder, Launchable(plan=plan, task=subject.task), Path(compiled.cubin_path).read_bytes())
        return folder

    with ThreadPoolExecutor(workers) as pool:
        return {subject.name: folder for subject, folder in zip(listed, pool.map(write, listed), strict=True)}


def judge(said: str, tool: str, *, killed: bool) -> tuple[LaunchOutcome, int, int]:
    """The outcome of a run, and its numbers of errors and warnings. Without a summary, single reports are counted."""
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


def told(said: str, outcome: LaunchOutcome) -> tuple[str, ...]:
    """The lines of an output to keep: the first reports, the CUDA error, or the failure of the tool."""
    lines = said.splitlines()
    kept = {
        "reported": _REPORT.findall(said)[:SAID_LINES],
        "crashed": [line for line in lines if FAULT in line],
        "failed": lines[-SAID_LINES:],
    }
    return tuple(line[:SAID_CHARS] for line in kept.get(outcome, ()))


def watch(job: Job, sanitizer: str, limit_s: float, cancel: threading.Event) -> SanitizerRow | None:
    """Launch a kernel under a tool; None if it was cancelled."""
    watcher = () if job.tool == PLAIN else (sanitizer, "--tool", job.tool, *COMMON, *OPTIONS[job.tool])
    scratch = job.folder / job.tool
    scratch.mkdir()
    ended = run(
        (*watcher, *PROGRAM, str(job.folder.resolve())),
        scratch=scratch,
        limits=Limits(wall_s=limit_s, network=True),  # the tool communicates with the process over a port
        cancel=cancel,
    )
    if cancel.is_set():
        return None
    said = (ended.stdout + ended.stderr).decode(errors="replace")
    outcome, errors, warnings = judge(said, job.tool, killed=ended.timed_out)
    return SanitizerRow(
        kernel=job.kernel,
        tool=job.tool,
        outcome=outcome,
        errors=errors,
        warnings=warnings,
        said=told(said, outcome),
        seconds=round(ended.seconds, 1),
    )


class SanitizerBench:
    """Runs jobs concurrently until the time limit. `keep`: receives all rows after every new one."""

    def __init__(
        self, sanitizer: str, limit_s: float, deadline: float, workers: int, keep: Callable[[Sequence[SanitizerRow]], None]
    ):
        self._sanitizer, self._limit_s, self._deadline, self._workers = sanitizer, limit_s, deadline, workers
        self._keep = keep
        self.rows: list[SanitizerRow] = []

    def work(self, jobs: Sequence[Job]) -> list[SanitizerRow]:
        """The rows of those jobs that finished in time."""
        cancel, first = threading.Event(), len(self.rows)
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(watch, job, self._sanitizer, self._limit_s, cancel) for job in jobs]
            try:
                for future in as_completed(futures, timeout=max(0.0, self._deadline - time.monotonic())):
                    self._take(future.result(), len(jobs) - (len(self.rows) - first))
            except TimeoutError:
                print("the time limit is reached", flush=True)
            finally:
                cancel.set()
                pool.shutdown(wait=False, cancel_futures=True)
        return self.rows[first:]

    def _take(self, row: SanitizerRow | None, left: int) -> None:
        assert row is not None  # only a cancelled job has no row, and nothing is cancelled yet
        self.rows.append(row)
        self._keep(self.rows)
        words = f" ({row.said[0][:100]})" if row.said else ""
        print(f"{left:4} {row.kernel}, {row.tool}: {row.outcome}{words}, {row.seconds:.1f} s", flush=True)


def check(bench: SanitizerBench, right: Mapping[str, Path], wrong: Mapping[str, Path]) -> None:
    """Run all kernels without a tool, then the right ones under the tools, then the faults. Kernels that hang come last.

    Raises: SystemExit if right kernels do not run, or none of them runs under a tool.
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
        raise SystemExit("compute-sanitizer was not found; install the CUDA toolkit and add its bin folder to PATH")
    return found


def version(sanitizer: str, scratch: Path) -> str:
    said = run((sanitizer, "--version"), scratch=scratch, limits=Limits(wall_s=30)).stdout.decode(errors="replace")
    return next((line.removeprefix("Version ") for line in said.splitlines() if line.startswith("Version ")), said.strip())


def run_all(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    sanitizer = find_sanitizer()
    (right, wrong), made = subjects(), stamp(__file__, arguments.commit)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        start = SanitizerResult(
            **{name: made[name] for name in ("command", "commit", "date")},
            sanitizer=version(sanitizer, home),
            options={tool: " ".join((*COMMON, *options)) for tool, options in OPTIONS.items()},
            environment=Device(0).environment,
        )
        everything = [(one.name, tool) for one in (*right, *wrong) for tool in (PLAIN, *TOOLS)]

        def keep(rows: Sequence[SanitizerRow]) -> None:
            done = {(row.kernel, row.tool) for row in rows}
            missing = tuple(f"{name}, {tool}" for name, tool in everything if (name, tool) not in done)
            seconds = round(time.monotonic() - started)
            result = start.model_copy(update={"seconds": seconds, "rows": tuple(rows), "not_run": missing})
            write_text(arguments.out, result.model_dump_json(indent=1) + "\n")

        folders = prepare([*right, *wrong], home / "kernels", arguments.workers)
        print(f"{len(folders)} kernels compiled, {time.monotonic() - started:.0f} s", flush=True)
        bench = SanitizerBench(sanitizer, arguments.limit_s, started + 60 * arguments.minutes, arguments.workers, keep)
        keep(bench.rows)
        check(bench, *({one.name: folders[one.name] for one in side} for side in (right, wrong)))


def main() -> None:
    parser = script(__file__, __doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    checked = commands.add_parser("run")
    result_arguments(checked)
    checked.add_argument("--workers", type=int, default=12, help="concurrent launches")
    checked.add_argument("--limit-s", type=float, default=40.0, help="seconds for one launch, with the start of its process")
    checked.add_argument("--minutes", type=float, default=8.0, help="time limit of the whole run")
    compared = commands.add_parser("table")
    compared.add_argument("result", type=Path)
    compared.add_argument("--agreement", type=Path, default=AGREEMENT, help="table of emulator_agreement")
    compared.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.what == "run":
        run_all(arguments)
        return
    result = SanitizerResult.model_validate_json(arguments.result.read_text())
    write_text(arguments.out, render(result, agreement(arguments.agreement.read_text())))


if __name__ == "__main__":
    execute(main)
