"""What the peers decide without a GPU: configurations, libraries to build, kernels of rows, and what is missing."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import deep_gemm_peer, own_peer, triton_peer
from benchmarks.peers.comparing import Bench
from benchmarks.peers.kernel_lane import TimesItself
from benchmarks.peers.libraries import deep_gemm
from benchmarks.peers.libraries.jobs import (
    CONFIGURATIONS,
    LibraryJob,
    build,
    cutlass_headers,
    cutlass_jobs,
    padded_kernels,
    paper_jobs,
    redirected_calls,
)
from benchmarks.peers.library_peers import NOT_LAUNCHED, THREW, TIMES_ITSELF, CutlassPeer, PaperGemm, PaperPeer
from benchmarks.peers.own_peer import schedules_of, written
from benchmarks.peers.supervision import ShapeJob
from benchmarks.peers.worker import open_peers, task_of, wanted
from cudal2_agent.agent.campaign.result_files import write_results
from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.cuda.contender import Operands
from tests.doubles.campaign_rows import shape_result

TASK = GemmTask(m=64, n=128, k=512)
NOTHING: dict[str, Any] = {"libraries": None, "rows": [], "deepgemm": None, "peers": []}


def bench(task: GemmTask = TASK) -> Bench:
    made = object.__new__(Bench)
    made.task = task
    return made


def test_autotuning_comes_first_and_every_peer_says_what_it_lacks() -> None:
    first, *others = open_peers(NOTHING, [TASK])
    assert first.name == AUTOTUNED
    for peer in others:
        if peer.name != "triton":  # what it lacks depends on the machine
            with pytest.raises(Unavailable):
                peer.offer(bench())


def test_triton_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(Unavailable, match="Triton or torch is missing"):
        triton_peer.TritonPeer().offer(bench())


def test_tiles_of_triton_fit_the_output() -> None:
    assert {one.block_m for one in triton_peer.useful_configurations(GemmTask(m=64, n=64, k=64))} == {16, 32, 64}
    assert len(triton_peer.useful_configurations(GemmTask(m=4096, n=4096, k=64))) == len(triton_peer.CONFIGURATIONS)
    assert triton_peer.useful_configurations(GemmTask(m=1, n=1, k=64)) == [triton_peer.CONFIGURATIONS[0]]


def test_loads_of_triton_are_masked_where_k_ends_within_a_tile() -> None:
    narrow = triton_peer.TritonConfiguration(64, 64, 128, 4, 4)
    assert triton_peer.constants(narrow, GemmTask(m=64, n=64, k=256))["WHOLE_K"]
    assert not triton_peer.constants(narrow, GemmTask(m=64, n=64, k=64))["WHOLE_K"]


def test_every_configuration_of_cutlass_is_a_job_of_its_own() -> None:
    jobs = cutlass_jobs(Path("/headers"))
    assert len({job.name for job in jobs}) == len({job.flags for job in jobs}) == len(CONFIGURATIONS)
    assert all("-DSCHEDULER=StreamKScheduler" in job.flags for job in jobs if job.name.endswith("streamk"))
    cooperative = [one for one in CONFIGURATIONS if one.stream_k]
    assert all(one.macros["EPILOGUE"] == "TmaWarpSpecializedCooperative" for one in cooperative)


def test_only_published_kernels_that_exist_are_built(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels/h100_F32F16F16F32"
    kernels.mkdir(parents=True)
    (kernels / "64_128_512.cu").touch()
    (job,) = paper_jobs(tmp_path, ["64x128x512", "64x64x64"], Path("/headers"))
    assert job.name == "paper-64x128x512"
    assert f'-DKERNEL_FILE="{kernels / "64_128_512.cu"}"' in job.flags
    assert {"__cudaLaunchKernel", "cudaLaunchKernelExC", "cudaDeviceSynchronize", "cudaMalloc"} <= set(redirected_calls())
    (redirected,) = (flag for flag in job.flags if flag.startswith("-Xlinker="))
    assert redirected.count("--wrap=") == len(redirected_calls())


def test_a_kernel_for_padded_operands_is_not_built(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels/h100_F32F16F16F32"
    kernels.mkdir(parents=True)
    for shape, tile in (("64_128_512", 128), ("64_64_64", 64)):
        (kernels / f"{shape}.cu").write_text(f"auto BM = Int<{tile}>{{}};\nauto BN=Int<64>{{}};\nauto BK = Int<32>{{}};")
    (kernels / "64_64_128.cu").write_text("constexpr int BM = 128;")
    shapes = ["64x128x512", "64x64x64", "64x64x128", "64x64x256"]
    assert padded_kernels(tmp_path, shapes) == ["64x128x512"]
    assert [job.name for job in paper_jobs(tmp_path, shapes, Path("/headers"))] == ["paper-64x64x64", "paper-64x64x128"]


def test_headers_of_cutlass_are_the_named_ones(tmp_path: Path) -> None:
    with pytest.raises(CompilerMissing, match=r"holds no include/cutlass/cutlass\.h"):
        cutlass_headers(tmp_path)
    (tmp_path / "include/cutlass").mkdir(parents=True)
    (tmp_path / "include/cutlass/cutlass.h").touch()
    assert cutlass_headers(tmp_path) == tmp_path


def test_a_library_is_built_once_and_whole_or_not_at_all(tmp_path: Path) -> None:
    compiler, broken, slow = tmp_path / "nvcc", tmp_path / "broken", tmp_path / "slow"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho built > "$last"\n')
    broken.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    for program in (compiler, broken, slow):
        program.chmod(0o755)
    job = LibraryJob("a", (tmp_path / "a.cu",), ())
    assert build(job, tmp_path, str(broken)) == "a: nvcc fails: no such header"
    assert build(job, tmp_path, str(slow), 0.1) == "a: nvcc takes longer than 0.1 s"
    assert not list(tmp_path.glob("*.so"))
    assert build(job, tmp_path, str(compiler)) == "a: built"
    assert build(job, tmp_path, str(broken)) == "a: is there"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_a_published_kernel_gets_both_layouts_and_its_code_is_told(tmp_path: Path) -> None:
    """The library of this test returns what its stream points to."""
    source = tmp_path / "a.c"
    source.write_text(
        "int launch(const char *a, const char *b, const char *t, char *d, int m, int n, int k, const int *stream)"
        " { return *a * 1000 + *b * 100 + *t * 10 + *d != 1234 || m != 64 || n != 128 || k != 512 ? 99 : *stream; }"
    )
    file = tmp_path / f"paper-{TASK.shape}.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(file)], check=True)
    buffers = [bytes([value]) for value in (1, 2, 3, 4)]
    a, b, t, d = (SimpleNamespace(data=SimpleNamespace(ptr=_address(each))) for each in buffers)
    bound = PaperGemm(file, TASK).bind(Operands(a=a, b_nn=b, b_tn=t, d=d))
    streams = {code: ctypes.c_int(code) for code in (0, THREW, TIMES_ITSELF, NOT_LAUNCHED)}
    bound.enqueue(ctypes.addressof(streams[0]))
    with pytest.raises(Unavailable, match="threw an exception"):
        bound.enqueue(ctypes.addressof(streams[THREW]))
    with pytest.raises(TimesItself):
        bound.enqueue(ctypes.addressof(streams[TIMES_ITSELF]))
    with pytest.raises(Unavailable, match="not launched"):
        bound.enqueue(ctypes.addressof(streams[NOT_LAUNCHED]))
    with pytest.raises(Unavailable, match="no B in the layout"):
        PaperGemm(file, TASK).bind(Operands(a=a, b_nn=b, b_tn=None, d=d))
    offer = PaperPeer(tmp_path).offer(bench())
    assert (offer.detail, offer.lenient) == (f"paper-{TASK.shape}", True)


def test_libraries_are_for_f16_only(tmp_path: Path) -> None:
    bf16 = TASK.model_copy(update={"element": ElementType.BF16})
    for peer in (CutlassPeer(tmp_path), PaperPeer(tmp_path)):
        with pytest.raises(Unavailable):
            peer.offer(bench(bf16))


def test_deep_gemm_that_does_not_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "deep_gemm.py").write_text("raise RuntimeError('its extension is not built')")
    with pytest.raises(Unavailable, match="its extension is not built"):
        deep_gemm_peer.deep_gemm(tmp_path)
    with pytest.raises(Unavailable, match="does not exist"):
        deep_gemm_peer.deep_gemm(tmp_path / "none")


def test_the_cache_of_deep_gemm_is_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(deep_gemm_peer.CACHE_VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "deep_gemm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "deep_gemm.py").write_text(
        "import os\nbf16_gemm_nn = bf16_gemm_nt = print\n__version__ = os.environ['DG_JIT_CACHE_DIR']"
    )
    _, module, version = deep_gemm_peer.deep_gemm(tmp_path)
    assert (module.bf16_gemm_nn, version) == (print, str(tmp_path / deep_gemm_peer.CACHE))
    monkeypatch.delitem(sys.modules, "deep_gemm")


def test_deep_gemm_reads_b_in_either_layout() -> None:
    module = SimpleNamespace(bf16_gemm_nn="nn", bf16_gemm_nt="nt")
    viewed: list[str] = []
    for transposed in (False, True):
        contender = deep_gemm_peer.DeepGemm(None, module, "1", transposed=transposed)
        contender._view = lambda array: viewed.append(array) or array  # type: ignore[method-assign,assignment,func-returns-value]
        bound = contender.bind(Operands(a="a", b_nn="nn", b_tn="nt", d="d"))
        assert bound._multiply == bound._tensors[1]
    assert viewed == ["a", "nn", "d", "a", "nt", "d"]


def test_shapes_are_shared_out_to_compile_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.exit('no driver' if '64x64x128' in sys.argv else 0)"
    monkeypatch.setattr(deep_gemm, "_command", lambda _folder, shapes: [sys.executable, "-S", "-c", program, *shapes])
    told = list(deep_gemm.compile_ahead(Path(), ["64x64x64", "64x64x128", "64x64x256"], 2))
    assert told == ["deepgemm, 64x64x64, 64x64x256: compiled", "deepgemm, 64x64x128: fails: no driver"]
    assert len(list(deep_gemm.compile_ahead(Path(), ["64x64x64"], 16))) == 1


def test_both_layouts_of_b_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied: list[tuple[str, Any, Any, Any]] = []
    torch = SimpleNamespace(
        bfloat16="bf16",
        zeros=lambda size, **_: size,
        cuda=SimpleNamespace(synchronize=lambda: multiplied.append(("end", 0, 0, 0))),
    )
    module = SimpleNamespace(
        bf16_gemm_nn=lambda *operands: multiplied.append(("nn", *operands)),
        bf16_gemm_nt=lambda *operands: multiplied.append(("nt", *operands)),
    )
    monkeypatch.setattr(deep_gemm_peer, "deep_gemm", lambda _folder: (torch, module, "1"))
    deep_gemm.compile_kernels(Path(), "64x128x512")
    a, d = (64, 512), (64, 128)
    assert multiplied == [("nn", a, (512, 128), d), ("nt", a, (128, 512), d), ("end", 0, 0, 0)]


def test_own_kernels_are_written_from_the_schedules_of_rows(tmp_path: Path) -> None:
    family = families(Arch.SM_90A)[0]
    schedule = next(iter(family.space(TASK, REFERENCE_CHIPS[Arch.SM_90A])))
    candidate = family.write(schedule, TASK)
    row = shape_result(TASK.shape)
    assert row.best is not None
    winner = row.best.model_copy(update={"schedule": candidate.origin.schedule})
    write_results(tmp_path / "rows.jsonl.gz", [row.model_copy(update={"best": winner})])
    again = written(schedules_of([tmp_path / "rows.jsonl.gz"])[TASK.shape], TASK)
    assert again is not None
    assert again.id == candidate.id
    assert written(None, TASK) is None
    assert written({"family": "of another version"}, TASK) is None


def test_own_kernels_are_built_for_each_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same shape in FP16 and in BF16 is two kernels; a shape without a row is none."""
    bf16 = TASK.model_copy(update={"element": ElementType.BF16})
    schedule = next(iter(families(Arch.SM_90A)[0].space(TASK, REFERENCE_CHIPS[Arch.SM_90A])))
    values = families(Arch.SM_90A)[0].write(schedule, TASK).origin.schedule
    monkeypatch.setattr(own_peer.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(own_peer, "load", lambda built, task, _device: (built.candidate.source, task.element))
    peer = own_peer.OwnPeer({TASK.shape: dict(values or {})})
    peer.build([TASK, bf16, GemmTask(m=64, n=64, k=64)])
    offers = [peer.offer(SimpleNamespace(task=task, device=None)).contender for task in (TASK, bf16)]  # type: ignore[arg-type]
    assert [element for _, element in offers] == [ElementType.F16, ElementType.BF16]
    assert offers[0][0] != offers[1][0]
    with pytest.raises(Unavailable, match="no kernel for this shape"):
        peer.offer(bench(GemmTask(m=64, n=64, k=64)))


def test_autotuning_is_always_wanted() -> None:
    assert wanted(AUTOTUNED, ["deepgemm"])
    assert wanted("deepgemm", ["deepgemm"])
    assert wanted("triton", [])
    assert not wanted("triton", ["deepgemm"])


def test_a_job_names_its_task() -> None:
    task = task_of(ShapeJob(shape="64x128x512", element="bf16"))
    assert (task.shape, task.element, task.arch) == ("64x128x512", ElementType.BF16, Arch.SM_90A)


def _address(buffer: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0
