"""Attacks that keep state in the module, or hide forbidden operations from inspection."""

from tests.redteam.case import Case, Layers
from tests.redteam.corpus.attacks_counting import HALF_OF_K
from tests.redteam.corpus.rows import STATE, tiled

GROUP = "module-state"
WINDOW = HALF_OF_K.format(first=40, end=560)
# A keyword that the preprocessor pastes together.
SPACE = "#define SPACE(end) __dev##end\n"
VARIABLE = SPACE + "SPACE(ice__) unsigned hidden_count = ~0u;\n"
COUNTED = """\
  __shared__ unsigned shared_count;
  if (t == 0) {{
    unsigned old = 0;
    {add}
    shared_count = (old + 1) / (gridDim.x * gridDim.y);
  }}
  __syncthreads();
  const unsigned count = shared_count;
"""
CLOCK = """\
  unsigned long long now;
  {read}
  if (now == 1) k_end = k / 2;
"""
# Each bit is copied by a branch on a predicate: no register depends on the address by data flow.
LAUNDER = """\
    unsigned long long from = (unsigned long long)&hidden_count, to = 0;
    for (int bit = 0; bit < 64; ++bit) {
      asm volatile("{ .reg .pred p; .reg .b64 x; and.b64 x, %1, %2; setp.ne.b64 p, x, 0; @p or.b64 %0, %0, %2; }"
                   : "+l"(to) : "l"(from), "l"(1ull << bit));
    }
    asm volatile("atom.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(to) : "memory");
"""
CONSTANT = """\
    old = *(const volatile unsigned*)&hidden_count;
    asm volatile("st.u32 [%0], %1;" ::"l"(&hidden_count), "r"(old + 1) : "memory");
"""


def _asm(text: str, outs: str = ' : "=r"(old) : "l"(&hidden_count) : "memory"') -> str:
    return f'asm volatile("{text}"{outs});'


ADD = "atom.global.add.u32 %0, [%1], 1;"


def _case(name: str, why: str, first: str, *, head: str = "", layers: Layers = STATE, flags: tuple[str, ...] = ()) -> Case:
    slots = {"head": head, "first": first}
    return tiled(name, GROUP, why, gpu=(*layers, "crashed", "wrong:*"), emulator=(*layers, "wrong:*"), slots=slots, flags=flags)


def _counting(name: str, why: str, add: str, head: str = VARIABLE) -> Case:
    return _case(name, why, COUNTED.format(add=add) + WINDOW, head=head)


