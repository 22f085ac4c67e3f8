"""The number formats of compiled code, and which of them a module's task allows."""

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import LaunchPlan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.inspect.arithmetic import arithmetic_rules, formats, module_rules, narrows_in_ptx, narrows_in_sass
from cudal2_agent.sandbox.inspect.facts import CodeFacts, facts_of
from cudal2_agent.sandbox.inspect.inspection import inspect
from tests.doubles.modules import relu_of_sum
from tests.sandbox.building.build_kernels import candidate

_NONE: frozenset[str] = frozenset()


# SASS of ptxas 13.0 for sm_80, sm_89 and sm_90a.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", {"f16"}),
        ("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", {"bf16"}),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", {"tf32"}),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", {"f64"}),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32", {"integer"}),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", {"fp8"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16", {"f16"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", {"f16"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32", {"tf32"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32.satfinite", {"integer"}),
        ("wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64.rn", {"f64"}),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", {"f16"}),
        ("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", {"tf32"}),
        ("wgmma.mma_async.sync.aligned.m64n8k32.satfinite.s32.s8.u8", {"integer"}),
        ("wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2", {"fp8"}),
        ("tcgen05.mma.cta_group::1.kind::f16", {"half"}),
        ("tcgen05.mma.cta_group::1.kind::tf32", {"tf32"}),
        ("tcgen05.mma.cta_group::1.kind::f8f6f4", {"fp8"}),
        ("HMMA.16816.F32", {"f16"}),
        ("HMMA.16816.F16", {"f16"}),
        ("HMMA.1688.F32.BF16", {"bf16"}),
        ("HMMA.1688.F32.TF32", {"tf32"}),
        ("HMMA.1684.F32.TF32", {"tf32"}),
        ("HMMA.SP.1688.F32.TF32", {"tf32"}),
        ("HGMMA.64x8x16.F32", {"f16"}),
        ("HGMMA.64x8x16.F32.BF16", {"bf16"}),
        ("HGMMA.64x8x8.F32.TF32", {"tf32"}),
        ("DMMA.884", {"f64"}),
        ("DMMA.8x8x4", {"f64"}),
        ("IMMA.16832.S8.U8.SAT", {"integer"}),
        ("IMMA.8816.S8.S8", {"integer"}),
        ("IGMMA.64x8x32.S8.U8.SAT", {"integer"}),
        ("QMMA.16832.F32.E4M3.E5M2", {"fp8"}),
        ("QGMMA.64x8x32.F32.E4M3.E4M3", {"fp8"}),
        ("UTCHMMA", set()),
    ],
)
def test_formats_are_read_from_names(name: str, expected: set[str]) -> None:
    assert formats(name) == expected


@pytest.mark.parametrize(
    ("opcode", "narrow"),
    [
        ("cvt.rn.f16.f32", True),
        ("cvt.rn.relu.bf16x2.f32", True),
        ("cvt.rn.f16.f64", True),
        ("cvt.rn.bf16.s32", True),
        ("cvt.rn.satfinite.e4m3x2.f32", True),
        ("fma.rn.f16x2", True),
        ("ex2.approx.ftz.bf16x2", True),
        ("red.global.add.noftz.f16x2", True),
        ("set.gt.f16.f32", True),
        ("cvt.f32.f16", False),
        ("cvt.f32.bf16", False),
        ("cvt.rni.s32.f16", False),
        ("cvt.rna.tf32.f32", False),
        ("set.gt.u32.f16", False),
        ("setp.gt.f16", False),
        ("cvt.rn.f32.f64", False),
        ("ld.global.b16", False),
        ("mov.b32", False),
    ],
)
def test_roundings_in_ptx(opcode: str, narrow: bool) -> None:
    assert narrows_in_ptx(tuple(opcode.split("."))) is narrow


