"""Which steps took the lead and what their prompts held, as records and as text that no quoted content can break."""

from collections.abc import Mapping

from cudal2_agent.agent.report.attribution import Improvement, improvements, sightings
from cudal2_agent.agent.report.replies import sum_up
from cudal2_agent.agent.report.why import NO_IMPROVEMENT, why_lines, why_section
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import (
    CompileFailed,
    Evaluation,
    Measured,
    Prediction,
    TestResult,
    Unmeasured,
    Witness,
    Wrong,
)
from cudal2_agent.contract.records.exchange import Exchange, Message, Prompt, Usage
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from cudal2_agent.contract.records.profile import Difference
from cudal2_agent.contract.records.trajectory import Attempt, Exemplar, Observation, Step
from tests.doubles import CHIP, INSPECTION, NOW, OBSERVATION, TASK, candidate, measured, step, unmeasured

BROKEN = CompileFailed(message="expected ';'", log="")
FLOOR = Unmeasured(
    verified_by="nothing", prediction=Prediction(predicted_us=1.5, model="roofline", floor_us=1.5), inspection=INSPECTION
)
FINDINGS = tuple(
    Finding(bottleneck=name, evidence="it shows", remedy="mend it", weight=1.0)
    for name in ("tail-wave", "spills", "occupancy", "idle-sms")
)


def chunk(number: int) -> Chunk:
    return Chunk(
        release="r", path=f"{number}.h", start_line=1, end_line=9, symbol=f"symbol_{number}", kind="class", text=str(number)
    )


def exemplar(number: int) -> Exemplar:
    one = candidate(number)
    attempt = Attempt(candidate_id=one.id, policy="p", schedule=None, status="measured", time_us=30.0, speedup=0.5)
    return Exemplar(candidate=one, attempt=attempt, bucket=number)


SHOWN = OBSERVATION.model_copy(
    update={
        "hits": tuple(Hit(chunk=chunk(n), score=1.0) for n in range(3)),
        "exemplars": (exemplar(90), exemplar(91)),
        "diagnosis": Diagnosis(basis="counters", findings=FINDINGS),
        "diagnosed": candidate(0).id,
        "differences": (Difference(quantity="l2", before=1.0, after=2.0, unit="%", meaning="more from L2"),),
    }
)
OBSERVATIONS: Mapping[str, Observation] = {OBSERVATION.id: OBSERVATION, SHOWN.id: SHOWN}


def written(number: int, *parents: Candidate, **changes: object) -> Candidate:
    """A candidate that a model wrote after a prompt with chunk 1."""
    fields = {"policy": "chat", "parents": tuple(one.id for one in parents), "chunk_ids": (chunk(1).id,), "prompt_hash": "pp"}
    return candidate(number).model_copy(update={"origin": Origin.model_validate({**fields, **changes})})


def after(index: int, new: Candidate, evaluation: Evaluation) -> Step:
    """A step whose prompt held every kind of context; the emulator confirmed the measured candidate."""
    if isinstance(evaluation, Measured):
        evaluation = evaluation.model_copy(update={"witness": Witness(status="agreed")})
    return step(index, candidate=new, evaluation=evaluation, observation_id=SHOWN.id, round=2)


def found(*steps: Step) -> list[Improvement]:
    return improvements(steps, OBSERVATIONS, TASK, CHIP)


def test_the_fastest_prediction_of_a_right_kernel_leads_however_close() -> None:
    evaluations = (
        unmeasured(9.0, "emulator"),
        unmeasured(8.9, "emulator"),
        unmeasured(5.0),
        unmeasured(8.0, "emulator"),
        unmeasured(8.5, "emulator"),
    )
    better = found(*(step(n, n, evaluation=each) for n, each in enumerate(evaluations)))
    assert [(one.index, one.before_us, one.after_us, one.measured) for one in better] == [
        (0, None, 9.0, False),
        (1, 9.0, 8.9, False),
        (3, 8.9, 8.0, False),
    ]


def test_only_what_took_the_lead_is_an_improvement() -> None:
    times_us = (9.0, 10.0, 8.0, 8.0, 5.0)
    better = found(*(step(n, n, evaluation=measured(us)) for n, us in enumerate(times_us)), step(5, 5, evaluation=BROKEN))
    assert [(one.index, one.before_us, one.after_us) for one in better] == [(0, None, 9.0), (2, 9.0, 8.0), (4, 8.0, 5.0)]
    assert [one.ratio for one in better] == [None, 9.0 / 8.0, 8.0 / 5.0]
    assert all(one.measured for one in better)


