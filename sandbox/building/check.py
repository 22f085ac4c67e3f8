"""The static check: rules that a candidate breaks in its text, before a compiler reads it.

Covered: what the preprocessor could read, anywhere in the text, with comments and line splices removed; compiler flags; the
launch plan; clocks, calls out of the kernel, traps and lasting state, as far as the text shows them.
Not covered: what macros assemble; `inspection.py` looks for the same things in the compiled code. A host candidate runs its
own code on the CPU, so its rules only catch mistakes; it is isolated, and marked where it is shown.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import ChipLimits
from cudal2_agent.contract.plan.plan import ResolvedPlan, parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, HostCandidate
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.sandbox.building.headers import NVRTC_HEADERS
from cudal2_agent.sandbox.building.source import CppSource

MAX_SOURCE_BYTES = 256 * 1024
MAX_FLAGS = 32

_HEADER_NAME = re.compile(r"<(?P<angled>[^<>\"]+)>|\"(?P<quoted>[^\"]+)\"")
_ALLOWED_HEADER = re.compile(
    r"cudal2/[\w/]+\.cuh"
    r"|cuda_(?:fp16|bf16|fp8|fp6|fp4|pipeline|pipeline_primitives|awbarrier|awbarrier_primitives)\.h|mma\.h"
    r"|math_constants\.h|vector_types\.h"
    r"|cooperative_groups(?:\.h|/[\w/]+\.h)"
    r"|cuda/[\w/]+|nv/target|cub/(?:block|warp)/\w+\.cuh"
    r"|(?:cute|cutlass)/[\w/]+\.(?:hpp|h|inl)",
    re.ASCII,
)
_CONDITIONALS = {"if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif"}
_DIRECTIVES = _CONDITIONALS | {"define", "undef", "error", "warning", "pragma", "include", ""}
_PRAGMA = re.compile(r"(?:unroll|nounroll|once|nv_diagnostic|nv_diag_\w+|diag_suppress|diag_default|hd_warning_disable)\b")
_PRAGMA_OPERATOR = re.compile(r"\b_Pragma\s*(?:\(\s*\"(?P<text>[^\"\n]*)\"\s*\))?")
_CONTROL = re.compile(r"[^\t\n\x20-\x7e\u00a0-\U0010ffff]|[\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# Macros that allowed headers expand into the names of files, and words of those names.
_FILE_MACRO = re.compile(
    r"\w+_HEADER|_*THRUST_\w+|CUDA_STD_\w+|cuda|cccl|std|nv|c?(?:assert|stddef|stdint)|limits|tuple|type_traits|utility"
)
_MACRO_NAME = re.compile(r"\w+")
_UNIVERSAL_NAME = re.compile(r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\N\{")

_FLAG = re.compile(
    r"-D[A-Za-z_]\w*(?:=[\w.+-]*)?"
    r"|--?maxrregcount=\d{1,3}"
    r"|--?use_fast_math|--?(?:ftz|prec-div|prec-sqrt|fmad)=(?:true|false)"
    r"|--?std=c\+\+(?:14|17|20)"
    r"|--?extra-device-vectorization"
    r"|-lineinfo|--generate-line-info"
    r"|--?restrict|-default-device|--device-as-default-execution-space"
    r"|--?diag-suppress=\d+(?:,\d+)*",
    re.ASCII,
)
_NVCC_FLAG = re.compile(r"--?expt-relaxed-constexpr|--?expt-extended-lambda|-O[0-3]", re.ASCII)
_HOST_FLAG = re.compile(r"-l(?:cuda|cudart|cublas|cublasLt)", re.ASCII)
_INCLUDE_DIR = re.compile(r"/[\w./+@-]*", re.ASCII)

# (rule, what is looked for, where, why it is not allowed)
_FORBIDDEN_CODE = (
    (
        "device-clock",
        re.compile(r"\b(?:clock|clock64|__clock\w*|__globaltimer\w*|__nvvm_read_ptx_sreg_(?:clock|globaltimer)\w*)\s*\("),
        "a kernel that can read the time can tell when it is being timed",
    ),
    (
        "device-call",
        re.compile(r"<<<|\b(?:v?printf|malloc|calloc|__assertfail|__nv_aligned_device_malloc|cuda[A-Z]\w*)\s*\("),
        "device code may not print, allocate or call the runtime",
    ),
    (
        "device-trap",
        re.compile(r"\b(?:__trap|__brkpt|__prof_trigger|__builtin_trap)\s*\("),
        "a kernel ends by returning; remove the trap",
    ),
)
_FORBIDDEN_ASM = (
    (
        "device-clock",
        re.compile(r"%(?:clock|globaltimer|gridid|pm\d|envreg)"),
        "clocks and launch counters tell a kernel when it is being timed",
    ),
    ("device-trap", re.compile(r"\b(?:trap|brkpt)\s*;|\bpmevent\b"), "a kernel ends by returning; remove the trap"),
    (
        "asm-declaration",
        re.compile(
            r"(?:^|[\s;{}]|\\[nt])\.(?:global|const|extern|visible|weak|common|entry|func|file|loc|section|include|incbin)\b"
        ),
        "inline assembly may hold instructions and local registers only",
    ),
)
_DEVICE_SPACE = re.compile(r"\b__(?:device|managed)__\b")
_LASTING = re.compile(r"\b(?:constexpr|const|__constant__|operator|using|typedef)\b")
_ATTRIBUTE = re.compile(r"\b(?:alignas|__align__|__launch_bounds__|__attribute__|decltype)\s*+\((?>[^()]|\([^()]*\))*+\)")
_DECLARATION_CHARS = 1000


@dataclass(frozen=True)
class Checked:
    """A candidate that breaks no rule. `plan`: its resolved launch plan; None for a host candidate."""

    plan: ResolvedPlan | None


def check(candidate: AnyCandidate, task: Task, limits: ChipLimits, sms: int) -> Checked | Rejected:
    """The first rule that a candidate breaks, else its resolved plan. Rules have stable kebab-case names."""
    if isinstance(candidate, HostCandidate):
        return next(_host_rules(candidate), Checked(plan=None))
    try:
        plan = resolve(candidate.plan, task, limits, sms)
    except PlanError as exc:
        refused = Rejected(rule=exc.rule, message=str(exc))
        return next(_rules(candidate, refused), refused)
    return next(_rules(candidate, None), Checked(plan=plan))


def _rules(candidate: Candidate, unresolved: Rejected | None) -> Iterator[Rejected]:
    """`unresolved`: why the plan does not resolve; earlier rules are reported first."""
    yield from _size(candidate.source)
    yield from _characters(candidate.source)
    source = _source(candidate)
    yield from _inclusions(source)
    yield from _directives(source)
    yield from _macros(source, candidate.flags)
    yield from _flags(candidate.flags, nvcc=candidate.compiler == "nvcc", host=False)
    yield from _plan_text(candidate)
    if unresolved is not None:
        yield unresolved
    yield from _forbidden(source)
    yield from _state(source)
    yield from _entries(candidate, source)


def _host_rules(candidate: HostCandidate) -> Iterator[Rejected]:
    yield from _size(candidate.source)
    yield from _characters(candidate.source)
    source = _source(candidate)
    for directive in source.file_directives:
        match = _HEADER_NAME.match(directive.rest)
        name = (match["angled"] or match["quoted"]) if match else None
        if directive.name != "include" or name is None or name.startswith("/") or ".." in name:
            yield _at(source, directive.position, "include", f"#{directive.name} {directive.rest[:80]} is not allowed")
    yield from _flags(candidate.flags, nvcc=True, host=True)
    for folder in candidate.include_dirs:
        if not _INCLUDE_DIR.fullmatch(folder) or not Path(folder).is_dir():
            yield Rejected(rule="include-dir", message=f"{folder!r} is not the absolute path of a folder in plain characters")
    if not re.search(r"\blaunch\s*\(", source.code):
        yield Rejected(rule="entry-missing", message='the source has no extern "C" int launch(...)')


def _source(candidate: AnyCandidate) -> CppSource:
    return CppSource(candidate.source.replace("\r\n", "\n"))


def _at(source: CppSource, position: int, rule: str, message: str) -> Rejected:
    return Rejected(rule=rule, message=message, line=source.line_of(position))


def _size(source: str) -> Iterator[Rejected]:
    size = len(source.encode(errors="replace"))
    if size > MAX_SOURCE_BYTES:
        yield Rejected(rule="source-size", message=f"the source has {size} bytes; at most {MAX_SOURCE_BYTES} are allowed")
    if not source.strip():
        yield Rejected(rule="source-size", message="the source is empty")


def _characters(source: str) -> Iterator[Rejected]:
    """Characters on which readers and compilers disagree: control characters, direction marks, escapes for identifiers."""
    found = _CONTROL.search(source.replace("\r\n", "\n")) or _UNIVERSAL_NAME.search(source)
    if found:
        line = source.count("\n", 0, found.start()) + 1
        yield Rejected(rule="source-characters", message=f"the character or escape {found[0]!r} is not allowed", line=line)


def _inclusions(source: CppSource) -> Iterator[Rejected]:
    for directive in source.file_directives:
        match = _HEADER_NAME.match(directive.rest)
        name = (match["angled"] or match["quoted"]) if match else ""
        if directive.name != "include":
            yield _at(source, directive.position, "include", f"#{directive.name} is not allowed")
        elif not name:
            yield _at(source, directive.position, "include", "#include must name its header literally")
        elif name not in NVRTC_HEADERS and not _ALLOWED_HEADER.fullmatch(name):
            why = (
                "allowed are cudal2/*.cuh, cuda_fp16.h, cuda_bf16.h, mma.h, cuda/*, cub/block/*, cub/warp/*, cute/*, "
                "cutlass/*, cooperative_groups"
            )
            yield _at(source, directive.position, "include", f"header {name[:80]!r} is not allowed; {why}")
    found = re.search(r"\b__has_(?:include|include_next|embed)\b", source.spliced)
    if found:
        yield _at(source, found.start(), "include", f"{found[0]} is not allowed")


def _directives(source: CppSource) -> Iterator[Rejected]:
    for directive in source.directives:
        if directive.name not in _DIRECTIVES or (not directive.name and directive.rest):
            yield _at(source, directive.position, "directive", f"#{directive.name} is not allowed")
        elif directive.name == "pragma" and not _PRAGMA.match(directive.rest):
            yield _at(source, directive.position, "directive", f"#pragma {directive.rest[:60]} is not allowed")
    for match in _PRAGMA_OPERATOR.finditer(source.spliced):
        if not _PRAGMA.match(match["text"] or ""):
            yield _at(source, match.start(), "directive", f"{match[0][:60]} is not allowed; write #pragma unroll")


def _macros(source: CppSource, flags: tuple[str, ...]) -> Iterator[Rejected]:
    """Definitions that change which files the allowed headers include. The compiler's jail keeps other files out."""
    for directive in source.directives:
        name = _MACRO_NAME.match(directive.rest) if directive.name in ("define", "undef") else None
        if name and _FILE_MACRO.fullmatch(name[0]):
            yield _at(source, directive.position, "macro", f"{name[0]} names files in the allowed headers; leave it as it is")
    for flag in flags:
        name = _MACRO_NAME.match(flag.removeprefix("-D")) if flag.startswith("-D") else None
        if name and _FILE_MACRO.fullmatch(name[0]):
            yield Rejected(rule="macro", message=f"{name[0]} names files in the allowed headers; leave it as it is")


