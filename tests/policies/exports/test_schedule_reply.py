"""A kernel without a model in the reply form: its source comes back unchanged, and its sentences come from records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.chat.replies.forms import read_reply
from cudal2_agent.policies.chat.replies.kernel_file import KernelFile
from cudal2_agent.policies.exports.schedule_reply import write_reply
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from tests.doubles import CHIP, measured
from tests.policies.exports.runs import RunOfTests, kernel

FIRST = RunOfTests().round(1)


def read(reply: str | None) -> KernelFile:
    assert reply is not None
    found = read_reply(reply)
    assert isinstance(found, KernelFile)
    return found


@pytest.mark.parametrize("arch", [Arch.SM_80, Arch.SM_90A])
def test_what_the_schedule_policy_writes_is_read_back_as_the_same_candidate(arch: Arch) -> None:
    task = GemmTask(m=512, n=256, k=128, arch=arch)
    observation = Observation(task=task, chip=CHIP, round=1, seed=0)
    proposed = SchedulePolicy(families(arch)).propose(observation, 12)
    assert len(proposed) == 12
    for candidate in proposed:
        found = read(write_reply(candidate, observation))
        assert found.source == candidate.source
        assert Candidate.from_source(found.source, candidate.origin).id == candidate.id


@given(st.text(alphabet="`~ab# \n\t", max_size=60))
def test_fences_and_headings_in_a_source_do_not_end_it(text: str) -> None:
    candidate = kernel(1, extra=f"/*\n{text}\n*/\n")
    assert read(write_reply(candidate, FIRST)).source == candidate.source


@pytest.mark.parametrize("hostile", ["\N{RIGHT-TO-LEFT OVERRIDE}", "\N{GRINNING FACE}", "\u2028", "\x85", "\ufeff"])
def test_any_text_in_a_source_comes_back(hostile: str) -> None:
    candidate = kernel(1, extra=f"// {hostile} `````\n")
    assert read(write_reply(candidate, FIRST)).source == candidate.source


def test_a_candidate_that_no_reply_gives_has_none() -> None:
    good = kernel(1)
    assert write_reply(good, FIRST)
    assert write_reply(good.model_copy(update={"flags": ("-G",)}), FIRST) is None
    assert write_reply(good.model_copy(update={"compiler": "nvcc"}), FIRST) is None
    assert write_reply(good.model_copy(update={"source": good.source + "\0\n"}), FIRST) is None
    assert write_reply(good.model_copy(update={"source": good.source.rstrip("\n")}), FIRST) is None, "it would gain a line end"
    assert write_reply(good.model_copy(update={"source": good.source.replace("cudal2:", "")}), FIRST) is None
    assert write_reply(HostCandidate(source=good.source, origin=Origin(policy="file")), FIRST) is None


def test_the_sentences_are_those_of_the_records() -> None:
    run = RunOfTests()
    assert read(write_reply(kernel(3), run.round(1))).analysis == "There is no kernel for this task yet."
    run.add(run.round(1), kernel(2), measured(8.0))
    observation = run.round(2)
    found = read(write_reply(kernel(3), observation))
    assert found.analysis.splitlines() == [
        f"1 earlier candidates are known. The best kernel is {kernel(2).id[:8]} with 8.00 us.",
        "The diagnosis (timed):",
        "1. tail-wave (up to 25% of the time): 2 waves",
    ]
    assert found.design.splitlines() == [
        "Schedule: family=mma_sync block_m=67 stages=3.",
        "Changed from the best kernel: block_m 66 to 67.",
    ]
    silent = observation.model_copy(update={"diagnosis": Diagnosis(basis="static", findings=(), roofline_fraction=0.5)})
    last = read(write_reply(kernel(3), silent)).analysis.splitlines()[-1]
    assert last == "The diagnosis (static, 50% of the roofline): no bottleneck stands out."
    unproved = observation.model_copy(update={"best": None, "diagnosis": None})
    assert read(write_reply(kernel(3), unproved)).analysis == "1 earlier candidates are known. None of them is verified."
