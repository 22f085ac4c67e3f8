"""The rows of each format: who is in, who is paired with whom, labels, groups and advantages."""

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation
from cudal2_agent.contract.records.trajectory import Exemplar, Trajectory
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.exports.columns import columns_of, hub_features
from cudal2_agent.policies.exports.counts import REASONS, ExportCounts
from cudal2_agent.policies.exports.formats import FORMATS, ExportOptions, Row, clipped_z, leave_one_out
from tests.doubles import CHIP, ENVIRONMENT, TASK, measured, unmeasured
from tests.policies.exports.runs import PROMPTS, RunOfTests, attempt, kernel, searched
from tests.policies.exports.test_samples import ELSEWHERE, elsewhere

FAILED = CompileFailed(message="line 1", log="")
NEEDS_REWARD = ("preference", "kto", "groups", "contrastive")


def rows(name: str, trajectory: Trajectory, counts: ExportCounts | None = None, **options: object) -> list[Row]:
    made: Iterator[Row] = FORMATS[name](trajectory, PROMPTS, ExportOptions.model_validate(options), counts or ExportCounts())
    return list(made)


def one_round(*evaluations: Evaluation) -> RunOfTests:
    run = RunOfTests()
    observation = run.round(1)
    for number, evaluation in enumerate(evaluations):
        run.add(observation, kernel(number), evaluation)
    return run


def numbers(found: list[Row], name: str = "provenance") -> list[int]:
    return [row[name]["index"] for row in found]


@pytest.mark.parametrize("name", FORMATS)
def test_the_rows_have_the_columns_that_are_declared(name: str) -> None:
    for options in (ExportOptions(), ExportOptions(messages=True)):
        made = list(FORMATS[name](searched(), PROMPTS, options, ExportCounts()))
        assert made
        declared = columns_of(name, options)
        for row in made:
            assert list(row) == list(declared)
            for column in ("provenance", "chosen_provenance", "rejected_provenance"):
                held = row.get(column)
                for one in held if isinstance(held, list) else [held] if held else []:
                    [struct] = declared[column] if isinstance(held, list) else [declared[column]]
                    assert list(one) == list(struct)
        assert [feature["name"] for feature in hub_features(declared)] == list(declared)


def test_supervised_rows_are_verified_and_fast_enough() -> None:
    run = one_round(measured(5.0), measured(12.5), FAILED, unmeasured(3.0), unmeasured(3.0, "emulator"))
    assert numbers(rows("sft", run.trajectory)) == [0, 1, 4]
    assert numbers(rows("sft", run.trajectory, min_speedup=1.0)) == [0]
    assert numbers(rows("sft", run.trajectory, min_speedup=0.8)) == [0, 1]
    [row, *_] = rows("sft", run.trajectory)
    [said] = rows("sft", run.trajectory, messages=True)[:1]
    assert [turn["role"] for turn in row["prompt"]] == ["system", "user"]
    assert said["messages"] == row["prompt"] + row["completion"]
    assert (row["shape"], row["outcome"], row["speedup"]) == ("256x256x256", "measured", 2.0)


def test_the_better_half_is_paired_with_the_worse_half() -> None:
    run = one_round(measured(8.0), measured(5.0), FAILED, measured(20.0), measured(8.01))
    pairs = rows("preference", run.trajectory)
    assert numbers(pairs, "chosen_provenance") == [1, 0]
    assert numbers(pairs, "rejected_provenance") == [3, 2]
    assert all(pair["chosen_reward"] > pair["rejected_reward"] for pair in pairs)
    assert pairs[0]["chosen"][0]["role"] == pairs[0]["rejected"][0]["role"] == "assistant"
    assert kernel(1).source in pairs[0]["chosen"][0]["content"]
    assert kernel(3).source in pairs[0]["rejected"][0]["content"]


def test_a_pair_has_a_clear_margin_and_something_verified() -> None:
    assert rows("preference", one_round(measured(5.0), measured(5.1)).trajectory) == []
    assert len(rows("preference", one_round(measured(5.0), measured(5.1)).trajectory, margin=0.001)) == 1
    assert rows("preference", one_round(measured(5.0), measured(5.0)).trajectory, margin=0.0) == []
    assert rows("preference", one_round(FAILED, FAILED).trajectory, margin=0.0) == []
    assert rows("preference", one_round(measured(5.0)).trajectory) == []


def test_what_an_older_version_rewarded_and_today_is_an_alarm_is_never_chosen() -> None:
    run = RunOfTests()
    observation = run.round(1)
    run.add(observation, kernel(1), measured(0.0001), reward=1.4)
    run.add(observation, kernel(2), measured(8.0))
    assert rows("preference", run.trajectory) == []
    assert rows("sft", run.trajectory)[0]["provenance"]["index"] == 1