def _flags(flags: tuple[str, ...], *, nvcc: bool, host: bool) -> Iterator[Rejected]:
    if len(flags) > MAX_FLAGS:
        yield Rejected(rule="flag", message=f"{len(flags)} flags; at most {MAX_FLAGS} are allowed")
    for flag in flags:
        allowed = _FLAG.fullmatch(flag) or nvcc and _NVCC_FLAG.fullmatch(flag) or host and _HOST_FLAG.fullmatch(flag)
        if not allowed:
            known = "-DNAME=VALUE, --maxrregcount=N, -use_fast_math, -std=c++17, --extra-device-vectorization, -lineinfo"
            yield Rejected(rule="flag", message=f"flag {flag[:80]!r} is not allowed; allowed are {known}")


def _plan_text(candidate: Candidate) -> Iterator[Rejected]:
    try:
        if re.search(r"(?://|/\*)\s*cudal2:\s*\{", candidate.source) and parse_plan(candidate.source) != candidate.plan:
            yield Rejected(rule="plan-mismatch", message="the plan in the source differs from the candidate's plan")
    except PlanError as exc:
        yield Rejected(rule=exc.rule, message=str(exc))


def _forbidden(source: CppSource) -> Iterator[Rejected]:
    for rule, pattern, why in _FORBIDDEN_CODE:
        found = pattern.search(source.code)
        if found:
            yield _at(source, found.start(), rule, f"{found[0].rstrip(' (')}: {why}")
    for rule, pattern, why in _FORBIDDEN_ASM:
        found = pattern.search(source.strings)
        if found:
            yield Rejected(rule=rule, message=f"{found[0].strip()}: {why}")


