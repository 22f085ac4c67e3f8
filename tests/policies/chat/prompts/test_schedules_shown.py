"""What a prompt says of schedules: families, axes and examples from the spaces; short enough for a small context."""

import json
import re
from typing import Any

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Attempt, Observation, Precedent
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.prompts.schedules import EXAMPLES, SHOWN_ATTEMPTS, PromptedReplies, ScheduleAdvice
from cudal2_agent.policies.chat.tokens import chars_of
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from tests.policies.chat.conversing import candidate

SHAPES = ((64, 128, 2048), (512, 512, 16384), (4096, 4096, 2048), (16384, 16384, 512), (1000, 1001, 999))
CONTEXT_TOKENS, REPLY_TOKENS = 4096, 512


def observe(shape: tuple[int, int, int] = SHAPES[0], **changes: object) -> Observation:
    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A)
    return Observation.model_validate({"task": task, "chip": REFERENCE_CHIPS[task.arch], "round": 1, "seed": 0, **changes})


def texts(kind: str | None, seen: Observation, tokens: int = 24_000) -> tuple[str, str]:
    replies = PromptedReplies(kind, 4) if kind else None  # type: ignore[arg-type]
    system, user = (
        Prompts(tokens, [("cudal2/x.cuh", "// A primitive.\n")], replies).first(seen, Assignment(0, None, ())).prompt.messages
    )
    return system.content, user.content


def attempts(seen: Observation) -> tuple[Attempt, ...]:
    """Thirty attempts with a schedule, of which the first ten failed, and one kernel without."""
    schedules = schedules_for(seen.task, seen.chip)
    found = []
    for number, one in enumerate(schedules.best(30)):
        made = schedules.expand(one.values)
        assert isinstance(made, Candidate)
        status, time_us = ("wrong", None) if number < 10 else ("measured", 100.0 - number)
        found.append(Attempt(candidate_id=made.id, policy="chat", schedule=dict(one.values), status=status, time_us=time_us))
    return (*found, Attempt(candidate_id="free", policy="chat", schedule=None, status="measured", time_us=50.0))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_for_schedules_leaves_room_in_a_small_context(shape: tuple[int, int, int]) -> None:
    finding = Finding(bottleneck="memory-latency", weight=0.5, evidence="it waits " * 40, remedy="more stages " * 40)
    seen = observe(shape)
    diagnosis = Diagnosis(basis="timed", findings=(finding,) * 4, roofline_fraction=0.5)
    seen = seen.model_copy(update={"attempts": attempts(seen), "diagnosis": diagnosis, "best": candidate(3)})
    prompt = Prompts(2500, [], PromptedReplies("schedule", 4)).first(seen, Assignment(0, None, ())).prompt
    assert chars_of(prompt) <= 8000
    assert chars_of(prompt) / 2.3 < CONTEXT_TOKENS - REPLY_TOKENS  # even where a token has few characters
    assert "extern" not in prompt.messages[1].content


def test_the_axes_and_examples_are_those_of_the_spaces() -> None:
    seen = observe()
    schedules = schedules_for(seen.task, seen.chip)
    _, user = texts("schedule", seen)
    for name, family in schedules.families.items():
        assert f"`{name}`: " in user
        for axis, values in family.choices.items():
            if values != (False, True):
                assert f"- {axis}: {', '.join(map(json.dumps, values))}\n" in user
    examples = re.findall(r"^([\d.]+) us (\{.*\})$", user, re.MULTILINE)
    assert len(examples) == EXAMPLES
    for time_us, example in examples:
        made = schedules.expand(json.loads(example))
        assert isinstance(made, Candidate)
        family = schedules.families[str((made.origin.schedule or {})["family"])]
        found = next(one for one in family.ranked if one.values == made.origin.schedule)
        assert f"{found.predicted_us:.2f}" == time_us
    assert "Predicted by the analytic prior" in user


class Reversed:
    """A prior that predicts the reverse of the analytic one."""

    name = "h200"

    def predict_us(self, entries: Any, task: GemmTask, chip: Any) -> Any:
        return 1000.0 / ANALYTIC.predict_us(entries, task, chip)


