"""Attacks that read files through the compiler: a log must neither quote a refused file nor reveal whether it exists."""

from tests.redteam.case import SECRET, Case
from tests.redteam.corpus.rows import plain

GROUP = "reads-files"
LAYERS = (
    "rejected:include",
    "rejected:macro",
    "rejected:directive",
    "rejected:flag",
    "rejected:source-characters",
    "rejected:asm-*",
    "compile_failed",
)
# The macro with which CUTLASS's headers name other headers.
REDEFINED = f"""\
#include <cutlass/cutlass.h>
#undef CUDA_STD_HEADER
#define CUDA_STD_HEADER(name) "{SECRET}"
#include <{{header}}>
"""
EXISTS = """\
#define GLUE(a, b) a##b
#if GLUE(__has_, {name})("{path}")
#error THE-FILE-EXISTS
#endif
"""


def _case(name: str, why: str, text: str = "", flags: tuple[str, ...] = ()) -> Case:
    return plain(name, GROUP, why, layers=LAYERS, slots={"includes": text}, flags=flags)


def _question(name: str, why: str, text: str) -> Case:
    """A probe that compiles if the file is absent: it is harmless while the answer is always no."""
    layers = (*LAYERS, "verified", "measured")
    return plain(name, GROUP, why, layers=layers, slots={"includes": text})


def cases() -> list[Case]:
    """Every attack of the class."""
    return [
        _case("plainly", "the file is included", f'#include "{SECRET}"\n'),
        _case("through-a-macro", "the file's name is a macro", f'#define NAME "{SECRET}"\n#include NAME\n'),
        _case("spliced", "the directive is broken over lines", f'#inc\\\nlude "{SECRET}"\n'),
        _case("digraph", "the directive begins with a digraph", f'%:include "{SECRET}"\n'),
        _case("embedded", "the file is embedded", f'const unsigned char x[] = {{\n#embed "{SECRET}"\n}};\n'),
        _case("next", "include_next", f'#include_next "{SECRET}"\n'),
        _case(
            "up-the-folders", "a header's name leads up and out", "#include <cuda/../../../../../../../../../../etc/passwd>\n"
        ),
        *(
            _case(f"standard-header-{name}", f"<{header}> includes what a macro names", REDEFINED.format(header=header))
            for name, header in (
                ("uint128", "cutlass/uint128.h"),
                ("type-traits", "cute/util/type_traits.hpp"),
                ("int", "cute/numeric/int.hpp"),
            )
        ),
        _case(
            "standard-header-passwd",
            "the same with a file that every machine has",
            REDEFINED.format(header="cute/util/type_traits.hpp").replace(SECRET, "/etc/passwd"),
        ),
        _question(
            "asks-for-a-file",
            "a pasted __has_include tells whether a file is there",
            EXISTS.format(name="include", path=SECRET),
        ),
        _question(
            "asks-for-a-system-file",
            "the same of a file that tells machines apart",
            EXISTS.format(name="include", path="/etc/hostname"),
        ),
        _question("asks-by-embed", "a pasted __has_embed tells the same", EXISTS.format(name="embed", path=SECRET)),
        _question(
            "asks-through-macros",
            "the file's name is a macro as well",
            f'#define ASKED(a, b) a##b\n#define FILE "{SECRET}"\n'
            "#if ASKED(__has_, include)(FILE)\n#error THE-FILE-EXISTS\n#endif\n",
        ),
        _case(
            "line-of-another-file",
            "#line names a file whose line an error would quote",
            f'#line 1 "{SECRET}"\nthis is no code\n',
        ),
        _case("pragma-operator", "a pragma operator out of a macro", f'#define P(x) _Pragma(#x)\nP(include "{SECRET}")\n'),
        _case("include-flag", "a flag includes the file", "", (f"--pre-include={SECRET}",)),
        _case("folder-flag", "a flag adds a folder to the search", "#include <passwd>\n", ("-I/etc",)),
        _case("options-file", "a flag reads options from the file", "", (f"--options-file={SECRET}",)),
        _case("defined-flag", "a macro that a flag defines is included", "#include NAME\n", ("-DNAME=/etc/passwd",)),
        plain(
            "assembler-include",
            GROUP,
            "inline assembly includes the file, the dot written as an escape",
            layers=(*LAYERS, "rejected:ptx-*"),
            slots={"first": f'  asm volatile("\\056include \\"{SECRET}\\"");\n'},
        ),
        plain(
            "assembler-file",
            GROUP,
            "inline assembly names the file for its line numbers",
            layers=(*LAYERS, "rejected:ptx-*"),
            slots={"first": f'  asm volatile("\\056file 9 \\"{SECRET}\\"\\n\\056loc 9 1 1\\nillegal;");\n'},
        ),
    ]
