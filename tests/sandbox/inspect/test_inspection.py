"""Inspection of really compiled code: resources, tensor-core widths, and operations that macros hide from the static check."""

from pathlib import Path

import pytest

from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import LaunchPlan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.building.toolchain import find_nvcc
from cudal2_agent.sandbox.inspect import code, sass
from cudal2_agent.sandbox.inspect.inspection import NOT_JUDGED, inspect
from cudal2_agent.sandbox.inspect.resources import Occupancy, Resources, occupancy, parse_resources, parse_warnings
from tests.sandbox.building.build_kernels import HOST, MMA_F32, NAIVE, TASK, TENSORS, body, candidate, host, plan, tensor_core

STATE = "__device__ int state;\n"
F16_TASK = GemmTask(m=128, n=128, k=64, accumulate=AccumulatorType.F16)
H100, AMPERE = LIMITS[Arch.SM_90A], LIMITS[Arch.SM_80]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache"))))


def inspected(compiler: Compiler, wanted: AnyCandidate, task: GemmTask = TASK) -> Inspection | Rejected:
    """Compile and inspect without the static check."""
    compiled = compiler.compile(wanted, task.arch)
    assert isinstance(compiled, Compiled), compiled
    launches = resolve(wanted.plan, task, LIMITS[task.arch], 132) if isinstance(wanted, Candidate) else None
    return inspect(compiled, wanted, launches, task, LIMITS[task.arch])


def rule(compiler: Compiler, source: str, task: GemmTask = TASK, launch_plan: LaunchPlan | None = None) -> str | None:
    found = inspected(compiler, candidate(source, launch_plan=launch_plan), task)
    return found.rule if isinstance(found, Rejected) else None


def test_a_plain_kernel_is_described(compiler: Compiler) -> None:
    found = inspected(compiler, candidate(NAIVE, launch_plan=plan(dynamic_smem=20_000)))
    assert isinstance(found, Inspection)
    (kernel,) = found.kernels
    assert (kernel.entry, kernel.threads, kernel.dynamic_smem_bytes) == ("gemm", 256, 20_000)
    assert 8 < kernel.registers < 128
    assert (kernel.spill_store_bytes, kernel.static_smem_bytes) == (0, 0)
    assert (kernel.ctas_per_sm, kernel.occupancy_limiter, kernel.occupancy) == (8, "threads", 1.0)
    assert found.opcode_source == "sass"
    assert found.opcodes["FFMA"] > 0
    assert found.opcodes["EXIT"] > 0
    assert (found.mma, found.accumulators) == ((), ())


def test_static_shared_memory_and_local_memory_show(compiler: Compiler) -> None:
    text = "__shared__ float s[1000]; float x[64]; for (int i = 0; i < 64; ++i) x[i] = a[i];"
    text += "for (int i = 0; i < n; ++i) x[i & 63] += x[(i * 7) & 63]; s[threadIdx.x] = x[n & 63];"
    found = inspected(compiler, candidate(body(text + "__syncthreads(); d[0] = s[m];")))
    assert isinstance(found, Inspection)
    assert found.kernels[0].static_smem_bytes == 4000
    assert found.kernels[0].stack_bytes >= 128


def test_spills_show(compiler: Compiler) -> None:
    text = "float x[200];\n#pragma unroll\nfor (int i = 0; i < 200; ++i) x[i] = a[i * n];\nfloat sum = 0;\n__syncthreads();\n"
    text += "#pragma unroll\nfor (int i = 0; i < 200; ++i) { sum += x[i] * x[(i * 7) % 200]; d[i] = sum; }"
    found = inspected(compiler, Candidate.model_validate(candidate(body(text), flags=("--maxrregcount=32",)).model_dump()))
    assert isinstance(found, Inspection)
    assert found.kernels[0].registers <= 32
    assert found.kernels[0].spill_store_bytes > 0