def test_measuring_again_is_no_improvement_and_failing_then_undoes_it() -> None:
    wrong = TestResult(tier="again", name="fresh", passed=False)
    late = Wrong(test=wrong, tests=(wrong,), inspection=INSPECTION)
    first, second = step(0, 0, evaluation=measured(9.0)), step(1, 1, evaluation=measured(5.0))
    assert [one.index for one in found(first, second, step(2, 0, evaluation=measured(3.0)))] == [0, 1]
    assert [one.index for one in found(first, second, step(2, 1, evaluation=late))] == [0]


def test_a_time_beyond_the_roofline_is_no_improvement() -> None:
    assert [one.index for one in found(step(0, 0, evaluation=measured(9.0)), step(1, 1, evaluation=measured(1e-6)))] == [0]


def test_predictions_count_only_where_nothing_was_measured_and_floors_never() -> None:
    steps = [step(0, 0, evaluation=unmeasured(9.0)), step(1, 1, evaluation=FLOOR), step(2, 2, evaluation=unmeasured(8.0))]
    better = found(*steps)
    assert [(one.index, one.measured) for one in better] == [(0, False), (2, False)]
    assert [(one.index, one.measured) for one in found(*steps, step(3, 3, evaluation=measured(50.0)))] == [(3, True)]
    assert "8.00 us predicted; 9.00 us before" in why_lines(better, [], None)[-1]


def test_what_an_author_saw() -> None:
    best = candidate(0)
    start = step(0, candidate=best, evaluation=measured(9.0))
    new = written(1, best, exemplar_ids=(candidate(91).id,), note="whole waves")
    seen = found(start, after(1, new, measured(5.0)))[1].seen
    assert [one.symbol for one in seen.chunks] == ["symbol_1"]
    assert [(one.candidate_id, one.speedup) for one in seen.exemplars] == [(candidate(91).id, 0.5)]
    assert seen.diagnosed == best.id
    assert seen.diagnosis is not None
    assert [finding.bottleneck for finding in seen.diagnosis.findings] == ["tail-wave", "spills", "occupancy"]
    assert seen.differences == SHOWN.differences
    assert seen.repaired == ()


def test_exemplars_are_those_offered_where_the_policy_did_not_say_and_none_for_a_schedule() -> None:
    assert len(found(after(0, written(1), measured(5.0)))[0].seen.exemplars) == 2
    assert found(after(0, written(1, exemplar_ids=()), measured(5.0)))[0].seen.exemplars == ()
    assert found(after(0, candidate(1), measured(5.0)))[0].seen.exemplars == ()


def test_a_repair_was_shown_the_failure_and_no_diagnosis() -> None:
    broken = written(1)
    better = found(step(0, evaluation=measured(9.0)), after(1, broken, BROKEN), after(2, written(2, broken), measured(5.0)))
    seen = better[1].seen
    assert seen.repaired == (f"{broken.id[:8]}, compile failed: expected ';'",)
    assert (seen.diagnosis, seen.diagnosed, seen.exemplars, seen.differences) == (None, None, (), ())


def test_a_parent_that_came_later_or_nowhere_is_no_repair() -> None:
    later = written(3)
    new = written(2, later, written(77))
    assert found(after(0, new, measured(5.0)), after(1, later, BROKEN))[0].seen.repaired == ()


def test_what_stood_in_prompts_is_counted_for_both_outcomes() -> None:
    steps = [
        step(0, evaluation=measured(9.0)),  # a schedule: its prompt is empty
        after(1, written(1, exemplar_ids=(candidate(90).id,)), measured(5.0)),
        after(2, written(2, exemplar_ids=(candidate(91).id,)), measured(7.0)),
        after(3, written(3, exemplar_ids=()), BROKEN),
        after(4, written(1), measured(5.1)),  # measured again: counts once
    ]
    counted = {
        (one.kind, one.name.split()[-1]): (one.improved, one.others) for one in sightings(steps, OBSERVATIONS, found(*steps))
    }
    assert counted["chunk", "symbol_1"] == (1, 2)
    assert counted["finding", "tail-wave"] == (1, 2)
    assert counted["exemplar", "number=90"] == (1, 0)
    assert counted["exemplar", "number=91"] == (0, 1)
    assert ("chunk", "symbol_0") not in counted


def test_without_prompts_nothing_is_counted() -> None:
    steps = [after(0, candidate(0), measured(5.0))]
    assert sightings(steps, OBSERVATIONS, found(*steps)) == []


def test_records_survive_a_round_trip() -> None:
    [one] = found(after(0, written(1, note="x"), measured(5.0)))
    assert Improvement.model_validate_json(one.model_dump_json()) == one


