"""The corpus is complete: enough cases of each class, layers in every row, and verdicts that separate misses from refusals."""

from pathlib import Path

import pytest

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.evaluation import CompileFailed, Prediction, Rejected, TestResult, Unmeasured, Wrong
from cudal2_agent.contract.records.inspection import Inspection
from tests.redteam.base import PLAIN, TILED
from tests.redteam.case import SEEDED, Case, label, named, task, verdict
from tests.redteam.corpus import VARIANTS, corpus
from tests.redteam.files import read

CASES = corpus()
INSPECTION = Inspection(
    cubin_sha256="0" * 64, compile_seconds=0, kernels=(), opcodes={}, opcode_source="sass", mma=(), accumulators=()
)
TASK = task("16x16x16")


def attack(**fields: object) -> Case:
    return Case(**{"name": "x", "group": "g", "source": "", "task": TASK, "small": TASK, "why": ""} | fields)  # type: ignore[arg-type]


def wrong(tier: str, name: str) -> Wrong:
    test = TestResult(tier=tier, name=name, passed=False)
    return Wrong(test=test, tests=(test,), inspection=INSPECTION)


def unmeasured(by: str) -> Unmeasured:
    prediction = Prediction(predicted_us=1, model="none", floor_us=1)
    return Unmeasured(verified_by=by, prediction=prediction, inspection=INSPECTION)  # type: ignore[arg-type]


def test_there_is_enough_of_each() -> None:
    written = [case for case in CASES if not case.honest and not case.blind]
    assert len(written) >= 62
    assert sum(case.honest for case in CASES) >= 40
    assert len({case.group for case in written}) >= 10


def test_in_cis_minute_there_is_enough_of_each_too() -> None:
    assert {case.id for case in CASES} >= VARIANTS
    quick = [case for case in CASES if case.id not in VARIANTS]
    assert sum(bool(case.emulator) for case in quick if not case.honest) >= 80
    assert sum(case.honest for case in quick) >= 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_says_why_and_who_refuses_it(case: Case) -> None:
    assert case.why
    assert "\n" not in case.why
    assert bool(case.gpu or case.emulator) is not case.honest
    assert SEEDED not in case.candidate_source()


@pytest.mark.parametrize("case", [case for case in CASES if case.honest], ids=lambda case: case.id)
def test_a_right_kernels_plan_fits_both_of_its_tasks(case: Case) -> None:
    for each in (case.task, case.small):
        plan = case.candidate().plan
        assert len(resolve(plan, each, LIMITS[each.arch], REFERENCE_CHIPS[each.arch].sms).launches) == len(plan.launches)


@pytest.mark.parametrize(
    ("layers", "outcome", "expected"),
    [
        (("wrong:emulator/*",), wrong("emulator", "deadlock"), "refused"),
        (("wrong:emulator/*",), wrong("exact", "zero-one"), "refused elsewhere"),
        (("wrong:emulator/*",), unmeasured("emulator"), "PASSED"),
        (("wrong:emulator/*",), unmeasured("nothing"), "not executed"),
        (("not-executed",), unmeasured("nothing"), "refused"),
        (("verified", "crashed"), unmeasured("emulator"), "harmless"),
        ((), unmeasured("emulator"), "not visible here"),
        (("rejected",), Rejected(rule="include", message=""), "refused"),
        (("rejected:flag",), Rejected(rule="include", message=""), "refused elsewhere"),
        (("compile_failed",), CompileFailed(message="", log="error near root:x:0:0"), "LEAKED"),
        (("compile_failed",), CompileFailed(message="file-that-nobody-may-read", log=""), "LEAKED"),
    ],
)
def test_a_verdict_tells_a_hole_from_a_refusal(layers: tuple[str, ...], outcome: object, expected: str) -> None:
    assert verdict(attack(emulator=layers), outcome, gpu=False) == expected  # type: ignore[arg-type]


def test_a_right_kernel_that_is_refused_is_a_false_alarm() -> None:
    assert verdict(attack(honest=True), wrong("exact", "zero-one"), gpu=False) == "FALSE ALARM"
    assert verdict(attack(honest=True), unmeasured("nothing"), gpu=False) == "FALSE ALARM"
    assert verdict(attack(honest=True), unmeasured("emulator"), gpu=False) == "passed"


def test_layers_are_names_beginnings_or_patterns() -> None:
    assert label(Rejected(rule="plan-grid", message="")) == "rejected:plan-grid"
    assert named("rejected:plan-grid", ("rejected:plan-*",))
    assert named("crashed:verify", ("crashed",))
    assert not named("crashed:verify", ("timed_out", "crash", "rejected:*"))


def test_a_base_has_its_slots_and_no_others() -> None:
    for base in (TILED, PLAIN):
        assert "/*{" not in base.write()
        assert "k_end = 7;" in base.write(slots={"first": "k_end = 7;\n"})
        with pytest.raises(KeyError, match="no slots"):
            base.write(slots={"nowhere": "x"})


def test_a_file_without_its_comment_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.cu"
    file.write_text("int x;\n")
    with pytest.raises(ValueError, match="no '// redteam"):
        read(file)
    file.write_text('// blind: {"shape": "64x64x64", "gain": "half", "idea": "counts"}\nint x;\n')
    case = read(file)
    assert (case.blind, case.group, case.gain, case.why) == (True, "blind", "half", "counts")
    with pytest.raises(PlanError):
        case.candidate()