def _state(source: CppSource) -> Iterator[Rejected]:
    """Variables in device memory that outlive a launch: results could be kept in them."""
    for match in _DEVICE_SPACE.finditer(source.code):
        name = _variable(source.code, match)
        if name is not None:
            message = f"variable {name} outlives a launch; only const, constexpr and __constant__ may"
            yield _at(source, match.start(), "device-state", message)


def _variable(code: str, space: re.Match[str]) -> str | None:
    """Name of the mutable variable that a `__device__` declares; None where it belongs to a function, type or constant."""
    before = re.split(r"[;{}]", code[max(0, space.start() - _DECLARATION_CHARS) : space.start()])[-1]
    after = _ATTRIBUTE.sub(" ", code[space.end() : space.end() + _DECLARATION_CHARS])
    head, end, _ = re.split(r"([;{}=(\[])", after, maxsplit=1) if re.search(r"[;{}=(\[]", after) else (after, "", "")
    if end not in (";", "=", "[") or _LASTING.search(before) or _LASTING.search(head):
        return None
    if re.match(r"\s*(?:struct|class|enum|union)\b", head):
        return None
    words = re.findall(r"\w+", head)
    return words[-1] if words else None


def _entries(candidate: Candidate, source: CppSource) -> Iterator[Rejected]:
    for launch in candidate.plan.kernels:
        if not re.search(rf"\b{re.escape(launch.entry)}\b", source.code) or not re.search(r'\bextern\s*"C"', source.spliced):
            message = f'the plan launches {launch.entry}, which the source does not define as extern "C" __global__'
            yield Rejected(rule="entry-missing", message=message)
