"""The steps to a profile and their failures, with a scripted ncu; permission to read counters."""

import errno
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable, WorkerError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import HostCandidate, Origin
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import ProfileOptions, WorkerOptions
from cudal2_agent.sandbox.profiling import ncu as ncu_module
from cudal2_agent.sandbox.profiling.metric_set import load_metric_set
from cudal2_agent.sandbox.profiling.ncu import command_of, counters_allowed, find_ncu, ncu_version, unavailable, unknown_metrics
from cudal2_agent.sandbox.profiling.profiler import Profiler
from cudal2_agent.sandbox.workers.process import network_isolated
from tests.doubles import INSPECTION, LAUNCH, TASK, candidate
from tests.sandbox.profiling.pretend import CRASH, MMA_SYNC, PERMISSION, REPORTS, WGMMA, Act, PretendedTool

ROOT = Path(__file__).parents[3]
HOPPER = load_metric_set(Arch.SM_90A)
BUILT = Built(candidate=candidate(1), inspection=INSPECTION, artifact_path="/cache/kernel.cubin", cached=False, seconds=0.1)


def built_with(*launches) -> Built:
    one = candidate(1)
    plan = one.plan.model_copy(update={"launches": launches})
    return BUILT.model_copy(update={"candidate": one.model_copy(update={"plan": plan})})


def report(stage: str, fault: str, message: str) -> tuple[str, ...]:
    return (*REPORTS[:1], json.dumps({"stage": stage, "fault": fault, "message": message}))


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# Success


def test_a_profile(tmp_path):
    tool = PretendedTool(tmp_path)
    profile = tool.profiler().profile(BUILT, TASK)
    assert profile.tool == "ncu 2025.3.1.0"
    assert profile.metric_set == HOPPER.name
    assert [launch.entry for launch in profile.launches] == ["wgmma_tma_gemm"]
    assert profile.launches[0].metrics["duration_ns"] == 11136
    assert 0 < profile.seconds < 20
    assert len(tool.runs) == 1


def test_what_ncu_is_asked(tmp_path):
    tool = PretendedTool(tmp_path)
    tool.profiler().profile(BUILT, TASK)
    [run] = tool.runs
    flags = run["flags"]
    assert flags["--page"] == "raw"
    assert flags["--print-units"] == "base"
    assert flags["--clock-control"] == "none"
    assert flags["--cache-control"] == "all"
    assert flags["--replay-mode"] == "kernel"
    assert flags["--profile-from-start"] == "off"
    assert flags["--target-processes"] == "application-only"
    assert set(flags["--metrics"].split(",")) == {spec.metric for spec in HOPPER.metrics.values()}
    assert re.fullmatch(flags["--kernel-name"].removeprefix("regex:"), "gemm")
    assert run["program"][1:4] == ["-P", "-m", "cudal2_agent.sandbox.profiling.child"]
    assert run["request"]["subject"]["artifact_path"] == "/cache/kernel.cubin"
    assert run["request"]["device"] == 3
    assert run["request"]["limit_s"] == 20


