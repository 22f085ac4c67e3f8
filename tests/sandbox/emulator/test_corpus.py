"""Every seeded fault is reported by its detector, and the unpatched kernels have no finding."""

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.sandbox.building.check import Checked, check
from cudal2_agent.sandbox.emulator.detector import Detector
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.corpus import FAULTS
from tests.sandbox.emulator.corpus.fault import Fault, Patch
from tests.sandbox.emulator.trial import NOT_RESTORED, WRONG_RESULT, Trial, interleavings

# Only the compiler addresses local memory and parameters in both families, always within bounds.
NOT_SEEDED = {Detector.LOCAL_OUT_OF_BOUNDS, Detector.PARAM_OUT_OF_BOUNDS}
# Random interleavings after which every fault is found; the fixed ones find most.
ENOUGH = 8
FEW, MANY = 4, 50


def _right_kernels() -> dict[str, Fault]:
    """One fault per right kernel."""
    return {f"{fault.right().id}-{fault.task.shape}-{fault.task.layout}": fault for fault in reversed(FAULTS)}


RIGHT = _right_kernels()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_compiles_and_is_not_the_right_kernel(compiler: PtxCompiler, fault: Fault) -> None:
    right, wrong = fault.right(), fault.wrong()
    assert isinstance(check(wrong, fault.task, LIMITS[fault.task.arch], fault.sms), Checked)
    compiled = compiler.compile(wrong, fault.task.arch)
    if wrong.plan == right.plan:
        assert compiled != compiler.compile(right, fault.task.arch)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_named_by_its_detector(compiler: PtxCompiler, fault: Fault) -> None:
    wrong = fault.wrong()
    trial = Trial(compiler.compile(wrong, fault.task.arch), wrong, fault.task, fault.sms)
    verdicts = (trial.verdict(conditions) for conditions in interleavings(random=ENOUGH))
    named = next((verdict for verdict in verdicts if verdict is not None), None)
    assert named is not None, fault.why
    assert named.kind in fault.detectors, named.message


@pytest.mark.parametrize("fault", RIGHT.values(), ids=RIGHT.keys())
@pytest.mark.parametrize("random", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_the_kernel_without_its_fault_is_not_flagged(compiler: PtxCompiler, fault: Fault, random: int) -> None:
    right = fault.right()
    trial = Trial(compiler.compile(right, fault.task.arch), right, fault.task, fault.sms)
    assert [verdict for conditions in interleavings(random) if (verdict := trial.verdict(conditions))] == []


def test_faults_have_names_reasons_and_known_detectors() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    assert {kind for fault in FAULTS for kind in fault.detectors} == {*Detector, WRONG_RESULT, NOT_RESTORED} - NOT_SEEDED
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