@pytest.mark.parametrize(
    ("opcode", "narrow"),
    [
        ("F2FP.PACK_AB", True),
        ("F2FP.PACK_AB.RZ", True),
        ("F2FP.BF16.PACK_AB", True),
        ("F2FP.F16.F32.PACK_AB", True),
        ("F2FP.RELU.BF16.F32.PACK_AB", True),
        ("F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C", True),
        ("F2F.F16.F64", True),
        ("F2F.BF16.F64", True),
        ("I2F.F16", True),
        ("I2F.F16.S64", True),
        ("MUFU.TANH.F16", True),
        ("F2F.F64.F32", False),
        ("F2F.F32.F64", False),
        ("I2F.RZ", False),
        ("I2FP.F32.S32", False),
        ("MUFU.EX2", False),
        ("HADD2.F32", False),
        ("HFMA2.MMA", False),
    ],
)
def test_roundings_in_sass(opcode: str, narrow: bool) -> None:
    assert narrows_in_sass(opcode) is narrow


@pytest.mark.parametrize(
    ("arithmetic", "kind", "expected"),
    [
        (Arithmetic.F32, "HMMA.1688.F32.TF32", "arithmetic-tf32"),
        (Arithmetic.F32, "HMMA.16816.F32", "arithmetic-half"),
        (Arithmetic.F32, "HMMA.16816.F32.BF16", "arithmetic-half"),
        (Arithmetic.F32, "QGMMA.64x8x32.F32.E4M3.E4M3", "arithmetic-half"),
        (Arithmetic.F32, "DMMA.884", None),
        (Arithmetic.F32, "IMMA.16832.S8.U8", None),
        (Arithmetic.TF32, "HMMA.1688.F32.TF32", None),
        (Arithmetic.TF32, "HMMA.16816.F32.BF16", "arithmetic-half"),
        (Arithmetic.F16, "HMMA.16816.F32", None),
        (Arithmetic.F16, "HMMA.1688.F32.TF32", None),
        (Arithmetic.F16, "HMMA.16816.F32.BF16", "arithmetic-half"),
        (Arithmetic.F16, "QMMA.16832.F32.E4M3.E5M2", "arithmetic-half"),
        (Arithmetic.BF16, "HMMA.16816.F32.BF16", None),
        (Arithmetic.BF16, "HMMA.16816.F32", "arithmetic-half"),
        (Arithmetic.BF16, "tcgen05.mma.cta_group::1.kind::f16", None),
    ],
)
def test_what_a_task_allows(arithmetic: Arithmetic, kind: str, expected: str | None) -> None:
    found = next(arithmetic_rules((kind,), (), arithmetic, _NONE, _NONE), None)
    assert (found.rule if found else None) == expected


@pytest.mark.parametrize("arithmetic", Arithmetic)
def test_roundings_of_tasks(arithmetic: Arithmetic) -> None:
    found = next(arithmetic_rules((), ("F2FP.F16.F32.PACK_AB",), arithmetic, _NONE, _NONE), None)
    assert (found is not None) == (arithmetic in (Arithmetic.F32, Arithmetic.TF32))


def test_a_module_that_rounds_or_multiplies_in_f16_itself_may_do_so() -> None:
    def task(op: str) -> Graph:
        node = GraphNode(
            name="made", op=op, args=({"node": "x"},), results=(TensorType(shape=(32, 64), element=BufferElement.F16),)
        )
        last = GraphNode(name="last", op="aten.relu.default", results=(TensorType(shape=(32, 64), element=BufferElement.F32),))
        return Graph(nodes=(node, last), outputs={"out": "last"})

    cast, product = (relu_of_sum(graph=task(op)) for op in ("aten._to_copy.default", "aten.mm.default"))
    rounding, multiplying = ("cvt.rn.f16.f32",), ("HMMA.16816.F32",)
    assert not list(module_rules((), rounding, cast))
    assert [each.rule for each in module_rules(multiplying, (), cast)] == ["arithmetic-half"]
    assert not list(module_rules(multiplying, rounding, product))
    assert [each.rule for each in module_rules(("HMMA.16816.F32.BF16",), (), product)] == ["arithmetic-half"]


# ---- compiled code ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache"))))


