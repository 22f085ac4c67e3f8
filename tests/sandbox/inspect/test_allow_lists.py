"""The allow-lists of opcodes, special registers and constant words, applied to listings."""

import pytest

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.inspect import allow_lists, sass
from cudal2_agent.sandbox.inspect.allow_lists import BANKS, refused_rule


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("%clock64", "device-clock"),
        ("%globaltimer_lo", "device-clock"),
        ("%gridid", "device-clock"),
        ("%current_graph_exec", "device-clock"),
        ("SR_CLOCKLO", "device-clock"),
        ("SR_GLOBALTIMERHI", "device-clock"),
        ("%envreg3", "special-register"),
        ("%pm0_64", "special-register"),
        ("SR_PM7", "special-register"),
        ("SR_SOMETHING_NEW", "special-register"),
        ("SR57", "special-register"),
        ("%tid.x", None),
        ("%nsmid", None),
        ("%cluster_ctarank", None),
        ("SR_TID.X", None),
        ("SR_VIRTUALSMID", None),
        ("SRZ", None),
    ],
)
def test_special_registers_are_allowed_by_name(name: str, rule: str | None) -> None:
    assert refused_rule(name) == rule


@pytest.mark.parametrize(
    ("opcode", "rule"),
    [("HGMMA", None), ("NANOSLEEP", None), ("UTCHMMA", None), ("BPT", "device-trap"), ("PMTRIG", "device-trap"),
     ("SETCTAID", "opcode"), ("TEX", "opcode"), ("SULD", "opcode"), ("NEWOPCODE", "opcode")],
)  # fmt: skip
def test_opcodes_are_allowed_by_name(opcode: str, rule: str | None) -> None:
    refused = allow_lists.refusal(opcode)
    assert (refused and refused[0]) == rule


def test_no_opcode_is_both_allowed_and_refused() -> None:
    allowed = [word for words, _ in allow_lists.ALLOWED for word in words.split()]
    assert len(allowed) == len(set(allowed))
    assert not set(allowed) & {word for words, _, _ in allow_lists.REFUSED for word in words.split()}


@pytest.mark.parametrize(
    ("arch", "counter", "sms"),
    [(Arch.SM_80, 0x30, 0x10C), (Arch.SM_90A, 0x30, 0x10C), (Arch.SM_100A, 0x140, 0x2D0)],
)
def test_the_launch_counter_is_no_word_to_read(arch: Arch, counter: int, sms: int) -> None:
    bank = BANKS[arch]
    assert not bank.allows(counter, indexed=False)
    assert not bank.allows(bank.parameters, indexed=True)
    assert bank.allows(sms, indexed=False)
    assert bank.allows(bank.parameters + 8, indexed=False)


LISTING = "        /*0000*/                   {} ;\n"


@pytest.mark.parametrize(
    ("instruction", "constants"),
    [
        ("LDC.64 R4, c[0x0][R4+0x30]", ((0x30, True),)),
        ("LDC R7, c[0x0][RZ]", ((0, False),)),
        ("LDCU UR4, c[0x0][UR5+0x2b0]", ((0x2B0, True),)),
        ("IMAD R1, R2, c[0x0][0x164], R3", ((0x164, False),)),
        ("LDC R7, c[0x0][R2.X4+-0x8]", ((-8, True),)),
        ("LDC R7, c[0x0][something]", ((None, False),)),
        ("LDC R7, c[0x2][R4]", ()),
    ],
)
def test_reads_of_constant_bank_0_are_found(instruction: str, constants: tuple[tuple[int | None, bool], ...]) -> None:
    assert sass.parse(LISTING.format(instruction)).constants == constants


def test_a_special_register_of_a_strange_form_is_kept_by_its_text() -> None:
    assert sass.parse(LISTING.format("S2R R2, 0x50")).special_registers == ("R2, 0x50",)
    assert refused_rule("R2, 0x50") == "special-register"


def test_a_line_that_is_no_instruction_is_kept() -> None:
    assert sass.parse(LISTING.format("?? 0x1234")).unread == ("?? 0x1234 ;",)


def test_only_the_compilers_own_guards_may_trap() -> None:
    guard = "$__internal_0_$__cuda_sm10x_tcgen05_guardrail_trap_phase_invalid_during_alloc:\n"
    trap = LISTING.format("BPT.TRAP 0x1")
    assert sass.parse(guard + trap).traps == 0
    assert sass.parse(guard + "$another:\n" + trap).traps == 1
    assert sass.parse(trap).traps == 1