@pytest.mark.parametrize("arch", [Arch.SM_80, Arch.SM_90A])
def test_f32_tensor_cores_are_named_from_ptx_and_sass(compiler: Compiler, arch: Arch) -> None:
    found = inspected(compiler, candidate(tensor_core("f32")), GemmTask(m=128, n=128, k=64, arch=arch))
    assert isinstance(found, Inspection)
    assert found.mma == (MMA_F32, "HMMA.16816.F32")
    assert found.accumulators == (AccumulatorType.F32,)


def test_a_narrow_accumulator_is_rejected_even_beside_a_wide_one(compiler: Compiler) -> None:
    assert rule(compiler, tensor_core("f16")) == "accumulator-width"
    assert rule(compiler, tensor_core("f32", "f16")) == "accumulator-width"


def test_a_task_in_f16_may_accumulate_in_either(compiler: Compiler) -> None:
    narrow = plan().model_copy(update={"accumulate": AccumulatorType.F16})
    assert rule(compiler, tensor_core("f16"), F16_TASK, narrow) is None
    both = inspected(compiler, candidate(tensor_core("f32", "f16"), launch_plan=narrow), F16_TASK)
    assert isinstance(both, Inspection)
    assert set(both.accumulators) == set(AccumulatorType)


def test_a_macro_can_not_hide_a_narrow_accumulator(compiler: Compiler) -> None:
    hidden = (
        tensor_core("f16")
        .replace("col.f16.f16.f16.f16", 'col." T "." T "." T "." T "')
        .replace("#include", '#define T "f16"\n#include', 1)
    )
    assert rule(compiler, hidden) == "accumulator-width"


@pytest.mark.parametrize(
    ("text", "before", "name"),
    [
        ("d[0] = CAT(clo, ck64)();", "#define CAT(a, b) a##b", "device-clock"),
        ('unsigned t; asm volatile("mov.u32 %0, %%" T ";" : "=r"(t)); d[0] = t;', '#define T "globaltimer_lo"', "device-clock"),
        ('long long t; asm volatile("mov.u64 %0, %%" T ";" : "=l"(t)); d[0] = t;', '#define T "gridid"', "device-clock"),
        ('CAT(pri, ntf)("%d", m);', "#define CAT(a, b) a##b", "device-call"),
        ("d[0] = CAT(mal, loc)(8) != nullptr;", "#define CAT(a, b) a##b", "device-call"),
        ("d[0] = new int != nullptr;", "", "device-call"),
        ("if (m == 7) CAT(__tr, ap)();", "#define CAT(a, b) a##b", "device-trap"),
        ("d[0] = calls++;", "#define STATE __device__\nSTATE int calls;", "device-state"),
        ("static int calls; d[0] = calls++;", "", "device-state"),
        ("static int calls; d[0] = atomicAdd(&calls, 1);", "", "device-state"),
        ("const_cast<float*>(table)[n] = 3; d[0] = table[m];", "__device__ const float table[4] = {1, 2};", "device-state"),
        ("*where = 3; d[0] = *where;", "__device__ int state;\n__device__ int* const where = &state;", "device-state"),
        ("store(&state); d[0] = state;", STATE + "__device__ __noinline__ void store(int* p) { *p = 1; }", "device-state"),
        ("*reinterpret_cast<void**>(d) = &state;", STATE, "device-state"),
        ("int* p = m > 3 ? &state : (int*)d; for (int i = 0; i < n; ++i) p += k; *p = 1;", STATE, "device-state"),
        ('asm volatile(".loc 1 1 0 st.global.u32 [state], 5;"); d[0] = state;', STATE, "device-state"),
        ('asm volatile("{.global .u32 calls; atom.global.add.u32 %0, [calls], 1;}" : "=r"(m));', "", "device-state"),
        ('asm volatile(".loc 1 1 0 trap;");', "", "device-trap"),
    ],
)  # fmt: skip
def test_macros_and_pointers_can_not_hide_what_is_forbidden(compiler: Compiler, text: str, before: str, name: str) -> None:
    assert rule(compiler, body(text, before)) == name


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("d[0] = table[n];", "__device__ const float table[4] = {1, 2, 3, 4};"),
        ("const int lut[8] = {1, 5, 2, 7, 3, 9, 11, 4}; d[0] = lut[n];", ""),
        ("static constexpr int lut[4] = {9, 8, 7, 6}; for (int i = 0; i < m; ++i) d[i] = lut[i & 3];", ""),
        ("d[0] = table[n] + kTile;", "__constant__ float table[4] = {1, 2, 3, 4};\nconstexpr int kTile = 64;"),
        ("d[0] = sinf(a[0]) + powf(a[1], a[2]);", ""),
        ("extern __shared__ int s[]; s[threadIdx.x] = 1; atomicAdd(&s[0], 1); __syncthreads(); d[0] = s[n];", ""),
        ("__nanosleep(20); d[0] = 1;", ""),
    ],
)  # fmt: skip
def test_constants_and_shared_memory_pass(compiler: Compiler, text: str, before: str) -> None:
    assert rule(compiler, body(text, before)) is None