def test_what_the_tool_inherits(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    tool = PretendedTool(tmp_path)
    tool.profiler().profile(BUILT, TASK)
    [run] = tool.runs
    assert "sk-secret" not in json.dumps(run)
    assert run["environment"]["LC_ALL"] == "C"
    assert run["environment"]["CUPY_CACHE_DIR"] == "/nowhere"
    assert run["environment"]["HOME"] == run["environment"]["TMPDIR"] == run["folder"]
    assert not Path(run["folder"]).exists()
    if network_isolated():
        assert run["interfaces"] == ["lo"]


def test_only_the_candidates_own_entries_are_counted():
    launches = [LAUNCH.model_copy(update={"entry": entry}) for entry in ("gemm", "reduce", "gemm")]
    words = command_of("ncu", ["m"], built_with(*launches).candidate, Path("log"), ["python"])
    pattern = words[words.index("--kernel-name") + 1].removeprefix("regex:")
    assert [bool(re.search(pattern, name)) for name in ("gemm", "reduce", "gemm2", "my_gemm", "cupy_fill")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_host_candidate_is_refused_before_its_code_runs(tmp_path):
    host = HostCandidate(source="int launch();", origin=Origin(policy="test"))
    tool = PretendedTool(tmp_path, Act(table=WGMMA))
    with pytest.raises(ProfileFailed, match="a host candidate is not profiled"):
        tool.profiler().profile(BUILT.model_copy(update={"candidate": host}), TASK)


def test_every_launch_of_the_plan_must_be_there(tmp_path):
    with pytest.raises(ProfileFailed, match="1 of 2 launches"):
        PretendedTool(tmp_path).profiler().profile(built_with(LAUNCH, LAUNCH), TASK)


# Nothing can be profiled here


def test_no_ncu(monkeypatch):
    monkeypatch.setattr(ncu_module.shutil, "which", lambda _: None)
    with pytest.raises(ProfilerUnavailable, match=r"was not found; install it .* or set CUDAL2_NCU"):
        Profiler(ProfileOptions(), WorkerOptions()).profile(BUILT, TASK)
    with pytest.raises(ProfilerUnavailable, match=r"no Nsight Compute .* at '/no/ncu'"):
        find_ncu("/no/ncu")


def test_where_ncu_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    places = ((tmp_path, "cuda/bin/ncu"), (tmp_path, "cuda-*/bin/ncu"), (tmp_path / "opt", "*/ncu"))
    with pytest.raises(ProfilerUnavailable):
        find_ncu(None, places)
    old, new = (executable(tmp_path / "opt" / version / "ncu") for version in ("2024.3.2", "2024.10.1"))
    assert find_ncu(None, places) == str(new)
    toolkit = executable(tmp_path / "cuda-13.0" / "bin" / "ncu")
    assert find_ncu(None, places) == str(toolkit)
    on_path = executable(tmp_path / "bin" / "ncu")
    assert find_ncu(None, places) == str(on_path)
    assert find_ncu(str(old), places) == str(old)


def test_a_tool_that_is_no_ncu(tmp_path):
    for text in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n", "not even a program"):
        path = executable(tmp_path / str(len(text)) / "ncu", text)
        with pytest.raises(ProfilerUnavailable, match="reports no version"):
            ncu_version(str(path))


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (PERMISSION, "NVreg_RestrictProfilingToAdminUsers=0, or run as root"),
        (
            "==ERROR== An error was reported by the driver:\n==ERROR== Cuda driver is not compatible with Nsight Compute.\n",
            "do not fit",
        ),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is "
            "concurrently collecting profiling data.\n",
            "another tool holds",
        ),
        ("==ERROR== Profiling is not supported on device 0.\n", "does not know the GPU"),
    ],
)
@pytest.mark.parametrize("where", ["table", "stdout", "stderr"])
def test_what_makes_profiling_impossible(tmp_path, said, match, where):
    tool = PretendedTool(tmp_path, Act(**{"table": "", "exit_code": 1, where: said}))
    profiler = tool.profiler()
    with pytest.raises(ProfilerUnavailable, match=match) as caught:
        profiler.profile(BUILT, TASK)
    assert said.splitlines()[-1] in caught.value.log
    runs = len(tool.runs)
    assert runs == (2 if network_isolated() else 1)  # the second without network isolation
    with pytest.raises(ProfilerUnavailable, match=match):
        profiler.profile(BUILT, TASK)
    assert len(tool.runs) == runs, "what is known is not tried again"


@pytest.mark.skipif(not network_isolated(), reason="this system isolates nothing")
def test_isolation_that_takes_the_permission_away_is_given_up_once(tmp_path, caplog):
    tool = PretendedTool(tmp_path, Act(table=PERMISSION, exit_code=1), Act())
    profiler = tool.profiler()
    profiler.profile(BUILT, TASK)
    assert [run["interfaces"] == ["lo"] for run in tool.runs[:1]] == [True]
    assert "without network isolation" in caplog.text
    profiler.profile(BUILT, TASK)
    assert len(tool.runs) == 3


