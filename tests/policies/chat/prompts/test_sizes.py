"""How long prompts are, from what a run of several rounds has to show: a bound, so that they do not grow unseen.

The kernels are the skeleton with more lines, as long as those that large models wrote (6,000 to 23,000 characters).
"""

import pytest

from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import CompileFailed, LaunchTime, Prediction, Unmeasured
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Attempt, AttemptResources, Exemplar, Failure, Observation
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import (
    LATER_TOKENS,
    OPENING_TOKENS,
    OPTIONAL_TOKENS,
    Prompts,
    _skeleton,
    _values,
)
from cudal2_agent.policies.chat.prompts.schedules import PromptedReplies
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN, chars_of
from tests.doubles import INSPECTION
from tests.policies.chat.conversing import observe
from tests.policies.chat.prompts.test_composition import HEADERS, hit

TASK = GemmTask(m=256, n=512, k=1024, arch=Arch.SM_90A)
PARTS = {"launch": 0.24, "prologue": 0.27, "fill": 1.05, "main loop": 1.01, "exchange": 0.95, "tail": 0.46}
TERMS = {"shared memory": 1.23, "distributed shared memory": 1.09, "bulk copies": 1.08, "loads from L2": 0.97}
RESOURCES = AttemptResources(registers=168, spilled_bytes=0, smem_bytes=98304, threads=384, ctas=64, ctas_per_sm=1)
IDEA = (
    "The ring is filled at once, K is split over a cluster of four and sums are pushed to the CTA that owns them as they come."
)


def kernel(number: int, chars: int) -> Candidate:
    """The skeleton with comments up to so many characters; each kernel differs from the others in a few lines."""
    text = _skeleton(_values(observe(task=TASK), Assignment(0, None, ()))).partition("```cuda\n")[2].rpartition("\n```")[0]
    lines = "".join(f"// line {line} of the kernel's own comments\n" for line in range(1000))
    changed = f"// version {number}\n" * 5
    source = f"{text}\n{changed}{lines}"[:chars]
    return Candidate.from_source(source, Origin(policy="chat", note=IDEA))


def attempt(one: Candidate, us: float) -> Attempt:
    launch = LaunchTime(entry="gemm", parts=PARTS, terms=TERMS)
    return Attempt(
        candidate_id=one.id, policy="chat", schedule=None, status="unmeasured", predicted_us=us, is_floor=False, idea=IDEA,
        verdict="verified by the emulator", parent="b" * 16, change="+12 -4 of 190 lines", terms=TERMS, launches=(launch,),
        explained_us=us, limit="prologue-bound up to 33%", resources=RESOURCES,
    )  # fmt: skip


def late(chars: int) -> Observation:
    """The seventh round: twelve kernels, one of them failed, with what can be said of each."""
    kernels = [kernel(number, chars) for number in range(12)]
    tried = tuple(attempt(one, 4.0 + number / 10) for number, one in enumerate(kernels))
    prediction = Prediction(
        predicted_us=4.0, model="timing-model on H200", floor_us=1.13, terms=TERMS, launches=tried[0].launches, correction=1.06
    )
    findings = tuple(
        Finding(bottleneck=name, evidence="evidence of it " * 8, remedy="what helps " * 8, weight=0.3)
        for name in ("prologue-bound", "reduction-traffic", "smem-bound", "dependency-waits", "far-from-roofline-memory")
    )  # fmt: skip
    return observe(
        task=TASK,
        round=7,
        attempts=tried,
        best=kernels[0],
        best_evaluation=Unmeasured(verified_by="emulator", prediction=prediction, inspection=INSPECTION),
        diagnosis=Diagnosis(basis="static", findings=findings),
        diagnosed=kernels[0].id,
        exemplars=tuple(Exemplar(candidate=kernels[n], attempt=tried[n], bucket=n) for n in (3, 8)),
        recent=tuple(kernels[1:5]),
        failures=(Failure(candidate=kernels[11], evaluation=CompileFailed(message="m", log="error: x\n" * 90), repairs=0),),
        hits=tuple(hit("a line of a note about kernels that are fast\n" * 22, number) for number in range(8)),
        candidates_left=12,
        seconds_left=1500.0,
    )


def length(observation: Observation, *, repairs: bool = False) -> int:
    made = Prompts(24_000, HEADERS, PromptedReplies("any", 4)).first(
        observation, Assignment(0, observation.failures[0] if repairs else None, observation.exemplars)
    )
    return chars_of(made.prompt)


def test_a_first_prompt_has_at_most_26_400_characters() -> None:
    hits = tuple(hit("x" * 900, number) for number in range(20))
    assert length(observe(task=TASK, hits=hits)) <= CHARS_PER_TOKEN * OPENING_TOKENS == 26_400


@pytest.mark.parametrize("repairs", [False, True], ids=["improve", "repair"])
@pytest.mark.parametrize("chars", [7_500, 12_000, 22_000])
def test_a_later_prompt_grows_with_its_kernel_alone(chars: int, repairs: bool) -> None:
    """32,000 characters, or what its required sections need and 9,600 more."""
    optional, fixed = CHARS_PER_TOKEN * OPTIONAL_TOKENS, 18_500  # rules, task, families, result, diagnosis
    assert CHARS_PER_TOKEN * LATER_TOKENS == 32_000
    most = max(32_000, fixed + chars + optional)
    assert 0.75 * most < length(late(chars), repairs=repairs) <= most
