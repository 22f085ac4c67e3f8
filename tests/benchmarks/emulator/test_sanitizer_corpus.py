"""compute-sanitizer on the corpus, with a fake tool: the meaning of its output, and the order of the launches."""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.emulator import sanitizer as sanitizer_corpus
from benchmarks.emulator.sanitizer import OPTIONS, Job, SanitizerBench, check, judge, prepare, subjects, told, version
from benchmarks.emulator.sanitizer_table import PLAIN, TOOLS, SanitizerRow
from benchmarks.emulator.watched_launch import ENDED, FAULT, HUNG, Launchable
from tests.sandbox.emulator.corpus import FAULTS

BANNER = "========= COMPUTE-SANITIZER\n"
CLEAN = "========= ERROR SUMMARY: 0 errors\n"
OUT_OF_BOUNDS = """\
========= Invalid __global__ read of size 16 bytes
=========     at hgemm+0x1230 in kernel.cu:99
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f5a00000800 is out of bounds
=========
"""
RACES = """\
========= Error: Race reported between Read access at hgemm+0x1230 in kernel.cu:99
=========     and Write access at hgemm+0x900 in kernel.cu:70 [512 hazards]
=========
========= Warning: Race reported between Write access at hgemm+0x10 in kernel.cu:7
=========     and Write access at hgemm+0x20 in kernel.cu:8 [1 hazards]
=========
"""
# The program under the tool prints its folder's text, then the fake tool prints its report on that kernel.
PROGRAM = """\
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
print((folder / "ends").read_text(), flush=True)
time.sleep(30 if (folder / "hangs").exists() else 0)
"""
SANITIZER = """\
#!{python}
import pathlib, subprocess, sys
if "--version" in sys.argv:
    sys.exit(print("NVIDIA (R) Compute Sanitizer\\nVersion 1.2.3 (fake)"))
print("========= COMPUTE-SANITIZER", flush=True)
tool, folder = sys.argv[sys.argv.index("--tool") + 1], pathlib.Path(sys.argv[-1])
subprocess.run(sys.argv[sys.argv.index({python!r}):])
said = folder / f"{{tool}}.txt"
print(said.read_text() if said.exists() else "========= ERROR SUMMARY: 0 errors")
"""


@pytest.mark.parametrize(
    ("said", "outcome", "errors", "warnings"),
    [
        pytest.param(f"{BANNER}{OUT_OF_BOUNDS}========= ERROR SUMMARY: 1 error\n", "reported", 1, 0, id="one"),
        pytest.param(
            f"{BANNER}{OUT_OF_BOUNDS}{FAULT}unspecified launch failure\n========= ERROR SUMMARY: 512 errors\n"
            "========= ERROR SUMMARY: 412 errors were not printed. Use --print-limit option to adjust\n",
            "reported",
            512,
            0,
            id="more than are printed, and a crash",
        ),
        pytest.param(
            f"{BANNER}{ENDED}\n{RACES}========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n",
            "reported",
            1,
            1,
            id="hazards",
        ),
        pytest.param(
            f"{BANNER}{ENDED}\n========= RACECHECK SUMMARY: 3 hazards displayed (0 errors, 3 warnings)\n",
            "reported",
            0,
            3,
            id="warnings only",
        ),
        pytest.param(
            f"{BANNER}{ENDED}\n========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 0 warnings)\n",
            "nothing",
            0,
            0,
            id="information only",
        ),
        pytest.param(f"{BANNER}{ENDED}\n{CLEAN}", "nothing", 0, 0, id="clean"),
        pytest.param(f"{BANNER}{RACES}", "reported", 2, 0, id="cut short after two reports"),
        pytest.param(f"{BANNER}{FAULT}CUDA_ERROR_MISALIGNED_ADDRESS\n{CLEAN}", "crashed", 0, 0, id="crash"),
        pytest.param(f"{BANNER}{HUNG}0:00:15)!\n{CLEAN}", "timed out", 0, 0, id="hang"),
        pytest.param(f"{BANNER}{ENDED}\n", "failed", 0, 0, id="no summary"),
        pytest.param(f"{BANNER}========= Internal Sanitizer Error: x\n{ENDED}\n{CLEAN}", "failed", 0, 0, id="internal error"),
        pytest.param(
            f"{BANNER}ModuleNotFoundError\n========= Error: process didn't terminate successfully\n{CLEAN}",
            "failed",
            0,
            0,
            id="no launch",
        ),
    ],
)
def test_the_output_of_a_tool_is_judged_by_its_summary(said: str, outcome: str, errors: int, warnings: int) -> None:
    assert judge(said, "racecheck", killed=False) == (outcome, errors, warnings)


def test_a_launch_without_a_tool_needs_no_summary() -> None:
    assert judge(f"{ENDED}\n", PLAIN, killed=False) == ("nothing", 0, 0)
    assert judge("", PLAIN, killed=True) == ("timed out", 0, 0)
    assert judge("", PLAIN, killed=False) == ("failed", 0, 0)


def test_what_is_kept_are_reports_or_else_why_the_launch_failed() -> None:
    first, second = told(BANNER + RACES, "reported")
    assert first.startswith("Error: Race reported")
    assert second.startswith("Warning: Race reported")
    assert told(f"{BANNER}{FAULT}CUDA_ERROR\n{CLEAN}", "crashed") == (f"{FAULT}CUDA_ERROR",)
    assert told(f"{BANNER}{ENDED}\n{CLEAN}", "nothing") == ()
    assert told("Traceback\nImportError: cupy\n", "failed") == ("Traceback", "ImportError: cupy")


