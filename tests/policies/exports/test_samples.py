"""Samples: what was asked and answered, the later evaluation, withheld rewards, environments, provenance."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import CompileFailed, Measured, TestResult, Unmeasured, Witness, Wrong
from cudal2_agent.contract.records.exchange import Message, Prompt, ToolCall
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation, Trajectory
from cudal2_agent.contract.reward.reward import FLOOR, gap_closed
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.replies.forms import KernelFile, read_reply
from cudal2_agent.policies.exports.counts import ExportCounts
from cudal2_agent.policies.exports.samples import TrainingSample, environments, samples_of
from cudal2_agent.policies.exports.schedule_reply import write_reply
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.store.importing import import_files
from cudal2_agent.store.store import open_store
from cudal2_agent.store.sweep.sweep_files import export_sweep
from tests.doubles import CHIP, ENVIRONMENT, INSPECTION, PASSED, measured, unmeasured
from tests.policies.chat.exchanges import prompt
from tests.policies.exports.runs import PROMPTS, RunOfTests, kernel, searched

FAILED = CompileFailed(message="line 1", log="")
ELSEWHERE = ENVIRONMENT.model_copy(update={"driver": "999"})


def samples(trajectory: Trajectory, counts: ExportCounts | None = None) -> list[TrainingSample]:
    return list(samples_of(trajectory, PROMPTS, counts or ExportCounts()))


def elsewhere(time_us: float) -> Measured:
    return measured(time_us).model_copy(update={"environment": ELSEWHERE})


def test_an_exchange_gives_its_own_prompt_and_reply() -> None:
    run = RunOfTests()
    written = kernel(1, policy="chat")
    observation = run.round(1)
    run.add(observation, written, FAILED)
    asked = run.ask(observation, written, "any reply, \N{GRINNING FACE}")
    [sample] = samples(run.trajectory)
    assert (sample.prompt, sample.completion) == (asked.prompt.messages, asked.reply)
    assert (sample.provenance.model, sample.provenance.policy) == ("test", "chat")
    assert sample.provenance.licence == "kernel under the terms of model test"


def test_a_reply_after_tool_calls_is_written_out_behind_the_prompt_before_them() -> None:
    run = RunOfTests()
    written = kernel(1, policy="chat")
    observation = run.round(1)
    run.add(observation, written, FAILED)
    opening = prompt().messages
    called = Message(role="assistant", content="", calls=(ToolCall(id="a", name="verify_kernel", arguments="{}"),))
    told = Message(role="tool", content="k1: it passed", call_id="a")
    run.ask(observation, written, "COMMIT k1", prompt=Prompt(messages=(*opening, called, told)))
    [sample] = samples(run.trajectory)
    assert sample.prompt == opening
    assert written.source in sample.completion
    assert "COMMIT" not in sample.completion


def test_other_policies_get_the_prompt_of_the_chat_policy() -> None:
    run = RunOfTests()
    run.add(run.round(1), kernel(1), measured(5.0))
    observation = run.round(2)
    run.add(observation, kernel(2), measured(4.0))
    _, sample = samples(run.trajectory)
    assert sample.prompt == PROMPTS.first(observation, Assignment(0, None, ())).prompt.messages
    assert kernel(1).source.strip() in sample.prompt[1].content
    assert (sample.provenance.model, sample.provenance.licence) == ("", "kernel Apache-2.0")


def test_a_reply_that_gave_several_candidates_is_one_sample_of_the_best() -> None:
    run = RunOfTests()
    observation = run.round(1)
    three = [kernel(number) for number in (1, 2, 3)]
    for one, evaluation in zip(three, (measured(8.0), measured(5.0), FAILED), strict=True):
        run.add(observation, one, evaluation)
    asked = run.ask(observation, three[0], "three schedules")
    run.exchanges[-1] = asked.model_copy(update={"candidate_ids": tuple(one.id for one in three)})
    counts = ExportCounts()
    [sample] = samples(run.trajectory, counts)
    assert (sample.provenance.candidate_id, sample.completion) == (three[1].id, "three schedules")
    assert counts.left_out["duplicates"] == 2


def test_the_later_evaluation_counts_in_the_place_of_the_first_step() -> None:
    run = RunOfTests()
    observation = run.round(1)
    for number, time_us in ((1, 5.0), (2, 6.0), (1, 8.0)):
        run.add(observation, kernel(number), measured(time_us))
    counts = ExportCounts()
    first, second = samples(run.trajectory, counts)
    assert (first.time_us, second.time_us) == (8.0, 6.0)
    assert first.provenance.index == 2
    assert counts.left_out["measured_again"] == 1


def test_a_time_without_a_witness_has_no_reward_and_is_not_verified() -> None:
    run = RunOfTests()
    observation = run.round(1)
    witness = Witness(status="agreed", tests=(PASSED,))
    proved = measured(5.0).model_copy(update={"witness": witness})
    for number, evaluation in enumerate((measured(5.0), proved, unmeasured(3.0), unmeasured(3.0, "emulator"))):
        written = kernel(number, policy="chat")
        run.add(observation, written, evaluation)
        run.ask(observation, written, f"reply {number}")
    assert [sample.verified for sample in samples(run.trajectory)] == [False, True, False, True]
    assert [sample.reward is None for sample in samples(run.trajectory)] == [True, False, True, True]
    assert [sample.gap_closed is None for sample in samples(run.trajectory)] == [True, False, True, True]


def test_both_rewards_are_withheld_together() -> None:
    run = RunOfTests((4096, 4096, 4096))
    run.add(run.round(1), kernel(1), measured(5000.0, 6000.0), reward=None)
    [sample] = samples(run.trajectory)
    assert (sample.reward, sample.gap_closed, sample.speedup) == (None, None, 1.2)


def test_a_model_needs_another_witness_than_the_gpu() -> None:
    by_gpu = Unmeasured(verified_by="gpu", prediction=unmeasured(3.0).prediction, inspection=INSPECTION)
    run = RunOfTests()
    observation = run.round(1)
    run.add(observation, kernel(1, policy="chat"), by_gpu)
    run.add(observation, kernel(2), by_gpu)
    assert [sample.verified for sample in samples(run.trajectory)] == [False, True]


def test_both_rewards_are_those_of_the_contract() -> None:
    run = RunOfTests((4096, 4096, 4096))
    too_fast, failed = measured(0.001), FAILED
    observation = run.round(1)
    for number, evaluation in enumerate((measured(5000.0, 6000.0), too_fast, failed)):
        run.add(observation, kernel(number), evaluation)
    good, alarm, broken = samples(run.trajectory)
    assert good.gap_closed == gap_closed(measured(5000.0, 6000.0), run.task, CHIP, kernel(0).origin)
    assert good.speedup == 1.2
    assert good.baseline_us == 6000.0
    assert (alarm.reward, alarm.verified) == (FLOOR, False)
    assert (broken.reward, broken.verified, broken.speedup) == (FLOOR, False, None)


def test_a_failure_belongs_to_the_environment_in_which_the_run_was() -> None:
    run = RunOfTests()
    observation = run.round(1)
    refuted = Wrong(
        test=TestResult(tier="witness", name="x", passed=False), tests=(), inspection=INSPECTION, refused=elsewhere(1.0)
    )
    for number, evaluation in enumerate((FAILED, measured(5.0), FAILED, elsewhere(4.0), FAILED, refuted)):
        run.add(observation, kernel(number), evaluation)
    here, there = ENVIRONMENT.key, ELSEWHERE.key
    assert list(environments(run.steps).values()) == [here, here, here, there, there, there]
    assert environments([]) == {}
    unknown = RunOfTests()
    unknown.add(unknown.round(1), kernel(1), FAILED)
    assert environments(unknown.steps) == {0: ""}


def test_the_provenance_says_where_a_sample_comes_from_and_what_it_quotes() -> None:
    run = RunOfTests(versions={"numpy": "2.4"}, settings={"cutlass": "4.2.1"})
    chunk = Chunk(release="cutlass-4.2.1", path="a.h", start_line=1, end_line=2, symbol="x", kind="text", text="template")
    note = chunk.model_copy(update={"release": "notes"})
    mine = chunk.model_copy(update={"release": "mine-1"})
    observation = run.round(1, hits=tuple(Hit(chunk=one, score=1.0) for one in (chunk, note, mine)))
    run.add(observation, kernel(1), measured(5.0))
    [sample] = samples(run.trajectory)
    provenance = sample.provenance
    assert (provenance.run_id, provenance.index, provenance.candidate_id) == ("run-1", 0, kernel(1).id)
    assert (provenance.arch, provenance.chip, provenance.cutlass) == ("sm_90a", CHIP.name, "4.2.1")
    assert provenance.environment == ENVIRONMENT.key
    assert json.loads(provenance.versions) == {"numpy": "2.4"}
    assert provenance.created_at.startswith("2026-11-21T12:00:00.000000")
    quoted = "prompt quotes cutlass-4.2.1 (BSD-3-Clause); prompt quotes mine-1 (its own licence)"
    assert provenance.licence == f"kernel Apache-2.0; {quoted}"


# A kernel without a model in the reply form: its source comes back unchanged, and its sentences come from records.
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


def through_a_sweep(trajectory: Trajectory, tmp_path: Path) -> Trajectory:
    """The trajectory as it is after its export as a sweep and the import of that."""
    export_sweep([trajectory], tmp_path / "a.zst")
    with open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        import_files(store, [str(tmp_path / "a.zst")])
        return store.trajectory(trajectory.run.run_id)


def test_what_a_later_round_of_a_sweep_saw_is_unknown_and_no_prompt_says_otherwise(tmp_path: Path) -> None:
    stored = searched(times_us=(5.0, 8.0, 12.0, 20.0))
    counts = ExportCounts()
    imported = samples(through_a_sweep(stored, tmp_path), counts)
    assert counts.left_out["unseen"] == 4
    before = samples(stored)
    assert len(before) == 8
    assert [sample.prompt for sample in imported] == [sample.prompt for sample in before[:4]]
    assert [sample.completion for sample in imported] == [sample.completion for sample in before[:4]]
    assert all("There is no kernel for this task yet" in sample.completion for sample in imported)
    assert not any("There is no kernel for this task yet" in sample.completion for sample in before[4:])


def test_a_first_round_that_gave_nothing_is_no_round_that_was_not_seen() -> None:
    run = RunOfTests()
    run.add(run.round(3), kernel(1), measured(5.0))
    counts = ExportCounts()
    assert len(samples(run.trajectory, counts)) == 1
    assert counts.left_out["unseen"] == 0
    pruned = run.trajectory.model_copy(update={"steps": (run.steps[0].model_copy(update={"index": 7}),)})
    assert samples(pruned, counts) == []
    assert counts.left_out["unseen"] == 1


def test_the_prompt_of_a_model_is_the_one_that_was_sent_or_none(tmp_path: Path) -> None:
    run = RunOfTests()
    observation = run.round(1)
    asked = run.ask(observation, kernel(1, "chat"), written := f"## Code\n```cuda\n{kernel(1, 'chat').source}```\n")
    origin = kernel(1, "chat").origin.model_copy(update={"prompt_hash": asked.prompt.id})
    run.add(observation, kernel(1, "chat").model_copy(update={"origin": origin}), measured(5.0))
    [sample] = samples(run.trajectory)
    assert (sample.prompt, sample.completion) == (asked.prompt.messages, written)
    counts = ExportCounts()
    (tmp_path / "seen").mkdir()
    [travelled] = samples(through_a_sweep(run.trajectory, tmp_path / "seen"))
    assert (travelled.prompt, travelled.completion) == (asked.prompt.messages, written)
    older = run.trajectory.model_copy(update={"exchanges": ()})  # as a sweep of an older version has it
    assert samples(through_a_sweep(older, tmp_path), counts) == []
    assert counts.left_out["unseen"] == 1