def test_a_launch_must_fit_its_entry(compiler: Compiler) -> None:
    assert rule(compiler, NAIVE.replace("gemm(", "other("), launch_plan=plan()) == "entry-missing"
    assert rule(compiler, NAIVE.replace('extern "C"', "")) == "entry-missing"
    assert rule(compiler, NAIVE, launch_plan=plan(block=(512, 1, 1))) == "launch-bounds"
    exact = NAIVE.replace("__launch_bounds__(256)", "__launch_bounds__(256) __cluster_dims__(2, 1, 1)")
    assert rule(compiler, exact) == "launch-bounds"
    assert rule(compiler, exact, launch_plan=plan(cluster=(2, 1, 1))) is None


@pytest.mark.parametrize(
    "args",
    [
        TENSORS,
        (*TENSORS, *({"scalar": name} for name in "MNKK")),
        (*TENSORS, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K", "type": "i64"}),
        ({"scalar": "M"}, *TENSORS[1:], *({"scalar": name} for name in "MNK")),
    ],
)
def test_arguments_must_match_the_parameters(compiler: Compiler, args: tuple[dict[str, str], ...]) -> None:
    assert rule(compiler, NAIVE, launch_plan=plan(args=args)) == "entry-parameters"


def test_tensor_maps_and_scalars_have_their_sizes(compiler: Compiler) -> None:
    source = """#include <cuda.h>
    extern "C" __global__ void gemm(const __grid_constant__ CUtensorMap map, void* d, long long k, float x, unsigned n,
                                    double y) {
      *static_cast<float*>(d) = k + x + y + n + *reinterpret_cast<const char*>(&map);
    }"""
    args = (
        {"tensor_map": {"of": "A", "box": (64, 64), "swizzle": 128}}, {"tensor": "D", "access": "write"},
        {"scalar": "K", "type": "i64"}, {"scalar": 1, "type": "f32"}, {"scalar": "N", "type": "u32"},
        {"scalar": 1, "type": "f64"},
    )  # fmt: skip
    assert rule(compiler, source, launch_plan=plan(args=args)) is None
    assert rule(compiler, source, launch_plan=plan(args=(args[1], *args[1:]))) == "entry-parameters"


def test_resources_must_fit_the_chip(compiler: Compiler) -> None:
    shared = body("__shared__ float s[10000]; s[threadIdx.x] = a[n]; __syncthreads(); d[0] = s[m];")
    assert rule(compiler, shared, launch_plan=plan(dynamic_smem=200_000)) == "smem-limit"
    assert rule(compiler, shared, launch_plan=plan(dynamic_smem=180_000)) is None
    many = "float x[100];\n#pragma unroll\nfor (int i = 0; i < 100; ++i) x[i] = a[i * n];\nfloat sum = 0;\n__syncthreads();\n"
    many += "#pragma unroll\nfor (int i = 0; i < 100; ++i) { sum += x[i] * x[(i * 7) % 100]; d[i] = sum; }"
    assert rule(compiler, body(many), launch_plan=plan(block=(1024, 1, 1))) == "register-limit"


def test_a_host_candidate_is_inspected_without_a_plan(compiler: Compiler) -> None:
    try:
        find_nvcc(None)
    except CompilerMissing:
        pytest.skip("there is no nvcc here")
    found = inspected(compiler, host(HOST))
    assert isinstance(found, Inspection)
    assert found.kernels[0].occupancy_limiter == "unknown"
    assert found.kernels[0].registers > 0


def test_without_a_disassembler_ptx_is_counted(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    found = inspected(compiler, candidate(tensor_core("f32")))
    assert isinstance(found, Inspection)
    assert (found.opcode_source, found.opcodes["mma"], found.mma) == ("ptx", 1, (MMA_F32,))
    assert found.warnings == (NOT_JUDGED,)
    assert rule(compiler, tensor_core("f16")) == "accumulator-width"


def test_an_unreadable_cubin_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(b"not ELF")
    assert sass.disassemble(tmp_path / "kernel.cubin") is None


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", {"f32"}),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", {"f16"}),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f16", {"f32", "f16"}),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", {"f32"}),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16", {"f16"}),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", set()),
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16", {"f32"}),
        ("wgmma.mma_async.sync.aligned.m64n256k16.f16.f16.f16", {"f16"}),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", {"f32"}),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f16.f16.f16", {"f16"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", {"f32"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16", {"f16"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16", {"f32", "f16"}),
        ("tcgen05.mma.cta_group::1.kind::f16", set()),
    ],
)
def test_accumulators_are_read_from_ptx_names(name: str, types: set[str]) -> None:
    assert {kind.value for kind in code.accumulators(name)} == types


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("HMMA.16816.F32", {"f32"}),
        ("HMMA.16816.F32.BF16", {"f32"}),
        ("HMMA.16816.F16", {"f16"}),
        ("HGMMA.64x256x16.F16", {"f16"}),
        ("HGMMA.64x256x16.F32.BF16", {"f32"}),
        ("IMMA.16832.S8.S8", set()),
        ("HFMA2.MMA", set()),
        ("UTCHMMA", set()),
    ],
)
def test_accumulators_are_read_from_sass_names(name: str, types: set[str]) -> None:
    assert {kind.value for kind in sass.accumulators(name)} == types