class Corner:
    """A folder of kernels with the output of the fake program and the fake tool."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.sanitizer = root / "compute-sanitizer"
        self.sanitizer.write_text(SANITIZER.format(python=sys.executable))
        self.sanitizer.chmod(0o755)
        (root / "program.py").write_text(PROGRAM)
        monkeypatch.setattr(sanitizer_corpus, "PROGRAM", (sys.executable, str(root / "program.py")))
        self.kept: list[int] = []

    def kernel(self, name: str, ends: str = ENDED, hangs: bool = False, **said: str) -> dict[str, Path]:
        folder = self.root / name
        folder.mkdir()
        (folder / "ends").write_text(ends)
        if hangs:
            (folder / "hangs").touch()
        for tool, text in said.items():
            (folder / f"{tool}.txt").write_text(text)
        return {name: folder}

    def bench(self, minutes: float = 1.0, limit_s: float = 20.0) -> SanitizerBench:
        return SanitizerBench(str(self.sanitizer), limit_s, time.monotonic() + 60 * minutes, 2, self._keep)

    def _keep(self, rows: Sequence[SanitizerRow]) -> None:
        self.kept.append(len(rows))


@pytest.fixture
def corner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corner:
    return Corner(tmp_path, monkeypatch)


def test_every_kernel_goes_through_every_tool(corner: Corner) -> None:
    wrong = corner.kernel("fault", memcheck=f"{OUT_OF_BOUNDS}========= ERROR SUMMARY: 1 error\n")
    bench = corner.bench()
    check(bench, corner.kernel("right-one"), wrong | corner.kernel("other", ends=f"{FAULT}CUDA_ERROR_ILLEGAL_ADDRESS"))
    assert {(row.kernel, row.tool) for row in bench.rows} == {
        (kernel, tool) for kernel in ("right-one", "fault", "other") for tool in (PLAIN, *TOOLS)
    }
    outcomes = {(row.kernel, row.tool): row.outcome for row in bench.rows}
    assert outcomes["fault", "memcheck"] == "reported"
    assert outcomes["fault", "racecheck"] == "nothing"
    assert {outcomes["other", tool] for tool in (PLAIN, *TOOLS)} == {"crashed"}
    assert corner.kept == list(range(1, 16))


def test_a_launch_that_does_not_end_is_timed_out_and_comes_last(corner: Corner) -> None:
    wrong = corner.kernel("a-hang", ends="", hangs=True) | corner.kernel("fault")
    bench = corner.bench(limit_s=1.5)
    check(bench, corner.kernel("right-one"), wrong)
    assert [row.kernel for row in bench.rows][-4:] == ["a-hang"] * 4
    assert {row.outcome for row in bench.rows if row.kernel == "a-hang"} == {"timed out"}


def test_what_there_is_no_time_for_has_no_row(corner: Corner) -> None:
    bench, folder = corner.bench(minutes=0.05), corner.kernel("a-hang", ends="", hangs=True)["a-hang"]
    ended = corner.kernel("fault")["fault"]
    started = time.monotonic()
    rows = bench.work([Job("fault", PLAIN, ended), Job("a-hang", PLAIN, folder), Job("a-hang", "memcheck", folder)])
    assert [row.kernel for row in rows] == ["fault"]
    assert time.monotonic() - started < 10


def test_right_kernels_that_do_not_run_end_it_all(corner: Corner) -> None:
    bench = corner.bench()
    with pytest.raises(SystemExit, match="no GPU"):
        check(bench, corner.kernel("right-one", ends="DeviceUnavailable: no GPU"), corner.kernel("fault"))
    assert {row.tool for row in bench.rows} == {PLAIN}


def test_a_tool_that_watches_nothing_ends_it_all(corner: Corner) -> None:
    bench = corner.bench()
    right = corner.kernel("right-one", initcheck="========= Error: No attachable process found. timed-out.")
    with pytest.raises(SystemExit, match=r"initcheck does not work here: failed: .*No attachable"):
        check(bench, right, corner.kernel("fault"))
    assert "fault" not in {row.kernel for row in bench.rows if row.tool != PLAIN}


def test_the_tools_version_is_read(corner: Corner, tmp_path: Path) -> None:
    assert version(str(corner.sanitizer), tmp_path) == "1.2.3 (fake)"


def test_faults_and_the_kernels_they_are_patches_of_are_launched(tmp_path: Path) -> None:
    right, wrong = subjects()
    assert [one.name for one in wrong] == [fault.id for fault in FAULTS]
    assert {one.candidate.id for one in right} == {fault.right().id for fault in FAULTS}
    persistent = next(one for one in right if one.sms == 2)
    folder = prepare([persistent], tmp_path, 1)[persistent.name]
    launchable = Launchable.model_validate_json((folder / "launch.json").read_text())
    assert launchable.task == persistent.task
    assert math.prod(launchable.plan.launches[0].grid) == 2
    assert (folder / "kernel.cubin").read_bytes().startswith(b"\x7fELF")


def test_every_tool_has_its_options() -> None:
    assert tuple(OPTIONS) == TOOLS
