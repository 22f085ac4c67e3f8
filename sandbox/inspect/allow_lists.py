"""The allow-lists of compiled code: first words of SASS instructions, special registers, words of constant bank 0.

What is in none of them is refused. sm_80 to sm_100.
"""

import re
from dataclasses import dataclass
from itertools import product

from cudal2_agent.contract.records.task import Arch

# First words of SASS instructions that a kernel may contain, sm_80 to sm_100. All others are refused.
#
# Source: the instruction tables of NVIDIA's "CUDA Binary Utilities" for Ampere, Ada, Hopper and Blackwell, and the code that
# ptxas 13.0 generates for the project's kernels, for CUTLASS's examples and for each PTX instruction.

# (opcodes, why a kernel may use them)
ALLOWED = (
    (
        "FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FMNMX FMNMX3 FMUL FMUL2 FMUL32I FSEL FSET FSETP FSWZADD MUFU FHADD FHFMA",
        "arithmetic in f32",
    ),
    ("HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2 VHMNMX", "arithmetic in f16 and bf16"),
    ("DADD DFMA DMUL DSETP DMMA", "arithmetic in f64"),
    ("HMMA IMMA BMMA QMMA OMMA HGMMA IGMMA BGMMA QGMMA QADD4 QFMA4 QMUL4", "matrix instructions"),
    ("UTCHMMA UTCIMMA UTCQMMA UTCOMMA UTCMXQMMA", "matrix instructions of sm_100"),
    ("BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD ISCADD32I ISETP", "integers"),
    ("LEA LOP LOP3 LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3 ISET", "integers"),
    ("F2F F2I I2F I2I I2IP I2FP F2IP F2FP FRND", "conversions"),
    ("MOV MOV32I MOVM PRMT SEL SGXT SHFL P2R R2P PLOP3 PSETP MATCH VOTE REDUX CREDUX", "moves, predicates, lanes of a warp"),
    ("LD LDC LDG LDGDEPBAR LDGSTS LDL LDS LDSM LDT LDTM", "loads; copies into shared memory"),
    ("ST STG STL STS STSM STAS STT STTM", "stores"),
    ("ATOM ATOMS ATOMG RED REDG REDAS", "atomics and reductions"),
    ("MEMBAR FENCE ERRBAR CGAERRBAR CCTL CCTLL CCTLT QSPC", "order of memory, hints to caches, the space of an address"),
    ("BAR B2R R2B ARRIVES SYNCS DEPBAR WARPSYNC ELECT ENDCOLLECTIVE NANOSLEEP YIELD", "barriers and waits"),
    ("UCGABAR_ARV UCGABAR_WAIT UCGABAR_GET UCGABAR_SET", "barriers of clusters"),
    ("ACQBULK PREEXIT", "programmatic dependent launch"),
    ("WARPGROUP WARPGROUPSET USETMAXREG", "warpgroups and their registers"),
    ("UBLKCP UBLKPF UBLKRED UTMALDG UTMAPF UTMAREDG UTMASTG UTMACCTL UTMACMDFLUSH UMEMSETS", "bulk and tensor copies"),
    ("UTCATOMSWS UTCBAR UTCCP UTCSHIFT UVIRTCOUNT", "tensor memory of sm_100"),
    ("UGETNEXTWORKID", "clusterlaunchcontrol: the next CTA of this very grid"),
    ("R2UR S2UR UR2UP UP2UR UMOV UPRMT USEL USGXT UBMSK UBREV UFLO UPOPC ULDC LDCU CS2UR VOTEU", "uniform registers"),
    (
        "UIADD3 UIMAD UIMNMX UISETP ULEA ULOP ULOP3 ULOP32I UPLOP3 UPSETP USHF USHL USHR UIABS UVIADD UVIMNMX",
        "uniform integers",
    ),
    ("UFADD UFFMA UFMUL UFMNMX UFSEL UFSET UFSETP UFRND UF2F UF2I UF2FP UF2IP UI2F UI2FP UI2I UI2IP", "uniform arithmetic"),
    ("BMOV BRA BREAK BRX BRXU BSSY BSYNC CALL EXIT JMP JMX JMXU RET RPCMOV LEPC NOP", "control flow inside the kernel"),
    ("S2R CS2R", "special registers, which are judged by their names"),
)

# (opcodes, the rule they break, the reason)
REFUSED = (
    ("BPT", "device-trap", "a kernel ends by returning; remove the trap or breakpoint"),
    ("PMTRIG", "device-trap", "it triggers performance counters"),
    ("KILL", "opcode", "it ends threads of a graphics shader"),
    ("SETCTAID SETLMEMBASE GETLMEMBASE SETSMEMSIZE", "opcode", "it changes or shows the state of the launch"),
    ("TEX TLD TLD4 TMML TXD TXQ", "opcode", "a kernel is given no texture"),
    ("SUATOM SULD SURED SUST SUQUERY", "opcode", "a kernel is given no surface"),
    ("LDGMC", "opcode", "a kernel is given no multicast memory"),
    ("TTUCCTL TTUGO TTULD TTUMACROFUSE TTUOPEN TTUST", "opcode", "a kernel traces no rays"),
)

_ALLOWED = frozenset(word for words, _ in ALLOWED for word in words.split())
_REFUSED = {word: (rule, why) for words, rule, why in REFUSED for word in words.split()}


def refusal(opcode: str) -> tuple[str, str] | None:
    """The rule that an opcode's first word breaks, and why; None where a kernel may use it."""
    if opcode in _ALLOWED:
        return None
    return _REFUSED.get(opcode, ("opcode", "it is not among the instructions that kernels are known to need"))