def test_labels_part_at_the_speedup_and_leave_out_what_is_near_it() -> None:
    run = one_round(measured(5.0), measured(10.1), measured(9.9), measured(15.0), FAILED, unmeasured(3.0))
    assert {row["provenance"]["index"]: row["label"] for row in rows("kto", run.trajectory)} == {0: True, 3: False, 4: False}
    strict = rows("kto", run.trajectory, min_speedup=1.5)
    assert {row["provenance"]["index"]: row["label"] for row in strict} == {0: True, 1: False, 2: False, 3: False, 4: False}
    beyond = one_round(measured(0.0001))
    assert [row["label"] for row in rows("kto", beyond.trajectory)] == [False], "faster than the roofline is an alarm"


def test_a_prompt_to_answer_on_line_comes_with_its_task_and_times() -> None:
    run = one_round(measured(5.0), measured(8.0), FAILED)
    [row] = rows("grpo", run.trajectory)
    assert (row["m"], row["n"], row["k"], row["layout"], row["arch"]) == (256, 256, 256, "nn", "sm_90a")
    assert row["roofline_us"] == roofline_us(TASK, CHIP)
    assert (row["baseline_us"], row["best_us"]) == (10.0, 5.0)
    assert row["best_reward"] == run.steps[0].reward
    assert row["mean_reward"] == pytest.approx(sum(step.reward for step in run.steps) / 3)
    assert row["environment"] == ENVIRONMENT.key
    [unknown] = rows("grpo", one_round(unmeasured(3.0)).trajectory)
    assert (unknown["baseline_us"], unknown["best_reward"], unknown["mean_reward"]) == (None, None, None)


def test_a_group_holds_all_answers_with_rewards_and_advantages() -> None:
    run = one_round(measured(5.0), measured(8.0), unmeasured(1.0), FAILED)
    counts = ExportCounts()
    [row] = rows("groups", run.trajectory, counts)
    rewards = [step.reward for step in run.steps if step.reward is not None]
    assert row["rewards"] == rewards
    assert rewards[-1] == FLOOR
    assert len(row["completions"]) == len(row["gap_closed"]) == len(row["provenance"]) == len(row["outcomes"]) == 3
    assert row["advantages"][0] == pytest.approx(rewards[0] - (rewards[1] + rewards[2]) / 2)
    assert counts.left_out["withheld"] == 1
    assert rows("groups", one_round(measured(5.0), measured(5.0)).trajectory) == []
    assert rows("groups", one_round(measured(5.0)).trajectory) == []


@pytest.mark.parametrize("name", NEEDS_REWARD)
def test_a_withheld_reward_is_in_no_format_that_needs_one(name: str) -> None:
    """Nothing measured, and a model's kernels without a witness: neither good nor bad nor 0."""
    run = RunOfTests()
    for number in (1, 2):
        observation = run.round(number)
        for sample in range(3):
            written = kernel(10 * number + sample, policy="chat")
            run.add(observation, written, measured(5.0 + sample) if sample else unmeasured(2.0))
            run.ask(observation, written, f"reply {number} {sample}")
    assert all(step.reward is None for step in run.steps)
    assert rows(name, run.trajectory) == []
    assert rows("sft", run.trajectory) == []


@pytest.mark.parametrize("name", ["preference", "groups"])
def test_two_environments_are_never_compared(name: str) -> None:
    apart = one_round(measured(5.0), elsewhere(9.0))
    assert rows(name, apart.trajectory) == []
    run = one_round(measured(5.0), measured(8.0), elsewhere(20.0), elsewhere(30.0), FAILED)
    for row in rows(name, run.trajectory):
        found = row["provenance"] if name == "groups" else [row["chosen_provenance"], row["rejected_provenance"]]
        assert len({one["environment"] for one in found}) == 1
    places = {one["environment"] for row in rows("groups", run.trajectory) for one in row["provenance"]}
    assert places == {ENVIRONMENT.key, ELSEWHERE.key}


def test_contrast_is_drawn_from_earlier_steps_of_other_buckets() -> None:
    trajectory = searched()
    first_round = {step.candidate.id for step in trajectory.steps if step.round == 1}
    made = rows("contrastive", trajectory)
    assert [row["provenance"]["round"] for row in made] == [2] * 4, "the first round has nothing to show"
    for row in made:
        assert set(row["exemplars"]) <= first_round
        assert row["buckets"][0] > row["buckets"][1]
        shown = row["prompt"][1]["content"]
        assert all(f"candidate {name[:8]}, " in shown for name in row["exemplars"])
        assert shown.count("speedup") >= 2
        assert row["provenance"]["candidate_id"] not in row["exemplars"]


