"""Attacks on inspection, really compiled: each hides one operation, and the named rule refuses it."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.inspect import sass
from cudal2_agent.sandbox.inspect.inspection import inspect
from tests.sandbox.building.build_kernels import TASK, body, candidate

STATE = "__device__ int state;\n"
TABLE = "__device__ const int table[4] = {1, 2, 3, 4};\n"
CONSTANT = "__constant__ int kept[4] = {1, 2, 3, 4};\n"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache"))))


def rule(compiler: Compiler, source: str, task: GemmTask = TASK) -> str | None:
    """The rule with which inspection refuses a source; the static check is skipped."""
    wanted = candidate(source)
    compiled = compiler.compile(wanted, task.arch)
    assert isinstance(compiled, Compiled), compiled
    launches = resolve(wanted.plan, task, LIMITS[task.arch], 132)
    found = inspect(compiled, wanted, launches, task, LIMITS[task.arch])
    return found.rule if isinstance(found, Rejected) else None


def asm(text: str, before: str = "") -> str:
    """A kernel with this PTX; %0 is a 32-bit result, %1 a 64-bit one, %2 the output's address."""
    code = f'unsigned r = 0; long long x = 0; asm volatile("{text}" : "+r"(r), "+l"(x) : "l"(d) : "memory"); d[0] = r + x;'
    return body(code, before)


