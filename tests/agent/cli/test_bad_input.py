"""Bad input gets one line on stderr and exit code 2, prints nothing on stdout, and changes no stored data."""

from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.store.store import open_store

SHAPE = ["--shape", "64x64x64", "--device", "none"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDAL2_USE_KNOWLEDGE", "false")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that refuses a command line."""
    code = main(arguments)
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if not line.startswith(("note: ", "  "))]  # a note may take rows
    assert code == 2, captured.err
    assert captured.out == ""
    assert len(errors) == 1, captured.err
    assert errors[0].startswith("error: ")
    return errors[0]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "4096x1024"], "'4096x1024' is not M x N x K"),
        (["--shape", "0x64x64"], "zero size"),
        (["--shape", "-1x2x3"], "'-1x2x3' is not M x N x K"),
        (["--shape=-1x2x3"], "'-1x2x3' is not M x N x K"),
        (["--shape", "axbxc"], "'axbxc' is not M x N x K"),
        (["--shape", "1e3x64x64"], "is not M x N x K"),
        (["--shape", "64x64x64x64"], "is not M x N x K"),
        (["--shape", ""], "is not M x N x K"),
        (["--shape", "９x9x9"], "is not M x N x K"),
        (["--shape", "9999999999x1x1"], "is not M x N x K"),
        (["--shape", "65536x32768x64"], "2^31-1"),
        (["--shape", "131072x131072x16383", "--device", "none"], "2^31-1"),
        ([*SHAPE, "--arch", "sm_70"], "--arch 'sm_70' is not known; choose from sm_80"),
        ([*SHAPE, "--element", "f64"], "--element 'f64'"),
        ([*SHAPE, "--accumulate", "bf16"], "--accumulate 'bf16'"),
        ([*SHAPE, "--element", "bf16", "--accumulate", "f16"], "bf16 elements accumulate in f32 only"),
        ([*SHAPE, "--layout", "tt"], "--layout 'tt'"),
        ([*SHAPE, "--activation", "swish"], "--activation 'swish' is not known; choose from relu, gelu, gelu_tanh, silu"),
        ([*SHAPE, "--activation", "gelu", "--accumulate", "f16"], "an activation is computed in f32 only"),
        (["--problem", "x.py", "--activation", "gelu"], "a module has no --activation; leave it out"),
        ([*SHAPE, "--gated"], "a gated product has an activation; name one, such as silu"),
        ([*SHAPE, "--gated", "--activation", "silu", "--bias"], "a gated product adds no bias"),
        (["--problem", "x.py", "--gated"], "a module has no --gated; leave it out"),
        ([*SHAPE, "--mode", "fast"], "--mode 'fast'"),
        ([*SHAPE, "--policy", "oracle"], "policy 'oracle' is not known"),
        ([*SHAPE, "--budget", "0"], "budget"),
        ([*SHAPE, "--budget", "many"], "--budget"),
        ([*SHAPE, "--minutes", "0"], "minutes"),
        ([*SHAPE, "--minutes", "nan"], "minutes"),
        (["--shape", "64x64x64", "--device", "tpu"], "device"),
        (["--shape", "64x64x64", "--device", "cuda:77"], "cuda:77"),
        ([*SHAPE, "--frobnicate"], "--frobnicate"),
        ([], "--shape is missing"),
        (["--shape"], "--shape"),
        (["--resume", "no-such-run"], "no run 'no-such-run'"),
        (["--resume", "x", "--shape", "64x64x64"], "leave out --shape"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_optimize_refuses(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(["optimize", *arguments], capsys)


@pytest.mark.usefixtures("home")
def test_operands_beyond_the_devices_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = REFERENCE_CHIPS[Arch.SM_86].model_copy(update={"memory_bytes": 8 * 10**9})
    monkeypatch.setitem(REFERENCE_CHIPS, Arch.SM_86, small)
    words = ["--shape", "32768x32768x32768", "--arch", "sm_86", "--device", "none"]
    assert "has 8.0 GB: choose a smaller shape" in refusal(["optimize", *words], capsys)


def test_a_refused_run_leaves_no_trace(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusal(["optimize", *SHAPE, "--policy", "oracle"], capsys)
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        assert store.runs() == []


@pytest.mark.usefixtures("home")
def test_an_unwritable_out_fails_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "below", Path("/proc/no/such")):
        assert "cannot be written" in refusal(["optimize", *SHAPE, "--out", str(out)], capsys)
    assert file.read_text() == "mine"


def test_a_corrupt_store_is_left_untouched(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    path = home / "trajectories.sqlite"
    path.write_bytes(b"garbage " * 1000)
    for arguments in (["optimize", *SHAPE], ["runs", "list"], ["trajectories", "export"], ["optimize", "--resume", "x"]):
        assert "left untouched" in refusal(arguments, capsys)
    assert path.read_bytes() == b"garbage " * 1000


def test_corrupt_checkpoints(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "checkpoints.sqlite").write_bytes(b"garbage " * 1000)
    assert "checkpoints" in refusal(["optimize", *SHAPE], capsys)


@pytest.mark.usefixtures("home")
def test_a_missing_compiler_is_said_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> str:
        raise CompilerMissing("NVRTC cannot be loaded; install it with: pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr("cudal2_agent.agent.wiring.sandbox.nvrtc_version", missing)
    assert "pip install" in refusal(["optimize", *SHAPE], capsys)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("verb", ["verify", "bench"])
def test_files_that_are_no_kernels(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, binary = tmp_path / "plain.cu", tmp_path / "binary.cu"
    plain.write_text("__global__ void f() {}")
    binary.write_bytes(b"\xff\xfe\x00")
    assert "no launch plan" in refusal([verb, str(plain), *SHAPE], capsys)
    assert "not UTF-8" in refusal([verb, str(binary), *SHAPE], capsys)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        binary.write_text("__global__ void f() {}", encoding=encoding)
        assert "it is not UTF-8 text; save it as UTF-8" in refusal([verb, str(binary), *SHAPE], capsys)
    assert "cannot be read" in refusal([verb, str(tmp_path / "absent.cu"), *SHAPE], capsys)
    assert "cannot be read" in refusal([verb, str(tmp_path), *SHAPE], capsys)
    assert "is not M x N x K" in refusal([verb, str(plain), "--shape", "64"], capsys)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "arguments", [["runs", "show"], ["runs", "resume"], ["trajectories", "show"], ["trajectories", "export"]]
)
def test_a_run_that_does_not_exist(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run 'nothing'" in refusal([*arguments, "nothing"], capsys)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("budget = 'many'", "setting 'budget'"),
        ("frobnicate = 1", "setting 'frobnicate'"),
        ("not toml at all [", "cudal2.toml: "),
    ],
)
def test_a_wrong_settings_file(content: str, said: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home.parent / "cudal2.toml").write_text(content)
    assert said in refusal(["optimize", *SHAPE], capsys)


def test_a_wrong_store_address(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDAL2_STORE", "nonsense")
    assert "not an SQLAlchemy URL" in refusal(["runs", "list"], capsys)
    assert not home.exists()