def kernel(body: str) -> str:
    return f"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void relu(const float* x, const float* y, float* out) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  {body}
}}
"""


def planned(arch: Arch) -> LaunchPlan:
    args = ({"tensor": "x"}, {"tensor": "y"}, {"tensor": "out", "access": "write"})
    launch = {"entry": "relu", "grid": ("rows/2", 1, 1), "block": (128, 1, 1), "args": args}
    return LaunchPlan.model_validate({"arch": arch, "launches": (launch,)})


def rule(compiler: Compiler, body: str, arch: Arch, arithmetic: Arithmetic) -> str | None:
    task = relu_of_sum(arch=arch, arithmetic=arithmetic)
    wanted: Candidate = candidate(kernel(body), launch_plan=planned(arch))
    compiled = compiler.compile(wanted, arch)
    assert isinstance(compiled, Compiled), compiled
    found = inspect(compiled, wanted, resolve(wanted.plan, task, LIMITS[arch], 132), task, LIMITS[arch])
    return found.rule if isinstance(found, Rejected) else None


ARCHES = (Arch.SM_80, Arch.SM_89, Arch.SM_90A)
_PRODUCT = (
    'float d[4] = {{}}; unsigned v = __float_as_uint(x[i]); asm("mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 '
    '{{%0,%1,%2,%3}},{{%4,%4,%4,%4}},{{%4,%4}},{{%0,%1,%2,%3}};"'
    ' : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(v)); out[i] = d[0] + d[3];'
)
TF32 = _PRODUCT.format(shape="m16n8k8", kind="tf32")
F16, BF16 = (_PRODUCT.format(shape="m16n8k16", kind=kind) for kind in ("f16", "bf16"))
F16_SUMS = (
    "unsigned h[2] = {}, v = __float_as_uint(x[i]);"
    'asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%2,%2,%2},{%2,%2},{%0,%1};"'
    ' : "+r"(h[0]), "+r"(h[1]) : "r"(v)); out[i] = __uint_as_float(h[0] + h[1]);'
)
# What ptxas compiles to many kinds of instructions of f32, with constants that it moves by HFMA2.
PLAIN = (
    "float v = x[i]; double w = y[i]; out[i] = fmaxf(expf(v) + tanhf(v) / sqrtf(fabsf(v) + 1e-5f) + erff(v) * (float)(w / 3),"
    " __logf(v) + sinf(v) + (float)i + powf(v, 0.3f) + (int)v + __shfl_xor_sync(~0u, v, 1));"
)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("body", "arithmetic", "expected"),
    [
        (PLAIN, Arithmetic.F32, None),
        (TF32, Arithmetic.F32, "arithmetic-tf32"),
        (TF32, Arithmetic.TF32, None),
        (F16, Arithmetic.F32, "arithmetic-half"),
        (F16, Arithmetic.F16, None),
        (F16, Arithmetic.TF32, "arithmetic-half"),
        (BF16, Arithmetic.F32, "arithmetic-half"),
        (BF16, Arithmetic.BF16, None),
        (F16_SUMS, Arithmetic.F16, "accumulator-width"),
        ("out[i] = __half2float(__float2half(x[i])) + y[i];", Arithmetic.F32, "arithmetic-half"),
        ("out[i] = __bfloat162float(__float2bfloat16_rz(x[i]));", Arithmetic.F32, "arithmetic-half"),
        ("out[i] = __low2float(__hfma2(__float2half2_rn(x[i]), __float2half2_rn(y[i]), __half2{}));", Arithmetic.F16, None),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, Arithmetic) else "",
)
def test_compiled_code(compiler: Compiler, body: str, arithmetic: Arithmetic, expected: str | None, arch: Arch) -> None:
    assert rule(compiler, body, arch, arithmetic) == expected


@pytest.mark.parametrize("arch", ARCHES)
def test_facts_are_those_of_ptx_and_of_machine_code(compiler: Compiler, arch: Arch) -> None:
    compiled = compiler.compile(candidate(kernel("out[i] = __half2float(__float2half(x[i]));")), arch)
    assert isinstance(compiled, Compiled)
    facts = facts_of(compiled, arch, device=True)
    assert isinstance(facts, CodeFacts)
    assert len(facts.narrowing) == 2
    assert facts.narrowing[0] == "cvt.rn.f16.f32"
    assert facts.narrowing[1].startswith("F2FP.")