def test_contrast_of_a_model_is_what_it_was_shown() -> None:
    run = RunOfTests()
    first = run.round(1)
    shown = [run.add(first, kernel(number), measured(time_us)) for number, time_us in ((1, 5.0), (2, 9.0))]
    exemplars = tuple(Exemplar(candidate=s.candidate, attempt=attempt(s), bucket=n) for n, s in enumerate(shown))
    second = run.round(2, exemplars=exemplars)
    ids = tuple(step.candidate.id for step in shown)
    for number, seen in ((3, ids), (4, ids[:1]), (5, None)):
        written = kernel(number, policy="chat")
        written = written.model_copy(update={"origin": written.origin.model_copy(update={"exemplar_ids": seen})})
        run.add(second, written, FAILED)
        run.ask(second, written, f"reply {number}", text=f"prompt {number}")
    [row] = [row for row in rows("contrastive", run.trajectory) if row["provenance"]["policy"] == "chat"]
    assert (row["prompt"][1]["content"], row["exemplars"], row["buckets"]) == ("prompt 3", list(ids), [0, 1])


def test_contrast_of_another_environment_is_not_shown() -> None:
    run = RunOfTests()
    first = run.round(1)
    for number, time_us in enumerate((5.0, 9.0, 15.0, 25.0)):
        run.add(first, kernel(number), measured(time_us))
    here = [kernel(number).id for number in range(10, 14)]
    second = run.round(2)
    for number, time_us in enumerate((4.5, 7.0, 12.0, 20.0), 10):
        run.add(second, kernel(number), elsewhere(time_us))
    for number in (3, 4, 5):
        run.add(run.round(number), kernel(10 * number), elsewhere(4.0))
    made = rows("contrastive", run.trajectory)
    assert [row["provenance"]["round"] for row in made] == [3, 4, 5], "round 2 has only kernels of another environment"
    assert all(set(row["exemplars"]) <= {*here, kernel(30).id, kernel(40).id} for row in made)


def test_a_model_that_was_shown_times_of_another_environment_is_left_out() -> None:
    run = RunOfTests()
    first = run.round(1)
    shown = [run.add(first, kernel(number), measured(time_us)) for number, time_us in ((1, 5.0), (2, 9.0))]
    exemplars = tuple(Exemplar(candidate=s.candidate, attempt=attempt(s), bucket=n) for n, s in enumerate(shown))
    second = run.round(2, exemplars=exemplars)
    for number, evaluation in ((3, measured(4.0)), (4, elsewhere(4.0))):
        written = kernel(number, policy="chat")
        seen = {"exemplar_ids": tuple(step.candidate.id for step in shown)}
        written = written.model_copy(update={"origin": written.origin.model_copy(update=seen)})
        run.add(second, written, evaluation, reward=0.5)
        run.ask(second, written, f"reply {number}")
    assert numbers(rows("contrastive", run.trajectory)) == [2]


def test_leave_one_out_and_clipped_z() -> None:
    assert leave_one_out([1.0, 0.0, -1.0]) == [1.5, 0.0, -1.5]
    assert clipped_z([1.0, 1.0]) == [0.0, 0.0]
    assert clipped_z([0.0] * 9 + [10.0])[-1] == 1.5
    assert clipped_z([1.0, -1.0]) == [1.0, -1.0]


@given(st.lists(st.floats(-2, 1.5), min_size=2, max_size=12))
def test_advantages_sum_to_zero_and_keep_the_order(rewards: list[float]) -> None:
    alone, z = leave_one_out(rewards), clipped_z(rewards)
    assert math.isclose(sum(alone), 0.0, abs_tol=1e-9)
    assert all(-1.5 <= value <= 1.5 for value in z)
    best = max(range(len(rewards)), key=rewards.__getitem__)
    assert alone[best] == max(alone)
    assert z[best] == pytest.approx(max(z))


@pytest.mark.parametrize("name", FORMATS)
def test_every_candidate_is_in_a_row_or_counted_with_its_reason(name: str) -> None:
    run = RunOfTests()
    for number in (1, 2):
        observation = run.round(number)
        for position, evaluation in enumerate((measured(5.0), measured(8.0), measured(9.9), unmeasured(7.0), FAILED)):
            run.add(observation, kernel(10 * number + position), evaluation)
        run.add(observation, kernel(10 * number + 9).model_copy(update={"flags": ("-DX",)}), FAILED)
    counts = ExportCounts()
    made = rows(name, run.trajectory, counts, **({"min_speedup": 1.2} if name == "sft" else {}))
    assert made or name == "contrastive"  # of which no kernel of a second bucket was shown
    in_rows = {
        "preference": 2 * len(made),
        "groups": sum(len(row.get("completions", ())) for row in made),
        "grpo": 12 - counts.left_out["unwritable"] - counts.left_out["measured_again"] - counts.left_out["unseen"],
    }.get(name, len(made))
    assert in_rows + counts.left_out.total() == 12
    assert set(counts.left_out) <= set(REASONS)
    nothing = ExportCounts()
    assert rows(name, run.trajectory.model_copy(update={"steps": ()}), nothing) == []
    assert nothing.left_out.total() == 0
