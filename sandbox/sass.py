"""SASS: what the hardware will run, through nvdisasm where there is one."""

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from contract.task import AccumulatorType
from sandbox.process import Limits, run
from sandbox.toolchain import find_nvdisasm

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*[\w.]*)(?P<operands>.*)",
    re.MULTILINE,
)
# How ptxas closes a group of wgmma that holds none: a product of nothing whose result goes nowhere.
_EMPTY_GROUP = re.compile(r"\s+RZ, gdesc\[URZ\], RZ\b")
_CLOCK = re.compile(r"\bSR_(?:CLOCK\w*|GLOBALTIMER\w*|GRIDID|PM\d\w*)")
_TENSOR_CORE = re.compile(r"(?:HMMA|HGMMA|IMMA|IGMMA|QMMA|QGMMA|OMMA|DMMA|BMMA|BGMMA|UTC\w*MMA)\b")
_HALF_TENSOR_CORE = re.compile(r"(?:HMMA|HGMMA|QMMA|QGMMA)\b")
_LIMITS = Limits(wall_s=60, cpu_s=60, memory_bytes=8 * 2**30, file_bytes=2**20, output_bytes=64 * 2**20)


@dataclass(frozen=True)
class Sass:
    """One cubin in short. `opcodes` by first word, `mma` by full name, `clocks`: registers that tell the time."""

    opcodes: dict[str, int]
    mma: tuple[str, ...]
    clocks: tuple[str, ...]


def disassemble(cubin: Path) -> Sass | None:
    """The SASS of a cubin; None without nvdisasm, or where it cannot read the file. Raises: WorkerError."""
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        ended = run([nvdisasm, "-c", "-ndf", str(cubin.resolve())], scratch=Path(scratch), limits=_LIMITS)
    return parse(ended.stdout.decode(errors="replace")) if ended.returncode == 0 else None


def parse(text: str) -> Sass:
    """Counts from nvdisasm's listing."""
    instructions = (match for match in _INSTRUCTION.finditer(text) if not _EMPTY_GROUP.match(match["operands"]))
    opcodes = Counter(match["opcode"] for match in instructions)
    by_word: Counter[str] = Counter()
    for opcode, count in opcodes.items():
        by_word[opcode.partition(".")[0]] += count
    return Sass(
        opcodes=dict(sorted(by_word.items())),
        mma=tuple(sorted(opcode for opcode in opcodes if _TENSOR_CORE.match(opcode))),
        clocks=tuple(sorted(set(_CLOCK.findall(text)))),
    )


def accumulators(mma: str) -> set[AccumulatorType]:
    """Accumulator type of one tensor-core opcode such as HMMA.16816.F32.BF16, which names it first."""
    if not _HALF_TENSOR_CORE.match(mma):
        return set()
    types = [part for part in mma.split(".") if part in ("F32", "F16")]
    return {AccumulatorType(types[0].lower())} if types else set()