def test_sass_listings_are_counted_with_predicates_and_clocks() -> None:
    found = sass.parse(
        "        /*0000*/                   LDC R1, c[0x0][0x28] ;\n"
        "        /*0110*/              @!P1 BRA `(.L_x_0) ;\n"
        "        /*0120*/         @UP0 HGMMA.64x8x16.F16 R24, gdesc[UR8], R24, gsb0 ;\n"
        "        /*0130*/                   CS2R R2, SR_CLOCKLO ;\n"
        "        .section .text\n"
    )
    assert found.opcodes == {"BRA": 1, "CS2R": 1, "HGMMA": 1, "LDC": 1}
    assert (found.mma, found.special_registers) == (("HGMMA.64x8x16.F16",), ("SR_CLOCKLO",))
    assert found.constants == ((0x28, False),)


def test_an_empty_group_of_wgmma_accumulates_nothing() -> None:
    """ptxas closes the group with an f16 product into RZ, for which no f32 kernel may be rejected."""
    found = sass.parse(
        "        /*0060*/                   HGMMA.64x16x16.F32 R24, gdesc[UR4], RZ, !UPT, gsb0 ;\n"
        "        /*0080*/                   HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT, gsb0 ;\n"
        "        /*0090*/                   HGMMA.64x8x16.F16 R2, gdesc[URZ], RZ, !UPT, gsb0 ;\n"
    )
    assert found.opcodes == {"HGMMA": 2}
    assert found.mma == ("HGMMA.64x16x16.F32", "HGMMA.64x8x16.F16")
    assert "HGMMA.64x8x16.F16" not in sass.parse("  /*0080*/  HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT, gsb0 ;\n").mma


