"""Examples of the stages from stored searches."""

from pathlib import Path

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.exports.splits import ShapeSplit
from cudal2_agent.policies.lm.compact_prompt import messages_of, reply_of
from cudal2_agent.policies.lm.examples import (
    BEST_OF_RUN,
    STAGES,
    Examples,
    Stage,
    make_examples,
    read_examples,
    stored_searches,
    write_examples,
)
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from cudal2_agent.store.store import Store, open_store
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS, record_search, search

SEARCHES = [search(task, f"run-{number}") for number, task in enumerate(TASKS)]


def examples(stage: Stage, split: ShapeSplit | None = None, seed: int = 0) -> Examples:
    return make_examples(SEARCHES, [stage], split or ShapeSplit(), seed, ignore)[stage]


def test_supervised_examples_are_the_best_of_each_run() -> None:
    made = examples("sft")
    for task, found in zip(TASKS, SEARCHES, strict=True):
        schedules = schedules_for(task, CHIP)
        rows = [one for one in made.examples if one.task == task]
        assert [row.prompt for row in rows] == [messages_of(schedules)]
        assert [row.completion for row in rows] == [reply_of(schedules, found.scored[0].values)]
    assert (made.counts.runs, made.counts.shapes, made.counts.examples) == (2, 2, 2)


def test_schedules_within_noise_of_the_best_count_as_best() -> None:
    alike = [one._replace(reward=0.3) for one in SEARCHES[0].scored]
    made = make_examples([SEARCHES[0]._replace(scored=tuple(alike))], ["sft"], ShapeSplit(), 0, ignore)["sft"]
    assert len(made.examples) == BEST_OF_RUN


def test_contrastive_examples_show_two_lesser_schedules_of_different_scores() -> None:
    made = examples("contrastive")
    contrasts = [one for one in made.examples if "x: {" in one.prompt[1].content]
    plain = [one for one in made.examples if one not in contrasts]
    assert len(contrasts) >= 4
    assert {(one.prompt, one.completion) for one in plain} == {(one.prompt, one.completion) for one in examples("sft").examples}
    for one in contrasts:
        shown = [line for line in one.prompt[1].content.splitlines() if "x: {" in line]
        scores = [float(line.split("x: ", 1)[0]) for line in shown]
        assert len(set(scores)) == 2
        assert all(line.split("x: ", 1)[1] != one.completion for line in shown)
        assert max(scores) < 1.35, "the best, at 1.35, is the completion"


def test_each_task_is_one_prompt_of_group_relative_optimisation() -> None:
    made = examples("grpo")
    assert sorted(one.task.id for one in made.examples) == sorted(task.id for task in TASKS)
    assert all(one.completion == "" for one in made.examples)


@pytest.mark.parametrize("stage", STAGES)
def test_held_out_shapes_never_occur(stage: Stage) -> None:
    made = examples(stage, ShapeSplit(test_shapes=("64x64x128",)))
    assert {one.task.shape for one in made.examples} == {"64x64x64"}
    assert (made.counts.runs, made.counts.held_out) == (1, 1)


def test_equal_seeds_give_equal_examples_and_others_another_order() -> None:
    assert examples("contrastive") == examples("contrastive")
    assert examples("contrastive").examples != examples("contrastive", seed=1).examples


def test_an_empty_store_and_one_of_held_out_shapes_alone_are_one_line() -> None:
    with pytest.raises(UsageError, match="holds no measured schedule; import a sweep"):
        make_examples([], ["sft"], ShapeSplit(), 0, ignore)
    with pytest.raises(UsageError, match="only shapes that are kept for testing"):
        examples("sft", ShapeSplit(test_share=1.0))


def test_a_schedule_that_no_family_writes_is_counted() -> None:
    first = SEARCHES[0].scored[0]
    gone = first._replace(values={**first.values, "family": "gone"}, reward=0.31)
    searches = [SEARCHES[0]._replace(scored=(gone, *SEARCHES[0].scored))]
    made = make_examples(searches, ["sft"], ShapeSplit(), 0, ignore)["sft"]
    assert made.counts.unwritable == 1
    assert made.counts.examples == 1


def test_examples_are_read_as_written_and_only_for_their_stage_and_axes(tmp_path: Path) -> None:
    made = examples("sft")
    file = tmp_path / "sft.json"
    write_examples(file, made)
    assert read_examples(file, "sft") == made
    with pytest.raises(UsageError, match="stage sft, not grpo"):
        read_examples(file, "grpo")
    write_examples(file, made.model_copy(update={"axes": "0" * 16}))
    with pytest.raises(UsageError, match="other axes than today's"):
        read_examples(file, "sft")
    file.write_text("{}")
    with pytest.raises(UsageError, match="make them again"):
        read_examples(file, "sft")
    with pytest.raises(UsageError, match="No such file"):
        read_examples(tmp_path / "none.json", "sft")


def test_a_store_gives_the_schedules_that_were_measured(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        for one in SEARCHES:
            record_search(store, one)
        read = list(stored_searches(store))
    assert [one.run_id for one in read] == ["run-0", "run-1"]
    for found, written in zip(read, SEARCHES, strict=True):
        assert (found.task, found.chip) == (written.task, written.chip)
        assert [one.values for one in found.scored] == [one.values for one in written.scored]
        assert [one.reward for one in found.scored] == pytest.approx([one.reward for one in written.scored])


def test_failed_and_free_candidates_are_no_examples(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        record_search(store, SEARCHES[0], failed=3)
        assert [len(one.scored) for one in stored_searches(store)] == [len(SEARCHES[0].scored) - 3]


def test_a_run_without_a_measured_schedule_is_no_search(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        record_search(store, SEARCHES[0], failed=len(SEARCHES[0].scored))
        assert _nothing(store)


def _nothing(store: Store) -> bool:
    return list(stored_searches(store)) == []


def test_tasks_of_other_chips_stay_apart() -> None:
    other = SEARCHES[0]._replace(chip=CHIP.model_copy(update={"name": "H100", "sms": 114}))
    made = make_examples([SEARCHES[0], other], ["grpo"], ShapeSplit(), 0, ignore)["grpo"]
    assert {one.prompt[1].content.splitlines()[1].split()[0] for one in made.examples} == {"H200", "H100"}
    assert {one.task for one in made.examples} == {GemmTask(m=64, n=64, k=64)}
