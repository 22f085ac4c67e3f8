"""`profile`: its answers with counters, without counters, and for kernels that fail. The GPU is scripted."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from cudal2_agent.agent.cli import files as kernel_files
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.render.file_answer import number
from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import CompileFailed, TestResult, Wrong
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.profiling.metric_set import load_metric_set
from cudal2_agent.sandbox.profiling.reading import read_launches
from tests.doubles import INSPECTION, measured, unmeasured
from tests.sandbox.profiling.pretend import MMA_SYNC, WGMMA

SOURCE = """// cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm", "grid": [132, 1, 1], "block": [384, 1, 1],
//   "args": [{"tensor": "D", "access": "write"}]}]}
"""
WORDS = ["--shape", "4096x1024x512", "--arch", "sm_90a", "--device", "none"]
HOPPER = load_metric_set(Arch.SM_90A)


def profile_of(table: str) -> Profile:
    return Profile(tool="ncu 2025.3.1.0", metric_set=HOPPER.name, launches=read_launches(table, HOPPER), seconds=2.5)


class PretendedSandbox:
    """Answers from lists, one item per file."""

    chip = REFERENCE_CHIPS[Arch.SM_90A]

    def __init__(self, evaluations, profiles) -> None:
        self._evaluations, self._profiles = list(evaluations), list(profiles)
        self.asked = 0

    def build(self, candidates, _):
        for position, candidate in reversed(list(enumerate(candidates))):
            if isinstance(self._evaluations[position], CompileFailed):
                yield position, self._evaluations[position]
            else:
                yield position, Built(candidate=candidate, inspection=INSPECTION, artifact_path="", cached=False, seconds=0)

    def evaluate(self, built, _task, effort):
        assert effort == "quick"
        number_of_file = int(built.candidate.origin.note.removesuffix(".cu"))
        return self._evaluations[number_of_file]

    def profile(self, *_):
        self.asked += 1
        answer = self._profiles.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run the command on as many files as there are evaluations: (exit code, stdout, stderr, the sandbox)."""

    def profile(evaluations, profiles, *words):
        sandbox = PretendedSandbox(evaluations, profiles)

        @contextmanager
        def box(*_, **__):
            yield sandbox

        monkeypatch.setattr(kernel_files, "open_sandbox_of", box)
        files = [tmp_path / f"{index}.cu" for index in range(len(evaluations))]
        for index, file in enumerate(files):
            file.write_text(f"{SOURCE}// {index}\n")
        code = main(["profile", *map(str, files), *WORDS, *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err, sandbox

    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    return profile


def test_a_profile_with_counters(run):
    code, out, err, _ = run([measured(11.0)], [profile_of(WGMMA)])
    assert code == 0, err
    lines = out.splitlines()
    assert "verified, 11.00 us measured" in lines[0]
    assert "% of the roofline" in lines[0]
    assert lines[1] == "  counters: read by ncu 2025.3.1.0 in 2.5 s"
    assert "  wgmma_tma_gemm, grid 132x1x1, block 384x1x1" in lines
    duration = next(line for line in lines if line.split()[:1] == ["duration_ns"])
    assert duration.split()[1:3] == ["11,136", "ns"]
    assert HOPPER.metrics["duration_ns"].meaning in duration
    assert "no counters" not in out + err


def test_every_finding_comes_with_evidence_and_remedy(run):
    _, out, _, _ = run([measured(1100.0)], [profile_of(WGMMA)])
    found = [line for line in out.splitlines() if "(weight " in line]
    assert found
    assert out.count("     evidence: ") == out.count("     remedy: ") == len(found)
    weights = [float(line.rpartition("weight ")[2].rstrip(")")) for line in found]
    assert weights == sorted(weights, reverse=True)


def test_two_files_are_compared(run):
    code, out, _, _ = run([measured(11.0), measured(1900.0)], [profile_of(WGMMA), profile_of(MMA_SYNC)])
    assert code == 0
    changed = out.partition("what changed from ")[2].splitlines()
    assert changed[0].endswith("1.cu:")
    assert len(changed) > 1
    assert all("->" in line for line in changed[1:])


def test_two_equal_profiles_differ_in_nothing(run):
    _, out, _, _ = run([measured(11.0), measured(11.0)], [profile_of(WGMMA), profile_of(WGMMA)])
    assert out.endswith("no counter differs\n")


def test_as_json(run):
    code, out, _, _ = run([measured(11.0), measured(1900.0)], [profile_of(WGMMA), profile_of(MMA_SYNC)], "--json")
    answer = json.loads(out)
    assert code == 0
    assert [Profile.model_validate(file["profile"]).launches[0].entry for file in answer["files"]] == [
        "wgmma_tma_gemm",
        "hgemm",
    ]
    assert [Diagnosis.model_validate(file["diagnosis"]).basis for file in answer["files"]] == ["counters", "counters"]
    assert answer["files"][0]["evaluation"]["status"] == "measured"
    assert answer["differences"]


def test_without_the_profiler_the_diagnosis_says_what_it_rests_on(run):
    missing = ProfilerUnavailable("Nsight Compute (ncu) was not found; install it")
    code, out, err, sandbox = run([measured(11.0), measured(12.0)], [missing])
    assert code == 0
    assert out.count("timed: from the compiled code and the measured time; no counters were read") == 2
    assert err.count("Nsight Compute (ncu) was not found; install it") == 1, "said once, not for each file"
    assert sandbox.asked == 1
    assert "what changed" not in out


def test_without_a_gpu_the_diagnosis_is_static(run):
    code, out, err, _ = run([unmeasured(9.0)], [ProfilerUnavailable("there is no sm_90a GPU here")])
    assert code == 0
    assert "static: from the compiled code; no counters were read" in out
    assert "us measured" not in out
    assert "there is no sm_90a GPU here" in err


def test_a_wrong_kernel_is_not_profiled(run):
    failed = TestResult(tier="exact", name="zero-one", passed=False, message="3 of 4 differ")
    code, out, _, sandbox = run([Wrong(test=failed, tests=(failed,), inspection=INSPECTION)], [])
    assert code == 1
    assert "wrong: exact/zero-one: 3 of 4 differ" in out
    assert "not profiled" in out
    assert sandbox.asked == 0


def test_a_file_that_does_not_compile_does_not_keep_the_other_from_its_profile(run):
    broken = CompileFailed(message="line 3: no such thing", log="long")
    code, out, _, _ = run([broken, measured(11.0)], [profile_of(WGMMA)])
    assert code == 1
    assert "compile failed: line 3" in out
    assert "counters: read by" in out


def test_a_profile_that_fails_is_a_failure_with_the_timed_diagnosis(run):
    code, out, err, _ = run([measured(11.0)], [ProfileFailed("no end after 60 s in stage count", log="everything it said")])
    assert code == 1
    assert "timed: from the compiled code" in out
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "0.cu could not be profiled: no end after 60 s" in line
    assert Path(line.rpartition("(log: ")[2].rstrip(")")).read_text() == "everything it said"


def test_a_file_without_a_plan_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    (tmp_path / "bare.cu").write_text("int x;")
    assert main(["profile", str(tmp_path / "bare.cu"), *WORDS]) == 2
    assert capsys.readouterr().out == ""


def test_the_command_for_real_without_a_gpu(tmp_path, capsys, monkeypatch):
    """Real compiler, real inspection, real diagnosis, no device."""
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    kernel = tmp_path / "kernel.cu"
    kernel.write_text("""// cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm",
//   "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1],
//   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
//            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]}
#include <cuda_fp16.h>
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  d[row * n + column] = __float2half(sum);
}
""")
    assert main(["profile", str(kernel), "--shape", "256x256x64", "--arch", "sm_80", "--device", "none"]) == 0
    shown = capsys.readouterr()
    assert "static: from the compiled code; no counters were read" in shown.out
    assert "1. no-tensor-cores" in shown.out
    assert "no sm_80 GPU" in shown.err


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.12345, "0.1235"), (99.999, "100"), (12345.6, "12,346"), (1e9, "1,000,000,000")]
)
def test_numbers(value, text):
    assert number(value) == text