def test_words_of_the_candidate_are_not_the_tools(tmp_path):
    """Only ncu's own lines make profiling impossible."""
    tool = PretendedTool(tmp_path, Act(stdout="ERR_NVGPUCTRPERM driver resource was unavailable\n"))
    assert tool.profiler().profile(BUILT, TASK).launches


def test_the_child_finds_no_device(tmp_path):
    tool = PretendedTool(tmp_path, Act(reports=report("load", "device", "the driver shows no GPU to this process"), table=""))
    with pytest.raises(ProfilerUnavailable, match="shows no GPU"):
        tool.profiler().profile(BUILT, TASK)


def test_a_tool_that_never_starts_our_process(tmp_path):
    tool = PretendedTool(tmp_path, Act(reports=None, table="", stderr="cannot open shared object\n", exit_code=127))
    with pytest.raises(ProfilerUnavailable, match="did not start our process") as caught:
        tool.profiler().profile(BUILT, TASK)
    assert "cannot open shared object" in caught.value.log


def test_the_real_child_without_a_gpu(tmp_path, monkeypatch):
    """All steps with the real child, which finds no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    passes_on = '#!/bin/sh\nif [ "$1" = --version ]; then echo "Version 2025.3.1.0"; exit; fi\nshift\n'
    passes_on += 'while [ "${1#--}" != "$1" ]; do shift 2; done\nexec "$@"\n'
    path = executable(tmp_path / "ncu", passes_on)
    profiler = Profiler(ProfileOptions(ncu=str(path)), WorkerOptions())
    with pytest.raises(ProfilerUnavailable, match=r"no NVIDIA driver|shows no GPU"):
        profiler.profile(BUILT, TASK)


# This candidate cannot be profiled


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (Act(reports=report("load", "candidate", "CUDA_ERROR_INVALID_IMAGE"), table=""), "load: CUDA_ERROR_INVALID_IMAGE"),
        (Act(reports=report("warm-up", "machine", "4x4x4: out of memory"), table=""), "warm-up: 4x4x4: out of memory"),
        (
            Act(reports=REPORTS[:4], table=CRASH, exit_code=9),
            "ended in stage count; An error was reported by the driver:; LaunchFailed",
        ),
        (Act(reports=REPORTS[:3], table="", exit_code=-11), "ended in stage warm-up"),
        (Act(table="==WARNING== No kernels were profiled.\n"), "counted 0 of 1 launches"),
        (Act(table='"garbage","more"\n"","x"\n"1","2"\n'), "cannot be read: no column"),
        (Act(table="\0\xff" * 1000), "counted 0 of 1"),
        (Act(table=WGMMA[: len(WGMMA) - 30]), "counted 0 of 1"),
        (Act(table=CRASH), "no value of any metric"),
        (Act(reports=(*REPORTS[:2], "not JSON", '{"stage": "nowhere"}'), table=""), "ended in stage load"),
    ],
)
def test_a_candidate_that_cannot_be_profiled(tmp_path, act, match):
    profiler = PretendedTool(tmp_path, act, act, Act()).profiler()
    with pytest.raises(ProfileFailed, match=re.escape(match) if "[" not in match else match):
        profiler.profile(BUILT, TASK)


def test_the_next_candidate_is_profiled_again(tmp_path):
    tool = PretendedTool(tmp_path, Act(reports=REPORTS[:4], table=CRASH, exit_code=9), Act(table=MMA_SYNC))
    profiler = tool.profiler()
    with pytest.raises(ProfileFailed):
        profiler.profile(BUILT, TASK)
    assert profiler.profile(BUILT, TASK).launches


@pytest.mark.parametrize("hangs", ["tool", "child"])
def test_a_hang_ends_at_the_limit_with_everything_it_started(tmp_path, hangs):
    tool = PretendedTool(tmp_path, Act(reports=REPORTS[:4], hangs=hangs))
    begin_s = time.monotonic()
    with pytest.raises(ProfileFailed, match=r"no end after \d+ s in stage count; raise profile_timeout_s"):
        tool.profiler(timeout_s=2.0).profile(BUILT, TASK)
    assert time.monotonic() - begin_s < 15
    if hangs == "child":
        state = Path(f"/proc/{tool.child_pid.read_text()}/stat")
        while state.exists() and state.read_text().split()[2] != "Z":
            assert time.monotonic() - begin_s < 15, "what the tool started outlives it"
            time.sleep(0.05)


def test_a_tool_that_hangs_before_our_process_starts(tmp_path):
    tool = PretendedTool(tmp_path, Act(reports=None, hangs="tool"))
    with pytest.raises(ProfilerUnavailable, match="printed nothing in time"):
        tool.profiler(timeout_s=1.0).profile(BUILT, TASK)


# Versions that lack a metric


def test_a_metric_that_this_version_refuses_is_dropped_and_remembered(tmp_path, caplog):
    gone = HOPPER.metrics["tensor_pct"].metric
    refuses = Act(table=f"==ERROR== Failed to find metric {gone}\n", reports=REPORTS[:4], exit_code=1)
    tool = PretendedTool(tmp_path, refuses, Act())
    profiler = tool.profiler()
    assert profiler.profile(BUILT, TASK).launches
    assert gone in caplog.text
    profiler.profile(BUILT, TASK)
    asked = [run["flags"]["--metrics"].split(",") for run in tool.runs]
    assert [gone in each for each in asked] == [True, False, False]
    assert len(asked[1]) == len(asked[0]) - 1


def test_a_version_that_refuses_all_of_them(tmp_path):
    names = " ".join(spec.metric for spec in HOPPER.metrics.values())
    tool = PretendedTool(tmp_path, Act(table=f"==ERROR== Failed to find metric {names}\n", exit_code=1))
    with pytest.raises(ProfilerUnavailable, match="has no metric of the set"):
        tool.profiler().profile(BUILT, TASK)


def test_a_warning_about_metrics_is_no_refusal(tmp_path):
    name = HOPPER.metrics["duration_ns"].metric
    tool = PretendedTool(tmp_path, Act(table=f"==WARNING== Unable to access the following 1 metrics: {name}.\n" + WGMMA))
    assert tool.profiler().profile(BUILT, TASK).launches
    assert len(tool.runs) == 1


def test_what_is_not_counted_is_said_once(tmp_path, caplog):
    """The recorded table lacks the column, as newer versions leave out what they do not know."""
    profiler = PretendedTool(tmp_path).profiler()
    assert "elapsed_cycles" not in profiler.profile(BUILT, TASK).launches[0].metrics
    assert caplog.text.count("elapsed_cycles") == 1
    profiler.profile(BUILT, TASK)
    assert caplog.text.count("elapsed_cycles") == 1


def test_the_tool_dies_with_us(tmp_path):
    """After a kill no process of ours holds the GPU."""
    tool = PretendedTool(tmp_path, Act(reports=REPORTS[:4], hangs="tool"))
    (tmp_path / "built.json").write_text(BUILT.model_dump_json())
    code = (
        "from cudal2_agent.contract.records.build import Built; "
        "from cudal2_agent.contract.settings.options import ProfileOptions, WorkerOptions; "
        "from cudal2_agent.contract.records.task import GemmTask; "
        "from cudal2_agent.sandbox.profiling.profiler import Profiler; "
        f"built = Built.model_validate_json(open({str(tmp_path / 'built.json')!r}).read()); "
        f"profiler = Profiler(ProfileOptions(ncu={str(tool.path)!r}, timeout_s=120), WorkerOptions()); "
        "profiler.profile(built, GemmTask(m=64, n=64, k=64))"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as agent:
        deadline = time.monotonic() + 30
        while not tool.runs:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        agent.kill()
    state = Path(f"/proc/{tool.runs[0]['pid']}/stat")
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the tool outlives us"
        time.sleep(0.05)


def test_names_are_told_apart_from_longer_ones():
    assert unknown_metrics(["no metric a__b.sum.per_second"], ["a__b.sum", "b.sum"]) == set()
    assert unknown_metrics(["no metric a__b.sum."], ["a__b.sum"]) == {"a__b.sum"}
    assert unknown_metrics(["no metrics a__b.sum, c__d.avg"], ["a__b.sum", "c__d.avg", "e"]) == {"a__b.sum", "c__d.avg"}


def test_an_ordinary_error_makes_nothing_impossible():
    assert unavailable(["The application returned an error code (9).", "LaunchFailed"]) is None


def test_what_a_candidate_leaves_in_the_scratch_folder_cannot_be_followed(tmp_path):
    """A table that is a link into the user's files is not read."""
    secret = tmp_path / "secret"
    secret.write_text(WGMMA)
    tool = PretendedTool(tmp_path, Act())
    text = tool.path.read_text().replace(
        'Path(flags["--log-file"]).write_text(act["table"])', f'os.symlink({str(secret)!r}, flags["--log-file"])'
    )
    tool.path.write_text(text)
    with pytest.raises(ProfileFailed, match="counted 0 of 1"):
        tool.profiler().profile(BUILT, TASK)


