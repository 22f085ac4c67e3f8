"""First words of SASS instructions that a kernel may contain, sm_80 to sm_100. All others are refused.

Source: the instruction tables of NVIDIA's "CUDA Binary Utilities" for Ampere, Ada, Hopper and Blackwell, and the code that
ptxas 13.0 generates for the project's kernels, for CUTLASS's examples and for each PTX instruction.
"""

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