def test_ptx_in_comments_does_not_count() -> None:
    found = code.read(
        ".version 9.0\n.target sm_90a\n.visible .entry k(.param .u64 p) { .reg .pred %p1;\n"
        "// mov.u32 %r1, %clock;\n /* trap; */ bar.sync 0; @%p1 bra $L_1; $L_1: ret; }"
    )
    assert (found.special_registers, found.traps) == ((), ())
    assert found.opcodes == {"bar": 1, "bra": 1, "ret": 1}  # the first stands right behind the header
    assert found.entries["k"].parameter_bytes == (8,)


LOG = """ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x
ptxas info    : 20 bytes gmem
ptxas info    : Compiling entry function 's' for 'sm_90a'
ptxas info    : Function properties for s
ptxas         .     256 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for helper
    16 bytes stack frame, 100 bytes spill stores, 60 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 272 bytes cumulative stack size, 2048 bytes smem, 388 bytes cmem[0]
ptxas info    : Compile time = 19.259 ms
ptxas info    : Compiling entry function 'w' for 'sm_90a'
ptxas info    : Function properties for w
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 0 barriers
"""


def test_the_log_of_several_entries_is_taken_apart() -> None:
    assert parse_resources(LOG) == {"s": Resources(30, 108, 64, 272, 2048), "w": Resources(168, 0, 0, 0, 0)}
    assert parse_resources("no such thing") == {}


def test_a_source_can_not_speak_for_ptxas(compiler: Compiler) -> None:
    fake = "#warning ptxas info    : Compiling entry function 'gemm' for 'sm_90a' ptxas info    : Used 1 registers\n"
    found = inspected(compiler, candidate(fake + NAIVE))
    assert isinstance(found, Inspection)
    assert found.kernels[0].registers > 8


def test_warnings_of_ptxas_are_kept_once() -> None:
    (warning,) = parse_warnings(LOG + LOG)
    assert warning.startswith("(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized")


def test_a_lost_rate_is_told_before_the_many_lines_that_led_to_it() -> None:
    """As ptxas had it of a kernel of a model: a message for each line, then the reason."""
    arrive = (
        "ptxas info    : (C7519) warpgroup.arrive is injected in around line {} by compiler to allow use of registers in GMMA"
    )
    lines = [*(arrive.format(952 + number) for number in range(20)), LOG.partition("\n")[0]]
    lost, injected = parse_warnings("\n".join(lines))
    assert "serialized due to x" in lost
    assert "around line 952 by" in injected
    assert injected.endswith("(and at 19 other places)")


@pytest.mark.parametrize(
    ("threads", "registers", "smem", "limits", "expected"),
    [
        (256, 64, 0, AMPERE, Occupancy(4, 0.5, "registers")),
        (256, 128, 48 * 1024, H100, Occupancy(2, 0.25, "registers")),
        (384, 168, 200 * 1024, H100, Occupancy(1, 0.1875, "registers")),
        (128, 32, 0, H100, Occupancy(16, 1.0, "threads")),
        (32, 16, 0, H100, Occupancy(32, 0.5, "ctas")),
        (1024, 32, 0, LIMITS[Arch.SM_86], Occupancy(1, 1024 / 1536, "threads")),
        (128, 32, 100 * 1024, AMPERE, Occupancy(1, 0.0625, "shared-memory")),
        (128, 32, 113 * 1024, H100, Occupancy(2, 0.125, "shared-memory")),
        (128, 32, 114 * 1024, H100, Occupancy(1, 0.0625, "shared-memory")),
        (128, 32, 227 * 1024, H100, Occupancy(1, 0.0625, "shared-memory")),
        (128, 32, 228 * 1024, H100, Occupancy(0, 0.0, "shared-memory")),
        (1024, 65, 0, H100, Occupancy(0, 0.0, "registers")),
        (33, 255, 0, H100, Occupancy(4, 0.125, "registers")),
    ],
)
def test_occupancy(threads: int, registers: int, smem: int, limits: object, expected: Occupancy) -> None:
    assert occupancy(threads, registers, smem, limits) == expected
