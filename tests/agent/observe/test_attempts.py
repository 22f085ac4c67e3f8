"""A step in short: what its author meant, what differs from its parent, what came of it, and what it takes."""

import pytest

from cudal2_agent.agent.observe.attempts import attempt_of, change_of, described
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import Evaluation, LaunchTime, Prediction, TestResult, Unmeasured, Witness, Wrong
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.trajectory import Attempt, Step
from tests.doubles import CHIP, INSPECTION, TASK, candidate, measured, step, unmeasured


def free(source: str, **origin: object) -> Candidate:
    return candidate(0).model_copy(update={"source": source, "origin": Origin.model_validate({"policy": "chat", **origin})})


def told(one: Step, parent: Candidate | None = None) -> Attempt:
    return described(attempt_of(one), one, TASK, CHIP, parent)


def attempt(evaluation: Evaluation) -> Attempt:
    return told(step(0, evaluation=evaluation))


def test_idea_parent_and_change_are_told() -> None:
    parent = free("int a;\nint b;\n\nint c;\n")
    child = free("int a;\n  int c;\nint d;\nint e;\n", note="Hold B in registers.", parents=(parent.id,))
    one = step(0, candidate=child)
    seen = told(one, parent)
    assert (seen.idea, seen.parent, seen.change) == ("Hold B in registers.", parent.id, "+2 -1 of 3 lines")
    assert told(one).change == ""


def test_schedules_differ_by_their_axes() -> None:
    one, other = candidate(1), candidate(2)
    more = {f"axis{number}": number for number in range(12)}
    assert change_of(other, one) == "number 1 to 2"
    wide = other.model_copy(update={"origin": Origin(policy="p", schedule={**(other.origin.schedule or {}), **more})})
    assert change_of(wide, one).startswith("number 1 to 2, axis0 unset to 0, ")
    assert change_of(wide, one).endswith(", 5 more axes")


def test_terms_are_those_of_the_prediction_largest_first() -> None:
    prediction = Prediction(predicted_us=3.0, model="m", floor_us=1.0, terms={"dram": 0.5, "smem": 2.0})
    seen = attempt(Unmeasured(verified_by="emulator", prediction=prediction, inspection=INSPECTION))
    assert list(seen.terms.items()) == [("smem", 2.0), ("dram", 0.5)]
    assert seen.modelled_us == 3.0, "no schedule is needed where a model knows the candidate"


def test_the_parts_of_a_time_are_told_also_of_a_measured_one() -> None:
    launch = LaunchTime(entry="gemm", parts={"launch": 0.5, "main loop": 3.5})
    prediction = Prediction(predicted_us=3.6, model="m", floor_us=1.0, correction=0.9, launches=(launch,))
    for evaluation in (
        Unmeasured(verified_by="emulator", prediction=prediction, inspection=INSPECTION),
        measured(5.0).model_copy(update={"modelled": prediction}),
    ):
        seen = attempt(evaluation)
        assert (seen.launches, seen.explained_us) == ((launch,), pytest.approx(3.6))
    assert attempt(measured(5.0)).explained_us is None


def test_counters_give_each_launch_its_time_and_a_diagnosis_its_heaviest_finding() -> None:
    counted = LaunchProfile(entry="gemm", grid=(1, 1, 1), block=(32, 1, 1), metrics={"duration_ns": 2500.0})
    profile = Profile(tool="ncu", metric_set="sm_90", seconds=1.0, launches=(counted, counted))
    finding = Finding(bottleneck="spills", evidence="e", remedy="r", weight=0.25)
    one = step(0, evaluation=measured(5.0)).model_copy(
        update={"profile": profile, "diagnosis": Diagnosis(basis="counters", findings=(finding,))}
    )
    assert (told(one).profiled_us, told(one).limit) == ((2.5, 2.5), "spills up to 25%")
    part = profile.model_copy(update={"launches": (counted, counted.model_copy(update={"metrics": {}}))})
    assert told(one.model_copy(update={"profile": part})).profiled_us == ()


def test_a_serialised_product_has_the_compilers_reason() -> None:
    warning = (
        "(C7520) Potential Performance Loss: wgmma.mma_async instructions are serialized due to a branch in the function 'g'"
    )
    finding = Finding(bottleneck="wgmma-serialised", evidence=warning, remedy="r", weight=0.6)
    one = step(0).model_copy(update={"diagnosis": Diagnosis(basis="static", findings=(finding,))})
    assert told(one).limit == "wgmma-serialised up to 60% (a branch)"


def test_a_roofline_is_no_modelled_time() -> None:
    assert attempt(unmeasured(1.0)).modelled_us is None


def test_a_record_of_an_older_version_has_a_modelled_time_only_with_a_schedule() -> None:
    old = {"candidate_id": "a", "policy": "p", "status": "unmeasured", "predicted_us": 3.0}
    assert Attempt.model_validate({**old, "schedule": None}).modelled_us is None
    assert Attempt.model_validate({**old, "schedule": {"stages": 4}}).modelled_us == 3.0


@pytest.mark.parametrize(
    ("evaluation", "verdict"),
    [
        (unmeasured(3.0, "emulator"), "verified by the emulator"),
        (unmeasured(3.0), "not executed"),
        (measured(3.0), "verified by a GPU"),
        (measured(3.0).model_copy(update={"witness": Witness(status="agreed")}), "verified by a GPU, and by the emulator"),
        (
            measured(3.0).model_copy(update={"witness": Witness(status="in-part")}),
            "verified by a GPU, and by the emulator in part",
        ),
        (measured(3.0).model_copy(update={"witness": Witness(status="unavailable", reason="x")}), "verified by a GPU"),
        (Wrong(test=TestResult(tier="exact", name="x", passed=False), tests=(), inspection=INSPECTION), ""),
    ],
)
def test_the_verdict_names_who_executed_it(evaluation: Evaluation, verdict: str) -> None:
    assert attempt(evaluation).verdict == verdict


def test_resources_are_those_of_the_code_and_the_plan() -> None:
    taken = attempt(unmeasured(3.0)).resources
    assert taken is not None
    assert (taken.registers, taken.threads, taken.ctas, taken.ctas_per_sm) == (128, 128, 16, 4)