# Special registers that a kernel may read, by their PTX and SASS names. All others are refused.
#
# A kernel must not read the time or count its launches, because it could then behave differently while it is timed.

_AXES = "xyzw"

# (names in PTX, names in SASS, why a kernel needs them)
REGISTERS = (
    ("tid ntid", "SR_TID", "its place in the CTA, and the CTA's size"),
    ("ctaid nctaid", "SR_CTAID SR_NCTAID", "the CTA's place in the grid, and the grid's size"),
    ("clusterid nclusterid cluster_ctaid cluster_nctaid", "", "places in clusters, and their sizes"),
    ("cluster_ctarank cluster_nctarank is_explicit_cluster", "SR_CgaCtaId SR_CgaSize", "the rank in a cluster, and its size"),
    ("laneid warpid nwarpid", "SR_LANEID SR_VIRTID SR_VIRTCFG", "lane and warp, and how many warps there are"),
    (
        "lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt",
        "SR_EQMASK SR_LEMASK SR_LTMASK SR_GEMASK SR_GTMASK",
        "masks of lanes by their order",
    ),
    ("smid nsmid", "SR_VIRTUALSMID", "the SM and how many there are: persistent kernels stride by them"),
    ("total_smem_size aggr_smem_size dynamic_smem_size", "SR_SMEMSZ", "sizes of shared memory, which the plan fixes"),
    (
        " ".join(f"reserved_smem_offset_{which}" for which in ("begin", "end", "cap", "0", "1")),
        "SR_SWINHI SR_SWINLO",
        "where shared memory lies",
    ),
    ("", "SRZ", "zero"),
)
# These give the time or count launches. Other refused registers differ from run to run or are unknown.
_TIME = re.compile(r"%?(?:clock|globaltimer|gridid|current_graph_exec|SR_CLOCK|SR_GLOBALTIMER|SR_GRIDID)", re.IGNORECASE)

_PTX = frozenset(
    f"%{name}{axis}" for names, _, _ in REGISTERS for name in names.split() for axis in ("", *(f".{axis}" for axis in _AXES))
)
_SASS = frozenset(f"{name}{axis}" for _, names, _ in REGISTERS for name, axis in product(names.split(), ("", ".X", ".Y", ".Z")))


def refused_rule(name: str) -> str | None:
    """The rule that reading a special register breaks, by its PTX (`%clock`) or SASS name; None where it may be read."""
    if name in _PTX or name in _SASS:
        return None
    return "device-clock" if _TIME.match(name) else "special-register"


# Words of constant bank 0 that machine code may read besides the kernel's parameters.
#
# The driver fills the bank before each launch: sizes of the grid and windows of memory, but also the launch counter, the
# handle of the running graph and environment registers. ptxas itself reads the first two; no honest code reads the others.
# Source: found by assembling every special register and address conversion for each architecture with ptxas 13.0.

_WORD = 4


@dataclass(frozen=True)
class Bank:
    """`parameters`: where they start. `allowed`: words before them. `indexed`: the same, where a register is added.

    On sm_100 the offset of the words for clusters depends on the size of the cluster.
    """

    parameters: int
    allowed: frozenset[int]
    indexed: frozenset[int] = frozenset()

    def allows(self, offset: int, *, indexed: bool) -> bool:
        """Whether code may read at a byte offset."""
        if indexed:
            return offset in self.indexed
        return offset >= self.parameters or offset in self.allowed


def _words(*ranges: tuple[int, int]) -> frozenset[int]:
    """The words of ranges of byte offsets, both ends included."""
    return frozenset(offset for first, last in ranges for offset in range(first, last + 1, _WORD))


_SM_80 = Bank(
    0x160,
    _words(
        (0x0, 0x14),  # sizes of CTA and grid
        (0x18, 0x24),  # windows of shared and local memory
        (0x28, 0x2C),  # stack, dynamic shared memory
        (0x40, 0x44),  # window of parameters
        (0x50, 0x54),  # window of constants
        (0x10C, 0x10C),  # number of SMs
        (0x114, 0x114),  # size of shared memory
        (0x118, 0x11C),  # descriptor of global memory
        (0x120, 0x12C),  # reserved shared memory, end of the window of parameters
    ),
)
_SM_90 = Bank(
    0x210,
    _words(
        (0x0, 0x14),
        (0x18, 0x24),
        (0x28, 0x2C),
        (0x68, 0x6C),
        (0xD0, 0xD4),
        (0x10C, 0x10C),
        (0x114, 0x114),
        (0x13C, 0x18C),  # clusters
        (0x198, 0x1A4),
        (0x208, 0x20C),
    ),
)
_SM_100 = Bank(
    0x380,
    _words(
        (0x120, 0x124),  # window of constants
        (0x16C, 0x16C),  # size of shared memory
        (0x2D0, 0x2D0),  # number of SMs
        (0x2F0, 0x2FC),  # windows of shared and local memory
        (0x348, 0x354),  # window of parameters
        (0x358, 0x35C),  # descriptor of global memory
        (0x360, 0x36C),  # size of a CTA, whether there are clusters
        (0x370, 0x37C),  # size of the grid, stack
    ),
    _words((0x278, 0x27C), (0x2A0, 0x2CC)),
)
BANKS: dict[Arch, Bank] = {
    Arch.SM_80: _SM_80,
    Arch.SM_86: _SM_80,
    Arch.SM_89: _SM_80,
    Arch.SM_90A: _SM_90,
    Arch.SM_100A: _SM_100,
}
