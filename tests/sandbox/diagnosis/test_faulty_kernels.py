"""The faulty kernels build, and the diagnosis names the faults that compiled code shows."""

import shutil
from collections.abc import Iterator

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.toolchain import find_nvdisasm
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose
from tests.sandbox.diagnosis.faulty_kernels import FaultyCase, all_cases

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
CASES = {case.name: case for case in all_cases()}
STATIC = {  # faults that the compiled code shows without running
    "tile too large": "idle-sms",
    "tail wave": "tail-wave",
    "fused multiply-adds": "no-tensor-cores",
    "registers bounded": "spills",
    "copies through registers": "register-staging",
    "fragments word by word": "narrow-smem-loads",
    "serialised wgmma": "wgmma-serialised",
}


def test_there_are_twenty_kernels_of_different_character() -> None:
    assert len(CASES) == len(all_cases()) >= 20
    assert len({(case.candidate.id, case.task.shape) for case in CASES.values()}) == len(CASES)
    assert len({case.expected[0] for case in CASES.values()}) >= 12
    assert sum(case.fixed is not None for case in CASES.values()) >= 8
    for case in CASES.values():
        assert not set(case.expected) & set(case.also)
        assert case.fixed is None or case.fixed.id != case.candidate.id


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_faulty_kernel_holds_its_whole_plan(name: str) -> None:
    case = CASES[name]
    for candidate in filter(None, (case.candidate, case.fixed)):
        assert parse_plan(candidate.source) == candidate.plan
        resolve(candidate.plan, case.task, LIMITS[case.task.arch], CHIP.sms)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    cache = tmp_path_factory.mktemp("compile")
    yield Builder(CompileOptions(cache_dir=str(cache), jobs=2), CHIP)
    shutil.rmtree(cache)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_faulty_kernel_builds_and_is_as_faulty_as_it_says(name: str, builder: Builder) -> None:
    case = CASES[name]
    found = [_static(case, candidate, builder) for candidate in filter(None, (case.candidate, case.fixed))]
    if name in STATIC and (find_nvdisasm() or name == "serialised wgmma"):
        assert STATIC[name] in found[0]
        assert all(STATIC[name] not in names for names in found[1:])


def _static(case: FaultyCase, candidate: AnyCandidate, builder: Builder) -> set[str]:
    built = builder.build_one(candidate, case.task)
    assert isinstance(built, Built), built
    plan = resolve(candidate.plan, case.task, LIMITS[case.task.arch], CHIP.sms)  # type: ignore[union-attr]
    return {finding.bottleneck for finding in diagnose(built.inspection, plan, case.task, CHIP).findings}