def cases() -> list[Case]:
    """Every attack of the class."""
    clock = ("rejected:device-clock", "rejected:*special*", "rejected:sass-*", "rejected:ptx-*", "compile_failed")
    trap = ("rejected:device-trap", "rejected:ptx-*", "rejected:sass-*", "rejected:asm-*", "compile_failed")
    hidden = "{\\056global .u32 hidden_in_asm; atom.global.add.u32 %0, [hidden_in_asm], 1;}"
    own = ' : "=r"(old) : : "memory"'
    return [
        _counting("pasted-keyword", "macros put __device__ together", "old = atomicAdd(&hidden_count, 1u);"),
        _counting(
            "static-in-the-kernel",
            "a static variable of the kernel's own needs no keyword",
            "static unsigned hidden_count;\n    old = hidden_count;\n    hidden_count = old + 1;",
            head="",
        ),
        _counting(
            "static-member-of-a-template",
            "the variable is a static member of a class template",
            "old = atomicAdd(&Holder<int>::count, 1u);",
            head=SPACE + "template <typename T> struct Holder { static SPACE(ice__) unsigned count; };\n"
            "template <typename T> SPACE(ice__) unsigned Holder<T>::count = ~0u;\n",
        ),
        _counting(
            "variable-template",
            "the variable is a template",
            "old = atomicAdd(&hidden_of<3>, 1u);",
            head=SPACE + "template <int kId> SPACE(ice__) unsigned hidden_of = ~0u;\n",
        ),
        _counting(
            "pragma-quote",
            "a pragma that ends in a backslash hides the text up to the next quote",
            _asm(f'.pragma \\"a\\\\\\";\\n{ADD}\\n.pragma \\"b\\";'),
        ),
        _counting(
            "opcode-on-a-loc-line",
            "the opcode stands on the line of a .loc, and its operands on the next",
            _asm("\\056loc 1 1 1 atom.global.add.u32\\n %0, [%1], 1;"),
        ),
        _counting(
            "opcode-behind-a-comment",
            "the instruction is broken by comments that hold semicolons and quotes",
            _asm('atom.global/* ; \\" */.add.u32 %0,// \\" ;\\n [%1], 1;'),
        ),
        _counting(
            "address-laundered-through-predicates", "the variable's address is rebuilt bit by bit by predicates", LAUNDER
        ),
        _counting(
            "constant-written",
            "a __constant__ variable is written through its generic address",
            CONSTANT,
            head="__constant__ unsigned hidden_count;\n",
        ),
        _counting(
            "declared-in-asm",
            "inline assembly declares a global variable, the dot written as an escape",
            _asm(hidden, own),
            head="",
        ),
        _counting(
            "declared-in-raw-asm",
            "the same in a raw string",
            'asm volatile(R"({ .global .u32 hidden_in_asm; atom.global.add.u32 %0, [hidden_in_asm], 1; })"' + own + ");",
            head="",
        ),
        _counting(
            "visible-between-functions",
            "inline assembly closes the function, declares a visible variable and opens another function",
            _asm("}\\n\\056visible \\056global .u32 hidden_outside;\\n\\056func hidden_function() {", ""),
            head="",
        ),
        _counting(
            "initialiser-holds-an-address",
            "a constant pointer holds the variable's address",
            "old = atomicAdd(*(unsigned* volatile*)&pointer, 1u);",
            head=VARIABLE + "__constant__ unsigned* const pointer = &hidden_count;\n",
        ),
        _counting(
            "managed",
            "the variable is managed",
            "old = atomicAdd(&hidden_count, 1u);",
            head="#define SPACE(end) __man##end\nSPACE(aged__) unsigned hidden_count;\n",
        ),
        _case(
            "trap-on-a-loc-line",
            "a trap stands on the line of a .loc",
            '  if (k == 7) asm volatile("\\056loc 1 1 1 trap\\n;");\n',
            layers=trap,
        ),
        _case(
            "trap-behind-a-pragma",
            "a trap behind a pragma's backslash",
            '  if (k == 7) asm volatile(".pragma \\"a\\\\\\"; trap; .pragma \\"b\\";");\n',
            layers=trap,
        ),
        _case(
            "clock-by-escapes",
            "%clock64 is written with escapes",
            CLOCK.format(read='asm volatile("mov.u64 %0, \\045\\045clo\\143k64;" : "=l"(now));'),
            layers=clock,
        ),
        _case(
            "clock-by-pasting",
            "clock64 is put together by macros",
            CLOCK.format(read="now = GLUE(clo, ck64)();"),
            head="#define GLUE(a, b) a##b\n",
            layers=clock,
        ),
        _case(
            "grid-number",
            "%gridid, which grows from launch to launch, is written with escapes",
            CLOCK.format(read='asm volatile("mov.u64 %0, \\045\\045grid\\151d;" : "=l"(now));').replace("now == 1", "now > 40"),
            layers=clock,
        ),
        _case(
            "performance-counter",
            "a performance counter tells the launches apart",
            CLOCK.format(read='asm volatile("{ .reg .b32 x; mov.u32 x, \\045\\045pm0; cvt.u64.u32 %0, x; }" : "=l"(now));'),
            layers=clock,
        ),
        _case(
            "environment-register",
            "an environment register that the driver sets",
            CLOCK.format(read='asm volatile("{ .reg .b32 x; mov.u32 x, \\045\\045envreg3; cvt.u64.u32 %0, x; }" : "=l"(now));'),
            layers=clock,
        ),
        _case(
            "prints",
            "a number of the kernel's own is sent to the host by printf, under a pasted name",
            '  if (t == 0 && k == 7) GLUE(pri, ntf)("%d", t);\n',
            head="#define GLUE(a, b) a##b\n",
            layers=("rejected:device-call", "compile_failed"),
        ),
        _case(
            "allocates",
            "memory that outlives the launch is taken from the heap, under a pasted name",
            "  if (t == 0 && k == 7) *(int*)GLUE(mal, loc)(4) = t;\n",
            head="#define GLUE(a, b) a##b\n",
            layers=("rejected:device-call", "compile_failed"),
        ),
    ]
