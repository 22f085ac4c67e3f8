"""The emulator's results equal those of an H200, bit for bit or within a case's bound, and no detector reports a finding."""

import functools

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.golden.agreement import differences, disagreements, excess
from tests.sandbox.emulator.golden.case import Case
from tests.sandbox.emulator.golden.families import families, family
from tests.sandbox.emulator.golden.replay import Programs, run_case
from tests.sandbox.emulator.golden.store import fingerprint, load, load_records

NAMES = [one.name for one in families()]


@functools.cache
def programs_of(name: str) -> Programs:
    return Programs(family(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_case_was_recorded_from_the_present_source_and_inputs(name: str) -> None:
    one = family(name)
    assert load_records()[name].fingerprint == fingerprint(one), (
        "record this family again: benchmarks.emulator.golden_opcodes --families"
    )
    assert [case.name for case in one.cases if case.name not in load(one)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_gives_what_numpy_expects(name: str) -> None:
    one = family(name)
    assert list(_unexpected(one.cases, load(one))) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_emulator_gives_what_the_gpu_gave(name: str) -> None:
    one = family(name)
    programs, recorded = programs_of(one.name), load(one)
    told = []
    for case in one.cases:
        if case.name not in recorded:
            continue
        given, before = case.buffers()
        for interleaving in (Interleaving.LATEST, Interleaving.EAGER):
            replayed = run_case(case, programs.program(case.kernel), given, before, interleaving)
            said = (*disagreements(case, given, recorded[case.name], replayed.output), *replayed.findings)
            told += [f"{case.name}, {interleaving.name.lower()}: {words}" for words in said]
    assert told == []


def test_another_instruction_is_seen() -> None:
    one = family("floats")
    programs, recorded = programs_of(one.name), load(one)
    case = next(case for case in one.cases if case.name == "floats/add.rn.f32")
    given, before = case.buffers()
    for kernel, agrees in (("add_f32", True), ("add_rz_f32", False), ("add_rn_ftz_f32", False), ("sub_rn_f32", False)):
        output = run_case(case, programs.program(kernel), given, before, Interleaving.LATEST).output
        assert (list(disagreements(case, given, recorded[case.name], output)) == []) == agrees, kernel


@pytest.mark.parametrize("name", ["mma", "wgmma"])
def test_the_bound_on_products_is_no_wider_than_they_need(name: str) -> None:
    """Sums in another order use at least half of the bound somewhere."""
    one = family(name)
    programs, recorded = programs_of(one.name), load(one)
    used = {}
    for case in one.cases:
        if case.comparison is not None and "f32" in case.name:
            given, before = case.buffers()
            output = run_case(case, programs.program(case.kernel), given, before, Interleaving.LATEST).output
            used[case.name] = float(np.max(excess(case, given, recorded[case.name], output)))
    assert 0.5 < max(used.values()) <= 1, used


def _unexpected(cases: tuple[Case, ...], recorded: dict[str, np.ndarray]):
    for case in cases:
        if case.name in recorded:
            given, before = case.buffers()
            yield from (f"{case.name}: {words}" for words in differences(case, given, before, recorded[case.name]))
