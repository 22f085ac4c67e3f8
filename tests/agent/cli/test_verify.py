"""`verify` on the emulator: its output and exit code for right, wrong, unsupported and endless kernels."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.files import FileResult
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.render.file_answer import print_verdict
from cudal2_agent.agent.wiring import doctor
from cudal2_agent.contract.errors import DeviceUnavailable
from cudal2_agent.contract.records.evaluation import FULL_SIZE, NOT_COVERED, TestResult
from cudal2_agent.sandbox import backend
from tests.doubles import unmeasured

ROOT = Path(__file__).parents[3]
KERNEL = ROOT / "tests" / "sandbox" / "emulator" / "kernels" / "plain_tiled.cu"
NO_CORE = [sys.executable, "-P", str(ROOT / "tests" / "sandbox" / "workers" / "scripted_worker.py"), "no-core"]
SHAPE = ["--shape", "40x24x32", "--arch", "sm_80"]
STEPS = "#pragma unroll\n    for (int step"
needs_core = pytest.mark.skipif(
    find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core is not built here"
)


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def written(tmp_path: Path, old: str = "", new: str = "") -> str:
    """The kernel with a part replaced."""
    source = KERNEL.read_text()
    assert old in source
    (tmp_path / "mine.cu").write_text(source.replace(old, new, 1) if old else source)
    return str(tmp_path / "mine.cu")


@needs_core
@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("", "", 0, ["mine.cu: verified by the emulator\n", "  passed   exact/zero-one", "without a fault"]),
        (
            "row < m && column",
            "row <= m && column",
            1,
            [
                "mine.cu: wrong\n  FAILED   emulator/global-out-of-bounds",
                "(kernel.cu:45)",
                "warp 4, lanes",
                "of D, which has 1920",
            ],
        ),
        (
            f"    __syncthreads();\n{STEPS}",
            STEPS,
            1,
            ["emulator/shared-race", "not ordered after", "kernel.cu:", "seen under the latest interleaving"],
        ),
        (
            f"    __syncthreads();\n{STEPS}",
            f'    if (thread < 128) asm volatile("bar.sync 1, 256;" ::: "memory");\n    __syncthreads();\n{STEPS}',
            1,
            ["emulator/deadlock", "no warp can make progress", "warps 0, 1, 2, 3 at `bar.sync 1, 256` (kernel.cu:"],
        ),
        (
            "  float sums",
            '  asm volatile("{ .reg .b32 x, y; mov.b32 y, 7; vadd.u32.u32.u32 x, y, y; }");\n  float sums',
            3,
            ["mine.cu: compiles, verified by nothing: the emulator does not support opcode vadd.u32.u32.u32 (kernel.cu:21)"],
        ),
    ],
    ids=["right", "past-the-edge", "missing-barrier", "half-at-a-barrier", "unknown-opcode"],
)
def test_what_is_said_of_a_kernel(
    old: str, new: str, code: int, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", written(tmp_path, old, new), *SHAPE, "--device", "emulator", "--seed", "3"]) == code
    answer = capsys.readouterr()
    for words in said:
        assert words in answer.out
    assert answer.err == ""


@needs_core
@pytest.mark.parametrize(("fault", "code", "said"), [(0, 0, "verified by the emulator"), (1, 1, "B and up are exchanged")])
def test_a_gated_product_is_verified_and_its_fault_named(
    fault: int, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (ROOT / "tests" / "gpu" / "attacks" / "gated.cu").read_text()
    (tmp_path / "gated.cu").write_text(source.replace("#define FAULT 0", f"#define FAULT {fault}"))
    words = ["--shape", "40x24x64", "--layout", "tn", "--activation", "silu", "--gated", "--device", "emulator"]
    assert main(["verify", str(tmp_path / "gated.cu"), *words]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf"])
def test_a_kernel_with_a_byte_order_mark_is_the_kernel_without_it(
    mark: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(written(tmp_path))
    answers = []
    for content in (file.read_bytes(), mark + file.read_bytes(), mark + file.read_bytes().replace(b"\n", b"\r\n")):
        file.write_bytes(content)
        assert main(["verify", str(file), *SHAPE, "--device", "none", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["candidate_id"] == answers[1]["candidate_id"]


def test_what_only_compiles_passes_only_where_nothing_more_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend, "driver_present", lambda: False)
    monkeypatch.setattr(backend.emulator_worker, "command", lambda _arch, _python: NO_CORE)
    monkeypatch.setattr("cudal2_agent.sandbox.workers.pool.BACK_OFF_S", 0.01)
    file = written(tmp_path)
    assert main(["verify", file, *SHAPE, "--device", "none"]) == 0
    assert "compiles, not executed" in capsys.readouterr().out
    assert main(["verify", file, *SHAPE, "--json"]) == 3
    answer = capsys.readouterr()
    assert json.loads(answer.out)["evaluation"]["verified_by"] == "nothing"
    assert "no core in this script" in answer.err


def test_without_its_core_the_emulator_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudal2_agent.sandbox.emulator._core", None)
    monkeypatch.delitem(sys.modules, "cudal2_agent.sandbox.emulator.core_module", raising=False)
    with pytest.raises(DeviceUnavailable, match="pip install") as caught:
        import cudal2_agent.sandbox.emulator.core_module  # noqa: F401
    assert caught.value.exit_code == 2
    [check] = [check for check in (doctor.emulator(),) if not check.ok]
    assert "pip install" in check.remedy


@needs_core
def test_doctor_finds_the_emulator() -> None:
    assert doctor.emulator().ok


def test_what_was_not_run_is_not_called_passed(capsys: pytest.CaptureFixture[str]) -> None:
    tests = (
        TestResult(tier="emulator", name=NOT_COVERED, passed=True, message="no smaller size"),
        TestResult(tier="emulator", name=FULL_SIZE, passed=True, message="12 of 64 clusters run"),
    )
    evaluation = unmeasured(1.0, "emulator").model_copy(update={"tests": tests})
    print_verdict(FileResult(file="k.cu", candidate_id="0" * 16, evaluation=evaluation), as_json=False)
    first, left, sampled, _ = capsys.readouterr().out.splitlines()
    assert first == "k.cu: verified by the emulator in part"
    assert left == "  not run  emulator/not-covered  no smaller size"
    assert sampled == "  passed   emulator/full-size  12 of 64 clusters run"


def workers_of(process: subprocess.Popen[str]) -> list[Path]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        path for path in (Path("/proc") / child for child in children) if b"emulator.worker" in (path / "cmdline").read_bytes()
    ]


@needs_core
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize(
    ("sent", "after_s"), [(signal.SIGINT, 4.0), (signal.SIGTERM, 0.0)], ids=["in mid proof", "while the worker starts"]
)
def test_an_interrupt_leaves_no_worker_behind(sent: signal.Signals, after_s: float, tmp_path: Path) -> None:
    loop = "  for (int k0 = 0;"
    file = written(tmp_path, loop, f"  for (int again = 0; again < 1000000; ++again)\n{loop}")  # takes minutes
    command = [sys.executable, "-m", "cudal2_agent.agent.cli.main", "verify", file, *SHAPE, "--device", "emulator"]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        deadline_s = time.monotonic() + 60
        while not (workers := workers_of(process)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(after_s)
        assert process.poll() is None
        process.send_signal(sent)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert workers
    assert "Traceback" not in out + err
    assert not [worker for worker in workers if worker.exists()]


def test_what_only_a_run_needs_is_not_loaded() -> None:
    """Saves 2.5 s of every command's start."""
    loads = "import sys, cudal2_agent.agent.cli.files; print({'langgraph', 'chromadb', 'openai', 'torch'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", loads], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
