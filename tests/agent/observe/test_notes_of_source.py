"""Notes for a failed source: chosen by what the source uses where it failed, never by the words of the message."""

from cudal2_agent.agent.observe.notes_of_source import notes_of_source
from cudal2_agent.contract.records.evaluation import Evaluation, TestResult, Wrong
from cudal2_agent.contract.records.symptoms import BarrierWait, Symptoms
from cudal2_agent.contract.records.task import Arch
from tests.doubles import INSPECTION

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
