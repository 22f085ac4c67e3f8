"""The static check: every source is an attack on one rule, or a valid one that must pass."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import render_plan
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.sandbox.building.check import MAX_SOURCE_BYTES, check
from cudal2_agent.sandbox.building.source import CppSource
from tests.sandbox.building.build_kernels import HOST, NAIVE, ORIGIN, TASK, body, candidate, host, plan, tensor_core

LIMIT = LIMITS[Arch.SM_90A]


def rejection(candidate: AnyCandidate, task: GemmTask = TASK) -> Rejected | None:
    found = check(candidate, task, LIMIT, 132)
    return found if isinstance(found, Rejected) else None


def rejected(source: str, **changes: object) -> Rejected | None:
    return rejection(candidate(source, **changes))


def rule(source: str, **changes: object) -> str | None:
    found = rejected(source, **changes)
    return found.rule if found else None


@pytest.mark.parametrize(
    "text",
    [
        "#define CUDA_STD_HEADER(x) </etc/passwd>",
        "#undef CUDA_STD_HEADER",
        "  # define /* */ CUDA_STD_HEADER(x) <x>",
        "#def\\\nine CUDA_STD_\\\nHEADER(x) <x>",
        "%:define CUDA_STD_HEADER(x) <x>",
        "#define type_traits ../../secret",
        "#define __THRUST_HOST_SYSTEM_ALGORITH_DETAIL_HEADER_INCLUDE(x) <x>",
        "#define THRUST_MR_STD_MR_HEADER <x>",
    ],
)
def test_a_macro_that_names_files_in_headers_is_rejected(text: str) -> None:
    assert rule(text + "\n" + NAIVE) == "macro"


@pytest.mark.parametrize("flag", ["-DCUDA_STD_HEADER=x", "-Dtype_traits=secret", "-Dstd"])
def test_a_flag_that_names_files_in_headers_is_rejected(flag: str) -> None:
    assert rule(NAIVE, flags=(flag,)) == "macro"


@pytest.mark.parametrize(
    "text", ["#define TILE_M 128", "#define CUTLASS_ARCH_X 1", "#undef __CUDA_NO_HALF_CONVERSIONS__", "#define HEADERS 2"]
)
def test_other_macros_may_be_defined(text: str) -> None:
    assert rule(text + "\n" + NAIVE) is None


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '#include "../secrets.h"',
        '#include "cudal2/../../secrets.cuh"',
        "#include <cuda/../../secrets>",
        "#include <iostream>",
        "#include <cuda_runtime.h>",
        "#include MACRO",
        "#define X <cuda_fp16.h>\n#include X",
        "#include",
        "  #  include /**/ <fstream>",
        '#/**/include "/etc/passwd"',
        '/* */#/* */include "/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '#inc\\\r\nlude "/etc/passwd"',
        '#\\\n\\\ninclude "/etc/passwd"',
        '%:include "/etc/passwd"',
        '??=include "/etc/passwd"',
        '#include_next "x.h"',
        '#import "/etc/passwd"',
        '#embed "/etc/passwd"',
        'const char* s = R"(";\n/*)";\n#include "/etc/passwd"\n//*/',  # a reader that ignores raw strings sees a comment
        'const char* s = "/*";\n#include </etc/passwd>\nconst char* t = "*/";',
        '#if __has_include("/etc/passwd")\n#endif',
    ],
)
def test_reading_other_files_is_rejected(text: str) -> None:
    assert rule(text + NAIVE) == "include"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('#line 1 "/etc/passwd"', "directive"),
        ('# 1 "/etc/passwd"', "directive"),
        ('#pragma push_macro("x")', "directive"),
        ("#pragma GCC system_header", "directive"),
        ('_Pragma("push_macro(\\"x\\")")', "directive"),
        ("#define P(x) _Pragma(#x)", "directive"),
        ('#ident "x"', "directive"),
        ("int \\u0061;", "source-characters"),
        ("// \u202e reversed", "source-characters"),
        ("// zero \0 byte", "source-characters"),
        ("// old line end \r#include <x>", "source-characters"),
        ("// half a pair \ud800", "source-characters"),
        ("// form \f feed", "source-characters"),
        (" " * MAX_SOURCE_BYTES, "source-size"),
        ("__device__ int calls;", "device-state"),
        ("__device__ float cache[1024];", "device-state"),
        ("__device__ alignas(16) unsigned char cache[1024];", "device-state"),
        ("static __device__ int calls = 0;", "device-state"),
        ("__managed__ int calls;", "device-state"),
        ("template <int n> __device__ int calls = n;", "device-state"),
    ],
)
def test_text_that_hides_or_keeps_something_is_rejected(text: str, name: str) -> None:
    assert rule(text + NAIVE) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("long long t = clock64(); d[0] = t;", "device-clock"),
        ("d[0] = clock ();", "device-clock"),
        ('unsigned t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t));', "device-clock"),
        ('unsigned t; asm volatile("mov.u32 %0, %%glo" "baltimer_lo;" : "=r"(t));', "device-clock"),
        ('long long t; asm volatile("mov.u64 %0, %%gridid;" : "=l"(t));', "device-clock"),
        ('printf("%d", m);', "device-call"),
        ("void* p = malloc(8);", "device-call"),
        ("gemm<<<1, 1>>>(a, b, d, m, n, k);", "device-call"),
        ("cudaDeviceSynchronize();", "device-call"),
        ("__trap();", "device-trap"),
        ('asm volatile("trap;");', "device-trap"),
        ('asm volatile("brkpt ;");', "device-trap"),
        ('asm volatile(".global .u32 calls;");', "asm-declaration"),
        ('asm volatile("{\\n.global .u32 calls;}");', "asm-declaration"),
        ('asm volatile("}\\n.visible .entry other() {");', "asm-declaration"),
        ('asm volatile(R"(\n.extern .func vprintf;)");', "asm-declaration"),
        ('asm volatile(".include \\"/etc/passwd\\"");', "asm-declaration"),
    ],
)
def test_forbidden_device_code_is_rejected(text: str, name: str) -> None:
    assert rule(body(text)) == name


def test_a_rejection_names_the_line_of_the_original_text() -> None:
    found = rejected("// spliced \\\nhere\n\nint x; \\\n\n#include <iostream>\n" + NAIVE)
    assert found is not None
    assert (found.rule, found.line) == ("include", 6)


@pytest.mark.parametrize(
    "flag",
    ["-I/etc", "-include=/etc/passwd", "@/etc/passwd", "--options-file=x", "-Xptxas=-v", "--ptxas-options=-o=/x", "-o=/x",
     "-DX=<a>", "-DX=$(id)", "-DX=a b", "-DX=`id`", "-DX;id", "--maxrregcount=9999", "-std=c++98", "-pch", "",
     "-D", "kernel.cu"],
)  # fmt: skip
def test_flags_outside_the_list_are_rejected(flag: str) -> None:
    assert rule(NAIVE, flags=(flag,)) == "flag"


def test_known_flags_pass() -> None:
    flags = (
        "-DTILE=64",
        "-DNDEBUG",
        "--maxrregcount=128",
        "-use_fast_math",
        "-std=c++20",
        "--extra-device-vectorization",
        "-lineinfo",
    )
    assert rejected(NAIVE, flags=flags) is None


def test_too_many_flags_are_rejected() -> None:
    assert rule(NAIVE, flags=tuple(f"-DX{i}" for i in range(33))) == "flag"


@pytest.mark.parametrize(
    "text",
    [
        "#include <cudal2/mma.cuh>\n#include \"cudal2/cp_async.cuh\"\n#include <cuda/std/cstdint>\n#include <cute/tensor.hpp>",
        "#include <cstdint>\n#include <type_traits>\n#include <mma.h>\n#include <cooperative_groups/memcpy_async.h>",
        "#include <cub/block/block_reduce.cuh>\n#include <cub/warp/warp_scan.cuh>",
        "#pragma unroll 4\n#pragma once\n#define F(x) _Pragma(\"unroll\") x\n#ifdef A\n#elif B\n#else\n#endif\n#undef F\n#",
        "__device__ const float table[2] = {1, 2};\n__constant__ int c[4];\nconstexpr int kTile = 64;",
        "template <int n> __device__ __forceinline__ int twice(int x) { int y = 2 * x; return y; }",
        "struct S { __device__ S& operator=(const S& o) { return *this; } __device__ int operator[](int i) const; };",
        "__device__ __launch_bounds__(128, 1) void f(int x = 3);\n__device__ struct T { int x; } const t = {1};",
        'static_assert(sizeof(int) == 4, "the #1 reason for a trap is printf(clock64()) /* in here");',
        "// Überlauf: 50 % of 2×3 rows, clock64() and printf() in prose",
        "__device__ inline int free(int slots) { return slots; }  // a name, not the allocator",
        "__device__ int* mapped(int* p) { return p; }",
    ],
)  # fmt: skip
def test_innocent_sources_pass(text: str) -> None:
    assert rejected(text + NAIVE) is None


def test_memory_instructions_in_assembly_pass() -> None:
    local = "{.reg .pred p;\\n .reg .b32 r;\\n ld.global.u32 r, [%0]; st.global.u32 [%0], r;"
    text = f'asm volatile("{local} red.release.gpu.global.add.u32 [%0], 1;}}" :: "l"(d));'
    assert rejected(body(text)) is None


def test_a_plan_in_the_source_must_be_the_candidates_plan() -> None:
    assert rejected(render_plan(plan()) + NAIVE) is None
    assert rule(render_plan(plan(block=(128, 1, 1))) + NAIVE) == "plan-mismatch"
    assert rule("// cudal2: {\n" + NAIVE) == "plan-json"
    assert rule('// cudal2: {"arch": ' + "9" * 5000 + "}\n" + NAIVE) == "plan-json"
    assert rule((render_plan(plan()) * 2) + NAIVE) == "plan-missing"


def test_a_plan_must_resolve_for_the_task() -> None:
    assert rule(NAIVE, launch_plan=plan(block=(2048, 1, 1))) == "plan-block"
    assert rule(NAIVE, launch_plan=plan(dynamic_smem=10**6)) == "plan-smem-limit"
    f16 = GemmTask(m=8, n=8, k=8, accumulate=AccumulatorType.F16)
    found = rejection(candidate(NAIVE), f16)
    assert found is not None
    assert found.rule == "plan-accumulate"


def test_an_entry_must_be_in_the_source() -> None:
    assert rule(NAIVE, launch_plan=plan(entry="other")) == "entry-missing"
    assert rule(NAIVE.replace('extern "C"', "")) == "entry-missing"
    assert rule("// gemm\n" + NAIVE.replace("gemm", "other")) == "entry-missing"


def test_tensor_core_kernels_pass() -> None:
    assert rejected(tensor_core("f32")) is None


def test_a_host_candidate_may_include_the_systems_headers_only() -> None:
    assert rejection(host(HOST)) is None
    for text in ('#include "/etc/passwd"', '#include "../x.h"', "#include X", '#embed "x"'):
        found = rejection(host(text + HOST))
        assert found is not None
        assert found.rule == "include"


@pytest.mark.parametrize("folder", ["relative", "/no/such/folder", "/tmp; id", "/tmp$(id)"])
def test_include_folders_of_a_host_candidate_are_plain_paths(folder: str) -> None:
    found = rejection(host(HOST, include_dirs=(folder,)))
    assert found is not None
    assert found.rule == "include-dir"


def test_a_host_candidate_needs_its_entry() -> None:
    found = rejection(host(HOST.replace("launch(", "start(")))
    assert found is not None
    assert found.rule == "entry-missing"


@pytest.mark.parametrize(
    "unit",
    ["#/*", "/*", 'R"(', '"', "'a", " ", "\\\n", "__device__ alignas((", "#", "__clock", "_Pragma(", "#include \n", "%:"],
)
def test_the_check_takes_time_linear_in_the_source(unit: str) -> None:
    started = time.monotonic()
    check(candidate(unit * (200_000 // len(unit))), TASK, LIMIT, 132)
    assert time.monotonic() - started < 10


@given(st.text(alphabet="a1 \n\\\"'/*#R()<>%:;{}_?", max_size=200))
def test_any_text_gets_a_verdict_and_blanking_keeps_places(text: str) -> None:
    source = CppSource(text)
    assert len(source.code) == len(source.spliced)
    assert source.code.count("\n") == source.spliced.count("\n")
    rule(text)


@given(
    st.text(alphabet="a \n\\\"'/*R()", max_size=40), st.sampled_from(["#include", "#  include", "%:include", "#inc\\\nlude"])
)
def test_no_text_before_an_inclusion_hides_it(before: str, directive: str) -> None:
    name = rule(f'{before}\n{directive} "/etc/passwd"\n' + NAIVE)
    assert name in ("include", "plan-missing")


def test_a_record_with_a_lone_surrogate_still_has_an_id() -> None:
    assert Candidate(source="\ud800", plan=plan(), origin=ORIGIN).id
