"""A stage of a large module has time for the sandbox's references; that of a matrix product has what its options say."""

from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions
from cudal2_agent.sandbox.workers.messages import Evaluate
from tests.contract.test_module_plans import TASK as MODULE
from tests.doubles import INSPECTION, PLAN, TASK


def limits(task):
    from cudal2_agent.contract.records.build import Built
    from cudal2_agent.contract.records.candidate import Candidate, Origin

    candidate = Candidate(source="x", plan=PLAN, origin=Origin(policy="test"))
    built = Built(candidate=candidate, inspection=INSPECTION, artifact_path="x", cached=True, seconds=0)
    request = Evaluate(built=built, task=task, verify=VerifyOptions(), time=TimeOptions())
    return {stage: request.limit_s(stage) for stage in (None, "load", "verify", "time")}


def test_references_of_a_large_module_have_time():
    (x, *others) = MODULE.buffers
    large = MODULE.model_copy(update={"buffers": (x.model_copy(update={"shape": (10**9,)}), *others), "flops": 10**12})
    product, small, grown = limits(TASK), limits(MODULE), limits(large)
    assert small["verify"] - product["verify"] < 1e-3
    assert grown["verify"] - product["verify"] > 60
    assert grown["load"] == product["load"]
    assert grown[None] == product[None]