HIDDEN = {
    "a pragma whose backslash is no escape": ('.pragma \\"a\\\\\\"; trap; .pragma \\"b\\";', "", "device-trap"),
    "an opcode on a .loc line": (".loc 1 1 0 trap;", "", "device-trap"),
    "a breakpoint on a .loc line": (".loc 1 1 0 brkpt;", "", "device-trap"),
    "an opcode behind a comment": ("/* */ trap;", "", "device-trap"),
    "an opcode between comments that do not nest": ("/* /* */ trap; /* */", "", "device-trap"),
    "a quote in a comment": ('/* \\" */ trap; /* \\" */', "", "device-trap"),
    "a comment in a string": ('.pragma \\"/*\\"; trap; .pragma \\"*/\\";', "", "device-trap"),
    "a carriage return in a comment": ("// \\r /* \\n trap; // \\r */ \\n", "", "device-trap"),
    "a label before it": ("$here: trap;", "", "device-trap"),
    "a counter of the profiler": ("pmevent 1;", "", "device-trap"),
    "the handle of the running graph": ("mov.u64 %1, %%current_graph_exec;", "", "device-clock"),
    "the launch counter": ("mov.u64 %1, %%gridid;", "", "device-clock"),
    "the upper half of the clock": ("mov.u32 %0, %%clock_hi;", "", "device-clock"),
    "a timer of the whole chip": ("mov.u64 %1, %%globaltimer;", "", "device-clock"),
    "a performance counter": ("mov.u32 %0, %%pm3;", "", "special-register"),
    "an environment register": ("mov.u32 %0, %%envreg7;", "", "special-register"),
    "a string that goes on in the next line": ('.pragma \\"a\\n\\"; trap;', "", "ptx-unreadable"),
    "the launch counter beside the parameters": (
        "{.reg .b64 p; mov.b64 p, gemm_param_0; add.s64 p, p, -304; ld.param.u32 %0, [p];}",
        "",
        "launch-data",
    ),
    "the launch counter at a constant offset": ("ld.param.u32 %0, [gemm_param_0+-304];", "", "launch-data"),
    "the launch counter at a computed place": (
        "{.reg .b64 p; mov.b64 p, gemm_param_0; add.s64 p, p, %1; ld.param.u32 %0, [p];}",
        "",
        "launch-data",
    ),
    "the launch counter through the generic window": (
        "{.reg .b64 p; mov.b64 p, gemm_param_0; cvta.param.u64 p, p; ld.u32 %0, [p+-304];}",
        "",
        "launch-data",
    ),
    "a parameter that is written": (
        "{.reg .b64 p; mov.b64 p, gemm_param_0; cvta.param.u64 p, p; st.u32 [p], 7;}",
        "",
        "launch-data",
    ),
    "a parameter's window made from a number": (
        "{.reg .b64 p; mov.b64 p, 0; cvta.param.u64 p, p; st.u32 [p], 7;}",
        "",
        "launch-data",
    ),
    "a constant that is written": (
        "{.reg .b64 p; mov.u64 p, kept; cvta.const.u64 p, p; st.u32 [p], 7; ld.const.u32 %0, [kept];}",
        CONSTANT,
        "device-state",
    ),
    "the window of constants made from a number": (
        "{.reg .b64 p; mov.b64 p, 0; cvta.const.u64 p, p; st.u32 [p], 7;}",
        "",
        "device-state",
    ),
    "an address through comparisons with numbers": (
        "{.reg .b64 p; .reg .pred q; mov.u64 p, table; setp.gt.u64 q, p, %1; selp.u32 %0, 1, 0, q;}",
        TABLE,
        "device-state",
    ),
    "an address through a comparison of its halves": (
        "{.reg .b64 p; .reg .b32 a, b; mov.u64 p, table; mov.b64 {a, b}, p; mov.u32 %0, a;}",
        TABLE,
        "device-state",
    ),
    "an address through a mask": ("{.reg .b64 p; mov.u64 p, table; and.b64 %1, p, 255;}", TABLE, "device-state"),
    "an address through a conversion": ("{.reg .b64 p; mov.u64 p, table; cvt.u32.u64 %0, p;}", TABLE, "device-state"),
    "an address through a shuffle": (
        "{.reg .b64 p; .reg .b32 a; mov.u64 p, table; cvt.u32.u64 a, p; shfl.sync.idx.b32 %0, a, 0, 31, -1;}",
        TABLE,
        "device-state",
    ),
    "an address taken away from a number": ("{.reg .b64 p; mov.u64 p, table; sub.s64 %1, 0, p;}", TABLE, "device-state"),
    "an address that is multiplied": ("{.reg .b64 p; mov.u64 p, table; mul.lo.s64 %1, p, 1;}", TABLE, "device-state"),
    "an address that is stored": ("{.reg .b64 p; mov.u64 p, table; st.global.u64 [%2], p;}", TABLE, "device-state"),
    "an address kept in local memory": (
        "{.local .b64 l; .reg .b64 p; mov.u64 p, table; st.local.b64 [l], p; ld.local.b64 %1, [l];}",
        TABLE,
        "device-state",
    ),
    "an address that mixes with a pointer and is compared": (
        "{.reg .b64 p, t; .reg .pred q; setp.eq.u32 q, %0, 0; mov.u64 t, table; mov.u64 p, %2; @q mov.u64 p, t;"
        " setp.eq.u64 q, p, t; selp.u32 %0, 1, 0, q;}",
        TABLE,
        "device-state",
    ),
    "a bulk reduction into a variable": ("red.global.add.u32 [state], 1;", STATE, "device-state"),
    "a variable declared inside a function": (
        "{.global .u32 calls; atom.global.add.u32 %0, [calls], 1;}",
        "",
        "device-state",
    ),
    "a constant declared inside a function": ("{.const .u32 c = 5; ld.const.u32 %0, [c];}", "", "device-state"),
    "a texture that nobody gave": (
        "{.reg .f32 a, b, c, e; tex.1d.v4.f32.s32 {a, b, c, e}, [%1, {%0}]; st.global.f32 [%2], a;}",
        "",
        "opcode",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_inline_assembly_hides_is_seen(compiler: Compiler, name: str) -> None:
    text, before, expected = HIDDEN[name]
    assert rule(compiler, asm(text, before)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (body("d[0] = *where;", STATE + "__device__ int* const where = &state;"), "device-state"),
        (body("d[0] = m ? man++ : 0;", "__device__ __managed__ int man;"), "ptx-unreadable"),
        (body('if (m == 7) asm volatile("trap;"); d[0] = 1;'), "device-trap"),
        (body("d[0] = clock64();"), "device-clock"),
        (body("free(malloc(m)); d[0] = 1;"), "device-call"),
    ],
)
def test_what_the_language_offers_is_refused(compiler: Compiler, source: str, expected: str) -> None:
    assert rule(compiler, source) == expected


@pytest.mark.parametrize("offset", [{Arch.SM_80: -304, Arch.SM_90A: -480, Arch.SM_100A: -576}])
@pytest.mark.parametrize("arch", [Arch.SM_80, Arch.SM_90A, Arch.SM_100A])
def test_machine_code_alone_shows_a_read_beside_the_parameters(
    compiler: Compiler, arch: Arch, offset: dict[Arch, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without findings in the PTX: the second layer refuses by itself."""
    monkeypatch.setattr("cudal2_agent.sandbox.inspect.facts.misuses", lambda _module: iter(()))
    task = GemmTask(m=128, n=128, k=64, arch=arch)
    assert rule(compiler, asm(f"ld.param.u32 %0, [gemm_param_0+{offset[arch]}];"), task) == "launch-data"


@pytest.mark.parametrize("name", ["clock_hi", "gridid", "pm3", "envreg7"])
def test_machine_code_alone_shows_special_registers(compiler: Compiler, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.inspect.code.Code.special_registers", ())
    assert rule(compiler, asm(f"{{.reg .b32 c; mov.u32 c, %%{name}; mov.u32 %0, c;}}")) is not None


def test_a_disassembler_that_does_not_end_proves_nothing(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended_by_a_limit(_cubin: Path) -> None:
        raise sass.SassUnreadable("nvdisasm did not end")

    monkeypatch.setattr(sass, "disassemble", ended_by_a_limit)
    assert rule(compiler, body("d[0] = 1;")) == "sass-unreadable"


HONEST = {
    "a stride by the number of SMs": ('unsigned s, n_; asm("mov.u32 %0, %%smid; mov.u32 %1, %%nsmid;" : "=r"(s), "=r"(n_));'
                                      "for (int i = s; i < m; i += n_) d[i] = 1;", ""),
    "lane masks": ('unsigned s; asm("mov.u32 %0, %%lanemask_lt;" : "=r"(s)); d[s & 1] = __popc(s);', ""),
    "a loop over a table by its addresses": (
        "float s = 0; for (const int* p = table; p != table + 4; ++p) s += *p * m; d[0] = s;", TABLE),
    "a choice between two tables": ("const int* p = m > 3 ? table : kept; d[0] = p[n & 3];", TABLE + CONSTANT),
    "a choice between a table and an input": ("const int* p = m > 3 ? table : (const int*)a; d[0] = p[n & 3];", TABLE),
    "a table of zeros": ("d[0] = zeros[n & 3];", "__device__ const int zeros[4] = {};"),
    "trigonometry's own tables": ("d[0] = sinf(n) + cosf(m) + (float)sin((double)m);", ""),
    "a table copied into shared memory": (
        "__shared__ int s[4]; asm volatile(\"cp.async.ca.shared.global [%0], [%1], 16;\""
        " :: \"r\"((unsigned)__cvta_generic_to_shared(s)), \"l\"(table)); asm volatile(\"cp.async.wait_all;\");"
        " __syncthreads(); d[0] = s[n & 3];", TABLE),
    "vector registers and components": (
        'asm volatile("{.reg .v4 .f32 v; ld.global.v4.f32 v, [%0]; st.global.f32 [%1], v.y;}" :: "l"(a), "l"(d));', ""),
    "a recursive function": (
        "d[0] = f(m);", "__device__ __noinline__ int f(int x) { return x < 2 ? x : f(x - 1) + f(x - 2); }"),
    "a call through a pointer": (
        "int (*p)(int) = m > 3 ? f : g; d[0] = p(n);",
        "__device__ __noinline__ int f(int x) { return x * 3; }\n__device__ __noinline__ int g(int x) { return x / 3; }"),
    "cooperative groups": (
        "auto w = cg::tiled_partition<32>(cg::this_thread_block()); d[w.thread_rank()] = cg::reduce(w, m, cg::plus<int>());",
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;"),
}  # fmt: skip


@pytest.mark.parametrize("arch", [Arch.SM_80, Arch.SM_90A, Arch.SM_100A])
@pytest.mark.parametrize("name", HONEST)
def test_unusual_but_honest_kernels_pass(compiler: Compiler, name: str, arch: Arch) -> None:
    text, before = HONEST[name]
    assert rule(compiler, body(text, before), GemmTask(m=128, n=128, k=64, arch=arch)) is None
