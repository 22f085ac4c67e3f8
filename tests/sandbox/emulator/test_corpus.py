"""The corpus itself: every fault changes one kernel, compiles, and is within what the kernel's chip would launch."""

from pathlib import Path

import pytest

from contract.chip import LIMITS
from contract.options import CompileOptions
from contract.plan import resolve
from sandbox.check import check
from sandbox.compiler import Compiled, Compiler
from tests.sandbox.emulator.corpus import FAULTS
from tests.sandbox.emulator.fault import DETECTORS, Fault, Patch

# Both families address local memory and parameters only as the compiler does, which is always inside.
NOT_SEEDED = {"local-out-of-bounds", "param-out-of-bounds"}


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Compiles once for all runs of the tests."""
    assert request.config.cache is not None
    return Compiler(CompileOptions(cache_dir=str(request.config.cache.mkdir("emulator-kernels"))))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_compiles_and_is_not_the_right_kernel(compiler: Compiler, fault: Fault) -> None:
    right, wrong = fault.right(), fault.wrong()
    assert check(wrong, fault.task, LIMITS[fault.task.arch], fault.sms) is None
    compiled = compiler.compile(wrong, fault.task.arch)
    assert isinstance(compiled, Compiled), compiled
    if wrong.plan == right.plan:
        reference = compiler.compile(right, fault.task.arch)
        assert isinstance(reference, Compiled), reference
        assert Path(compiled.ptx_path).read_text() != Path(reference.ptx_path).read_text()


def test_faults_have_names_reasons_and_known_detectors() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    assert {kind for fault in FAULTS for kind in fault.detectors} == DETECTORS - NOT_SEEDED
    for fault in FAULTS:
        assert fault.detectors, fault.id
        assert "\n" not in fault.why, fault.id
        assert len(fault.why) > 20, fault.id


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.sms < 132], ids=lambda fault: fault.id)
def test_where_there_are_few_sms_ctas_take_several_tiles(fault: Fault) -> None:
    few, many = (
        resolve(fault.right().plan, fault.task, LIMITS[fault.task.arch], sms).launches[0].grid[0] for sms in (fault.sms, 132)
    )
    assert few < many


def test_a_patch_names_one_place() -> None:
    assert Patch("b", "x", 1, of=2).apply("abcb") == "abcx"
    for patch in (Patch("b", "x"), Patch("z", "x"), Patch("b", "x", of=3)):
        with pytest.raises(ValueError, match="times"):
            patch.apply("abcb")