@pytest.mark.parametrize("kind", ["any", "schedule"])
def test_the_best_schedules_are_those_of_the_runs_prior(kind: Any) -> None:
    seen = observe()
    schedules, reverse = schedules_for(seen.task, seen.chip), Reversed()
    advice = ScheduleAdvice(prior_of=lambda *_: reverse)  # type: ignore[arg-type,return-value]
    [_, user] = (
        Prompts(24_000, [], PromptedReplies(kind, 4), advice=advice).first(seen, Assignment(0, None, ())).prompt.messages
    )
    assert "Predicted by the h200 prior" in user.content
    told = [float(us) for us in re.findall(r"^([\d.]+) us \{", user.content, re.MULTILINE)]
    slowest = max(one.predicted_us for family in schedules.families.values() for one in family.ranked)
    assert told[0] == pytest.approx(1000 / slowest, abs=0.01)
    assert "Measured on this chip" not in user.content


def test_what_led_earlier_runs_is_told_with_its_shape_and_what_cublas_took_on_this_one() -> None:
    seen = observe()
    schedules = schedules_for(seen.task, seen.chip)
    one, two = (entry.values for entry in schedules.best(2))
    near = seen.task.model_copy(update={"k": 4096})
    found = [
        Precedent(run_id="r", task=near, schedule=two, speedup=1.25, baseline_us=9.0),
        Precedent(run_id="r", task=seen.task, schedule=one, speedup=1.5, baseline_us=5.31),
        Precedent(run_id="r", task=near, schedule={"family": "gone"}, speedup=2.0),
    ]
    advice = ScheduleAdvice(precedents=lambda *_: found)
    [_, user] = (
        Prompts(24_000, [], PromptedReplies("any", 4), advice=advice).first(seen, Assignment(0, None, ())).prompt.messages
    )
    lines = re.findall(r"^([\d.]+) at (\S+) (\{.*\})$", user.content, re.MULTILINE)
    assert [line[:2] for line in lines] == [("1.250", near.shape), ("1.500", seen.task.shape)]
    made = schedules.expand(json.loads(lines[1][2]))
    assert isinstance(made, Candidate)
    assert made.origin.schedule == one
    assert "cuBLASLt-AutoTuning, which is to be beaten, took 5.31 us on this shape there." in user.content


def test_what_was_tried_is_shown_fastest_first_and_can_be_named_again() -> None:
    seen = observe()
    seen = seen.model_copy(update={"attempts": attempts(seen)})
    _, user = texts("schedule", seen)
    lines = user.partition("# What was tried")[2].split("```")[1].splitlines()[1:]
    assert len(lines) == SHOWN_ATTEMPTS
    assert lines[0] == "50.00 us measured: a kernel without a schedule"
    assert lines[1].startswith("71.00 us measured: {")
    made = schedules_for(seen.task, seen.chip).expand(json.loads(lines[1].partition(": ")[2]))
    assert isinstance(made, Candidate)
    assert made.id == seen.attempts[29].candidate_id


def test_each_kind_of_run_teaches_its_forms() -> None:
    seen = observe()
    whole_system, whole_user = texts(None, seen)
    assert "no diff" in whole_system
    for kind, has_schedules in (("source", False), ("any", True)):
        system, user = texts(kind, seen)
        assert "A patch of the kernel shown" not in system, "no kernel is shown yet"
        assert "A patch of the kernel shown" in texts(kind, observe(best=candidate(5)))[0]
        assert ("Schedules of the kernel families" in system) == ("# Kernel families" in user) == has_schedules
        assert "Answer in one of the forms given." in user
    assert "Answer in the form given" in whole_user
    assert len(texts("any", seen)[1]) - len(texts("source", seen)[1]) < 3000
    assert "`splits`: parts of K summed through the workspace." in texts("schedule", seen)[1]
    assert "`splits`: parts of K" not in texts("any", seen)[1]


def test_a_repair_shows_no_families() -> None:
    failure = {
        "candidate": candidate(5),
        "evaluation": {"status": "rejected", "rule": "include", "message": "no"},
        "repairs": 0,
    }
    seen = observe(failures=(failure,))
    prompt = Prompts(24_000, [], PromptedReplies("any", 4)).first(seen, Assignment(0, seen.failures[0], ())).prompt
    assert "# Kernel families" not in prompt.messages[1].content
    assert "a patch is against this kernel" in prompt.messages[1].content