def test_the_text_tells_all_of_it() -> None:
    best = candidate(0)
    steps = [step(0, candidate=best, evaluation=measured(9.0)), after(1, written(1, best, note="whole waves"), measured(5.0))]
    better = found(*steps)
    text = "\n".join(why_lines(better, sightings(steps, OBSERVATIONS, better), None))
    for part in (
        "step 0, round 1",
        "the first that passed",
        "5.00 us measured; 9.00 us before, 1.800x",
        "design: whole waves",
        f"written from: {best.id[:8]}",
        f"diagnosis of {best.id[:8]} (counters): tail-wave: it shows (mend it)",
        "profile: l2 1 → 2 %, more from L2",
        "30.00 us, 0.500x cuBLASLt-AutoTuning",
        "chunk: r 1.h:1-9 symbol_1",
        "prompt: pp",
        "improved  1, others   0  chunk r 1.h:1-9 symbol_1",
    ):
        assert part in text


def test_a_schedule_is_not_said_to_have_read_what_was_looked_up() -> None:
    origin = Origin(policy="schedule", schedule={"family": "f"}, chunk_ids=(chunk(1).id,))
    text = "\n".join(why_lines(found(after(0, candidate(0).model_copy(update={"origin": origin}), measured(5.0))), [], None))
    assert "chunks found in its round, read by no model: 1" in text
    assert "symbol_1" not in text


def test_nothing_passed() -> None:
    assert why_lines(found(step(0, evaluation=BROKEN)), [], None) == [NO_IMPROVEMENT]
    assert why_section([]) == ""
    assert found() == []


def test_what_a_model_says_breaks_neither_terminal_nor_report() -> None:
    note = "\x1b[2Jgone\r\n\n# Result\n<img src=x> `code` [link](http://x) " + "long " * 200
    better = found(after(0, written(1, note=note), measured(5.0)))
    lines = why_lines(better, [], None)
    assert all(c.isprintable() for line in lines for c in line)
    section = why_section(better)
    [design] = [line for line in section.splitlines() if "design" in line]
    assert design.startswith("  - design: `")
    assert design.endswith("…`")
    assert design.count("`") == 2
    assert "\x1b" not in section
    assert [line for line in section.splitlines() if line.startswith("#")] == ["## Why"]


def exchange(sample: int, problem: str = "", status: str = "complete", counted: str = "server", turn: int = 0) -> Exchange:
    return Exchange.model_validate(
        {
            "round": 1,
            "sample": sample,
            "turn": turn,
            "observation_id": "o",
            "prompt": Prompt(messages=(Message(role="user", content="write"),)),
            "model": "m",
            "parameters": {},
            "status": status,
            "reply": "",
            "problem": problem,
            "candidate_id": None if problem or status != "complete" else f"c{sample}",
            "usage": Usage.model_validate({"prompt_tokens": 100, "completion_tokens": 10, "counted": counted}),
            "cost": 0.25,
            "seconds": 2.0,
            "created_at": NOW,
        }
    )


def test_replies_are_summed_up_by_reason() -> None:
    replies = sum_up(
        [
            exchange(0),
            exchange(1, "no code block: the reply has prose only"),
            exchange(1, "no code block: nothing", turn=1),
            exchange(2, "the connection broke", "cut", "estimate"),
            exchange(3, status="refused"),
        ],
        {},
    )
    assert replies is not None
    assert (replies.requests, replies.candidates, replies.prompt_tokens, replies.reply_tokens) == (5, 1, 500, 50)
    assert (replies.estimated, replies.cost, replies.models) == (1, 1.25, ("m",))
    assert replies.dropped == {"complete: no code block": 2, "cut: the connection broke": 1, "refused": 1}
    text = "\n".join(why_lines([], [], replies))
    assert "requests: 5 to m; candidates: 1" in text
    assert "50 in replies (of 1 by estimate); cost 1.25" in text
    assert "dropped   2: complete: no code block" in text


def test_what_was_cited_of_what_was_shown_is_counted() -> None:
    asked = exchange(0).model_copy(update={"reply": "As [K1] says.", "shown": ("a", "b", "c"), "cited": ("a",)})
    unanswered = exchange(1, status="failed").model_copy(update={"shown": ("a", "b")})
    replies = sum_up([asked, unanswered], {"o": Observation(task=TASK, chip=CHIP, round=1, seed=0)})
    assert replies is not None
    assert (replies.shown, replies.cited, replies.used) == (3, 1, 0)
    assert any(
        line.startswith("knowledge: of 3 pieces shown, 1 were cited as used, and 0") for line in why_lines([], [], replies)
    )
    assert not any("knowledge" in line for line in why_lines([], [], sum_up([exchange(0)], {})))


def test_without_requests_nothing_is_said() -> None:
    assert sum_up([], {}) is None
