"""Which failures remain to be repaired, the number of attempts at each, and the notes for what a failed source uses."""

import pytest

from cudal2_agent.agent.observe.failures import unrepaired
from cudal2_agent.agent.observe.notes_of_source import notes_of_source
from cudal2_agent.agent.observe.ranking import Ranked, rank
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import CompileFailed, Crashed, Evaluation, Rejected, TestResult, TimedOut, Wrong
from cudal2_agent.contract.records.symptoms import BarrierWait, Symptoms
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.records.trajectory import Step
from tests.contract.records import FAULTS
from tests.doubles import CHIP, INSPECTION, TASK, candidate, measured, step, unmeasured

BROKEN = CompileFailed(message="no", log="")


def written(number: int, *parents: int) -> Candidate:
    """A free-form candidate with the candidates it was rewritten from."""
    origin = Origin(policy="chat", parents=tuple(written(parent).id for parent in parents))
    return candidate(number).model_copy(update={"origin": origin})


def tried(index: int, new: Candidate, evaluation: Evaluation = BROKEN) -> Step:
    return step(index, candidate=new, evaluation=evaluation)


def ranked(*steps: Step) -> list[Ranked]:
    return [rank(one, TASK, CHIP) for one in steps]


def left(*steps: Step, most: int = 10) -> list[tuple[str, int]]:
    return [(failure.candidate.id, failure.repairs) for failure in unrepaired(ranked(*steps), most)]


def test_the_latest_failure_comes_first_and_no_more_than_asked() -> None:
    steps = [tried(0, written(0)), tried(1, written(1), measured(5.0)), tried(2, written(2)), tried(3, written(3))]
    assert left(*steps) == [(written(n).id, 0) for n in (3, 2, 0)]
    assert left(*steps, most=2) == [(written(n).id, 0) for n in (3, 2)]
    assert left(*steps, most=0) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.status)
def test_every_kind_of_failure_counts_and_carries_its_evaluation(fault: Evaluation) -> None:
    [failure] = unrepaired(ranked(tried(0, written(0), fault)), 1)
    assert failure.evaluation == fault


def test_what_passed_is_no_failure() -> None:
    assert left(tried(0, written(0), measured(5.0)), tried(1, written(1), unmeasured(5.0))) == []


def test_a_failed_schedule_is_left_to_its_policy() -> None:
    assert left(step(0, 0, evaluation=BROKEN)) == []


def test_a_repair_takes_its_parents_place_and_counts_on() -> None:
    chain = [tried(0, written(0)), tried(1, written(1, 0)), tried(2, written(2, 1)), tried(3, written(3))]
    assert left(*chain) == [(written(3).id, 0), (written(2).id, 2)]
    assert left(*chain, tried(4, written(4, 2), measured(5.0))) == [(written(3).id, 0)]


def test_a_parent_that_passed_is_no_repair() -> None:
    assert left(tried(0, written(0), measured(5.0)), tried(1, written(1, 0))) == [(written(1).id, 0)]


def test_a_parent_that_comes_later_or_is_unknown_counts_for_nothing() -> None:
    assert left(tried(0, written(0, 1)), tried(1, written(1, 99))) == [(written(1).id, 0), (written(0).id, 0)]
    assert left(tried(0, written(0, 0))) == [(written(0).id, 0)]


def test_a_candidate_that_fails_when_measured_in_full_has_failed() -> None:
    wrong = TestResult(tier="again", name="fresh", passed=False)
    late = Wrong(test=wrong, tests=(wrong,), inspection=INSPECTION)
    [failure] = unrepaired(ranked(tried(0, written(0), measured(5.0)), tried(1, written(0), late)), 5)
    assert failure.evaluation == late
    assert left(tried(0, written(0)), tried(1, written(0), measured(5.0))) == []


def test_a_crash_a_rejection_and_a_time_out_can_be_one_chain() -> None:
    faults = (Rejected(rule="x", message="y"), Crashed(stage="verify", message="z"), TimedOut(stage="time", limit_s=1.0))
    steps = [tried(n, written(n, n - 1) if n else written(n), fault) for n, fault in enumerate(faults)]
    assert left(*steps) == [(written(2).id, 2)]


def test_a_failure_brings_the_proven_kernel_whose_source_is_nearest() -> None:
    near, far = (
        written(number).model_copy(update={"source": source}) for number, source in ((0, "a\nb\nc\nd"), (1, "a\nx\ny\nz"))
    )
    broken = written(2).model_copy(update={"source": "a\nb\nc\ne"})
    [failure] = unrepaired(ranked(tried(0, near, measured(5.0)), tried(1, far, unmeasured(5.0)), tried(2, broken)), 1)
    assert failure.proven == near
    [alone] = unrepaired(ranked(tried(0, broken)), 1)
    assert alone.proven is None


SOURCE = """\
const unsigned long long b = wgmma_descriptor<128>(smem_b, 8192, 1024);
mbarrier_wait(full_barrier(smem, stage), parity);
wgmma_shared<half, float, 128, 1>::run(acc, a, wgmma_advance(b, 32), true);
tma_store(map_d, staging, n, m);
"""


def wrong(symptoms: Symptoms | None, message: str = "") -> Evaluation:
    failed = TestResult(tier="exact", name="zero-one", passed=False, message=message, symptoms=symptoms)
    return Wrong(test=failed, tests=(failed,), inspection=INSPECTION)


def headings(evaluation: Evaluation, source: str = SOURCE, arch: Arch = Arch.SM_90A) -> list[tuple[str, str]]:
    return [(hit.chunk.path, hit.chunk.symbol) for hit in notes_of_source(source, evaluation, arch)]


def test_exchanged_elements_of_wgmma_bring_the_notes_of_descriptors() -> None:
    found = headings(wrong(Symptoms(sources=("B: k 16-31 hold 32-47",))))
    assert found[0][0] == "wgmma.md"
    assert {heading for _, heading in found} & {
        "K-major operands with the 128-byte swizzle",
        "MN-major operands with the 128-byte swizzle",
        "The 64-bit shared-memory descriptor",
    }


def test_a_wait_brings_the_notes_of_its_barrier() -> None:
    wait = BarrierWait(kind="mbarrier", barrier="an mbarrier", warps="warp 0", at="`mbarrier.try_wait` (kernel.cu:2)")
    assert "tma_mbarrier_pipelines.md" in {path for path, _ in headings(wrong(Symptoms(waits=(wait,))))}


def test_words_of_the_message_choose_nothing() -> None:
    symptoms = Symptoms(sources=("A: rows 8-15 hold 0-7",))
    assert headings(wrong(symptoms, "zero full written split-K cluster")) == headings(wrong(symptoms))


def test_notes_of_other_targets_are_left_out_and_a_strange_source_brings_none() -> None:
    assert "wgmma.md" not in {path for path, _ in headings(wrong(None), arch=Arch.SM_80)}
    assert headings(wrong(None), source="qqq") == []