def test_a_tool_that_is_gone_ends_the_profiling_and_a_full_disk_only_this_profile(tmp_path, monkeypatch):
    def gone(*_, **__):
        raise WorkerError("cannot start 'ncu': no such program")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    tool = PretendedTool(tmp_path)
    cases = ((full, ProfileFailed, "No space left"), (gone, ProfilerUnavailable, "cannot be started"))
    for failure, expected, message in cases:
        profiler = tool.profiler()
        with monkeypatch.context() as patched:
            patched.setattr("cudal2_agent.sandbox.profiling.profiler.run", failure)
            with pytest.raises(expected, match=message):
                profiler.profile(BUILT, TASK)
        if expected is ProfilerUnavailable:
            with pytest.raises(ProfilerUnavailable, match="cannot be started"):
                profiler.profile(BUILT, TASK)
        else:
            assert profiler.profile(BUILT, TASK).launches


def test_all_kernels_of_a_library_count(tmp_path):
    row = [line for line in WGMMA.splitlines() if line.startswith('"0"')]
    tool = PretendedTool(tmp_path, Act(table=WGMMA + row[0] + "\n"))
    profile = tool.profiler().profile_library("layout nn, algorithm 66", TASK)
    assert len(profile.launches) == 2
    [run] = tool.runs
    assert "--kernel-name" not in run["flags"]
    assert run["flags"]["--launch-count"] == "16"
    assert run["request"]["subject"] == {"detail": "layout nn, algorithm 66"}


