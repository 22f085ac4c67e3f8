"""SASS: the hardware's instructions, through nvdisasm where it is installed."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.records.task import AccumulatorType
from cudal2_agent.sandbox.building.toolchain import find_nvdisasm
from cudal2_agent.sandbox.inspect.arithmetic import narrows_in_sass
from cudal2_agent.sandbox.workers.process import Limits, run

_LINE = re.compile(r"^(?:\s*/\*[0-9a-f]{4,}\*/\s+(?P<instruction>\S[^\n]*)|(?P<function>[$A-Za-z_][^\s:]*):\s*$)", re.MULTILINE)
_INSTRUCTION = re.compile(r"\{?\s*(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*[\w.]*)(?P<operands>.*)")
# How ptxas closes an empty group of wgmma: an instruction without operands whose result is discarded.
_EMPTY_GROUP = re.compile(r"\s+RZ, gdesc\[URZ\], RZ\b")
_SPECIAL = re.compile(r"\bSR(?:Z\b|_?\w+(?:\.[XYZ]\b)?)")
_READS_SPECIAL = frozenset({"S2R", "S2UR", "CS2R", "CS2UR"})
_BANK = re.compile(r"\bc\[0x0\]\[(?P<place>[^\]]*)\]")
_OFFSET = re.compile(r"(?P<register>U?R(?:\d+|Z)(?:\.\w+)*)?\s*\+?\s*(?P<offset>-?0x[0-9a-f]+)?")
_TENSOR_CORE = re.compile(r"(?:HMMA|HGMMA|IMMA|IGMMA|QMMA|QGMMA|OMMA|DMMA|BMMA|BGMMA|UTC\w*MMA)\b")
_HALF_TENSOR_CORE = re.compile(r"(?:HMMA|HGMMA|QMMA|QGMMA)\b")
# ptxas adds these to kernels that use tensor memory, and only they may stop a kernel.
_GUARD = re.compile(r"\$__internal_\d+_\$__cuda_sm10x_tcgen05_guardrail_trap_\w+")
_LIMITS = Limits(wall_s=60, cpu_s=60, memory_bytes=8 * 2**30, file_bytes=2**20, output_bytes=64 * 2**20)


class SassUnreadable(Exception):
    """nvdisasm was ended by a limit or died; the code cannot be judged."""


@dataclass(frozen=True)
class Sass:
    """Summary of one cubin. `opcodes` by first word, `mma` and `narrowing` by full name, `special_registers` by name.

    `constants`: (byte offset, whether a register is added to it) of each read of constant bank 0; an offset of None is
    unknown. `traps`: BPT outside the guards that ptxas adds. `unread`: lines that are not an instruction of a known form.
    """

    opcodes: dict[str, int]
    mma: tuple[str, ...]
    special_registers: tuple[str, ...]
    constants: tuple[tuple[int | None, bool], ...] = ()
    traps: int = 0
    unread: tuple[str, ...] = ()
    narrowing: tuple[str, ...] = ()


def disassembler() -> str:
    """What identifies the nvdisasm that is used, for keys of its output; empty without one."""
    path = find_nvdisasm()
    if path is None:
        return ""
    state = Path(path).stat()
    return f"{path} {state.st_size} {state.st_mtime_ns}"


def disassemble(cubin: Path) -> Sass | None:
    """The SASS of a cubin; None without nvdisasm, or where it reports that it cannot read the file.

    Raises: SassUnreadable, WorkerError.
    """
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        ended = run([nvdisasm, "-c", "-ndf", str(cubin.resolve())], scratch=Path(scratch), limits=_LIMITS)
    full = len(ended.stdout) >= (_LIMITS.output_bytes)
    if ended.ended_by != "itself" or ended.returncode < 0 or full:
        raise SassUnreadable("nvdisasm did not end within its limits of 60 s, 8 GiB and 64 MiB of text")
    return parse(ended.stdout.decode(errors="replace")) if ended.returncode == 0 else None


def parse(text: str) -> Sass:
    """The content of nvdisasm's listing."""
    opcodes: Counter[str] = Counter()
    specials: set[str] = set()
    constants: set[tuple[int | None, bool]] = set()
    unread: list[str] = []
    function, traps = "", 0
    for line in _LINE.finditer(text):
        if line["function"]:
            function = line["function"]
            continue
        match = _INSTRUCTION.match(line["instruction"])
        if match is None:
            unread.append(line["instruction"][:80])
        elif not _EMPTY_GROUP.match(match["operands"]):
            word = match["opcode"].partition(".")[0]
            opcodes[match["opcode"]] += 1
            traps += word == "BPT" and not _GUARD.fullmatch(function)
            specials.update(_specials(word, match["operands"]))
            constants.update(_constants(match["operands"]))
    return Sass(
        opcodes=_by_word(opcodes),
        mma=tuple(sorted(opcode for opcode in opcodes if _TENSOR_CORE.match(opcode))),
        special_registers=tuple(sorted(specials)),
        constants=tuple(sorted(constants, key=str)),
        traps=traps,
        unread=tuple(unread[:1]),
        narrowing=tuple(sorted(opcode for opcode in opcodes if narrows_in_sass(opcode))),
    )


def accumulators(mma: str) -> set[AccumulatorType]:
    """Accumulator type of one tensor-core opcode such as HMMA.16816.F32.BF16, which names it first."""
    if not _HALF_TENSOR_CORE.match(mma):
        return set()
    types = [part for part in mma.split(".") if part in ("F32", "F16")]
    return {AccumulatorType(types[0].lower())} if types else set()


def _by_word(opcodes: Counter[str]) -> dict[str, int]:
    words: Counter[str] = Counter()
    for opcode, count in opcodes.items():
        words[opcode.partition(".")[0]] += count
    return dict(sorted(words.items()))


def _specials(word: str, operands: str) -> Iterator[str]:
    """Special registers by name, in every instruction that reads them."""
    names = _SPECIAL.findall(operands)
    yield from names
    if word in _READS_SPECIAL and not names:
        yield operands.strip(" ;")[:40]


def _constants(operands: str) -> Iterator[tuple[int | None, bool]]:
    for bank in _BANK.finditer(operands):
        match = _OFFSET.fullmatch(bank["place"].strip())
        if match is None or not (match["register"] or match["offset"]):
            yield None, False
        else:
            yield int(match["offset"] or "0", 16), not (match["register"] or "RZ").lstrip("U").startswith("RZ")