def test_a_library_without_the_kernel_is_no_profile(tmp_path):
    tool = PretendedTool(tmp_path, Act(reports=report("load", "candidate", "cuBLASLt does not suggest it")))
    with pytest.raises(ProfileFailed, match="load: cuBLASLt does not suggest it"):
        tool.profiler().profile_library("layout nn, algorithm 66", TASK)


NOBODY, ADMIN, PERFMON = "0000000000000000", "0000000000200000", "0000004000000000"


@pytest.mark.parametrize(
    ("parameters", "capabilities", "allowed"),
    [
        ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nRmMsg: ", NOBODY, False),
        ("RmProfilingAdminOnly: 1\n", ADMIN, True),
        ("RmProfilingAdminOnly: 1\n", PERFMON, True),
        ("RmProfilingAdminOnly: 0\n", NOBODY, True),
        ("RmOther: 1\n", ADMIN, None),
    ],
)
def test_permission(tmp_path, parameters, capabilities, allowed):
    (tmp_path / "params").write_text(parameters)
    (tmp_path / "status").write_text(f"Name:\tpython\nCapPrm:\t{ADMIN}\nCapEff:\t{capabilities}\n")
    assert counters_allowed(tmp_path / "params", tmp_path / "status") is allowed


def test_without_a_driver_nothing_is_known(tmp_path):
    assert counters_allowed(tmp_path / "absent") is None
