"""Replies as patches and as schedules: what becomes of each form, how it is resumed and replayed, and its trust."""

import json
from typing import Any

import pytest

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Rejected, TestResult, Wrong
from cudal2_agent.contract.records.exchange import Exchange, Prompt
from cudal2_agent.contract.records.trajectory import Attempt, Failure
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace
from cudal2_agent.policies.chat.server.openai_server import OpenAIServer
from cudal2_agent.policies.chat.server.replay import RecordedFirst, ReplayServer
from cudal2_agent.policies.schedule.families.registry import rewrite
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from tests.doubles import CHIP, INSPECTION, TASK
from tests.doubles.chat_server import ScriptedServer, Text
from tests.policies.chat.conversing import AnsweringServer, MemoryLog, Table, candidate, options, source, written
from tests.sandbox.emulator.modules.graphs import row_softmax

SCHEDULES = schedules_for(TASK, CHIP)
NAMES = list(SCHEDULES.families)
BEST = [SCHEDULES.families[one.schedule.family].brief(one.values) for one in SCHEDULES.best(6)]


def named(*schedules: object, prose: str = "Deep pipelines. And more.") -> str:
    return f"{prose}\n```json\n{json.dumps(schedules)}\n```\n"


def patch(old: str, new: str, name: str = "best") -> str:
    return f"## Design\nOne line. More.\n\n## Code\n```diff\n--- {name}\n+++ {name}\n@@\n-{old}\n+{new}\n```\n"


def of_schedule(position: int = 0) -> Candidate:
    made = SCHEDULES.expand(BEST[position])
    assert isinstance(made, Candidate)
    return made


def failure(number: int) -> Failure:
    return Failure(candidate=candidate(number), evaluation=Rejected(rule="include", message="no", line=2), repairs=0)


def only(reply: str, **changes: Any) -> Table:
    """A table whose server gives this reply first, and a whole file in each later turn."""
    return Table(lambda _, place: reply if place[2] == 0 else written(7), **{"samples": 1, **changes})


def test_a_patch_changes_the_best_kernel() -> None:
    best = candidate(3)
    [made] = only(patch("// kernel 3", "// kernel 4")).propose(best=best)
    assert made.source == source(4)
    assert (made.origin.policy, made.origin.note, made.origin.parents) == ("chat", "One line.", (best.id,))


def test_a_patch_keeps_the_idea_that_the_kernel_began_with() -> None:
    best = candidate(3)
    best = best.model_copy(update={"origin": best.origin.model_copy(update={"note": "K over a cluster of 16."})})
    [first] = only(patch("// kernel 3", "// kernel 4")).propose(best=best)
    assert first.origin.note == "One line; in the kernel whose idea is: K over a cluster of 16."
    [second] = only(patch("// kernel 4", "// kernel 5")).propose(best=first)
    assert second.origin.note == first.origin.note, "of a chain of patches the first idea and the last change"


def test_a_patch_changes_the_failed_kernel_in_a_repair_and_may_name_the_best() -> None:
    seen = {"best": candidate(3), "failures": (failure(5),)}
    [made] = only(patch("// kernel 5", "// kernel 6", "kernel.cu")).propose(**seen)
    assert (made.source, made.origin.parents) == (source(6), (candidate(5).id,))
    [other] = only(patch("// kernel 3", "// kernel 8", "best")).propose(**seen)
    assert (other.source, set(other.origin.parents)) == (source(8), {candidate(5).id, candidate(3).id})


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (patch("// kernel 9", "x"), "hunk 1 does not apply"),
        (patch("// kernel 3", "// kernel 3"), "changes nothing"),
        (patch("// kernel 3", "x", "failed"), "not shown here"),
        (patch(source(3).split("\n", maxsplit=1)[0], "// no plan"), "not whole: no code block has a launch plan"),
        (patch(source(3).split("\n")[2], "// no kernel"), "not whole: the code block with the launch plan has no __global__"),
        (patch(source(3).split("\n", maxsplit=1)[0], '/* cudal2: {"arch": 1} */'), "plan-schema"),
        (named({"family": NAMES[0], "tile": 8}), 'has no axis "tile"'),
        (named(), "the list of schedules is empty"),
        (named(*BEST[:5]), "5 schedules; give at most 4"),
        (named(*[{}] * 3000), "3000 schedules; give at most 4"),
        (named(*[BEST[0]] * 10_000), "characters of at most 100000"),
        (named(7), "a schedule is an object, not 7"),
        ("```json\n{}\n```", "family is missing"),
        ('```json\n{"family": "a", "family": "b"}\n```', '"family" is given twice'),
        ('```json\n{"family": "latency", "block_m": NaN}\n```', "NaN is not a number of JSON"),
        ('```json\n{"family": "latency", "block_m": -Infinity}\n```', "-Infinity is not a number of JSON"),
        ('```json\n{"family": "latency", "block_m": 1e999}\n```', "block_m is Infinity"),
        (f'```json\n{{"family": "latency", "block_m": {"9" * 5000}}}\n```', "a number has too many digits"),
        ('```json\n{"family": "latency", "block_m": \uff16\uff14}\n```', "not JSON: Expecting value"),
        ('```json\n{"family": "latency",}\n```', "not JSON"),
        ('```json\n{"family": "latency"}\n{"family": "latency"}\n```', "several schedules go into one list"),
        (f'```json\n{"[" * 90_000}"family"\n```', "nested too deeply"),
        ('{"family": "latency", "block_m": 7}', "block_m is 7; allowed here"),
        (written(1) + named(BEST[0]), "a whole file and schedules"),
        (patch("// kernel 3", "// 4") + named(BEST[0]), "a patch and schedules"),
    ],
)
def test_a_reply_of_another_form_that_is_wrong_goes_back_with_the_reason(reply: str, said: str) -> None:
    table = only(reply)
    assert [one.source for one in table.propose(best=candidate(3))] == [source(7)]
    first, second = table.log.recorded()
    assert said in first.problem
    assert "\n" not in first.problem
    assert first.candidate_ids == ()
    assert said.replace("`", "'") in second.prompt.messages[-1].content
    assert "A patch has old lines that stand in the kernel shown" in second.prompt.messages[-1].content


def test_there_is_nothing_to_patch_before_the_first_kernel() -> None:
    table = only(patch("a", "b"))
    table.propose()
    assert table.log.recorded()[0].problem == "there is no kernel to patch yet; give the whole file"


def test_schedules_become_candidates_of_the_writers() -> None:
    table = only(named(*BEST[:3]))
    made = table.propose()
    [exchange] = table.log.recorded()
    assert exchange.candidate_ids == tuple(one.id for one in made) == tuple(of_schedule(number).id for number in range(3))
    assert exchange.problem == ""
    assert table.told("replied")[0].candidates == 3
    for one, brief in zip(made, BEST, strict=False):
        origin = one.origin
        assert (origin.policy, origin.note, origin.prompt_hash) == ("chat", "Deep pipelines.", exchange.prompt.id)
        assert origin.trusted_writer
        assert (origin.schedule or {}).items() >= brief.items()


def test_a_reply_that_is_nothing_but_json_needs_no_fence() -> None:
    assert [one.id for one in only(json.dumps(BEST[0])).propose()] == [of_schedule().id]
    assert [one.id for one in only(json.dumps({"schedules": BEST[:2]})).propose()] == [of_schedule(0).id, of_schedule(1).id]


def test_what_can_be_written_counts_and_the_rest_is_told() -> None:
    table = only(named({"family": "none"}, BEST[0], {**BEST[0]}, {"family": NAMES[0], "x": 1}))
    assert [one.id for one in table.propose()] == [of_schedule().id]
    [exchange] = table.log.recorded()
    assert 'schedule 1: family is "none"' in exchange.problem
    assert f"schedule 3: candidate {of_schedule().id} was tried in this reply" in exchange.problem
    assert "schedule 4: " in exchange.problem


def test_schedules_that_were_tried_are_dropped_and_not_sent_back() -> None:
    attempt = Attempt(
        candidate_id=of_schedule().id, policy="schedule", schedule=of_schedule().origin.schedule, status="measured"
    )
    table = only(named(BEST[0]))
    assert table.propose(attempts=(attempt,)) == []
    [exchange] = table.log.recorded()
    assert exchange.problem == f"candidate {of_schedule().id} was tried before"


def test_a_round_takes_the_first_of_each_reply_first() -> None:
    replies = {0: named(*BEST[:3]), 1: named(BEST[0], BEST[3], BEST[4])}
    table = Table(lambda _, place: replies[place[1]], samples=2)
    assert [one.id for one in table.propose(3)] == [of_schedule(number).id for number in (0, 1, 3)]
    first, second = table.log.recorded()
    assert first.candidate_ids == (of_schedule(0).id, of_schedule(1).id)
    assert first.problem == f"candidate {of_schedule(2).id} is beyond the 3 of this round"
    assert second.candidate_ids == (of_schedule(3).id,)
    assert f"candidate {of_schedule(0).id} was written by another reply of this round" in second.problem


def test_a_model_cannot_give_its_own_source_the_trust_of_a_schedule() -> None:
    best = of_schedule()
    line = next(line for line in best.source.split("\n") if line.startswith("#include"))
    forged = [
        patch(line, f"{line}\n+// mine"),
        f"## Code\n```cuda\n{best.source}// mine\n```\n",
        f"## Code\n```cuda\n{best.source.replace('cudal2: {', 'cudal2: {')}\n```\n",
        patch(line, f'{line}\n+// {{"family": "{NAMES[0]}"}}'),
    ]
    for reply in forged:
        [made] = only(reply, replies="any").propose(best=best)
        assert made.id != best.id
        assert made.origin.schedule is None
        assert not made.origin.trusted_writer
    in_plan = best.source.replace("cudal2: {", f'cudal2: {{"schedule": {json.dumps(BEST[0])}, ', 1)
    table = only(f"```cuda\n{in_plan}```\n", turns=0)
    assert table.propose(best=best) == []
    assert "plan-schema" in table.log.recorded()[0].problem
    [exact] = only(f"```cuda\n{best.source}```\n").propose()
    assert exact.id == best.id
    assert not exact.origin.trusted_writer
    for made in only(named(*BEST[:4])).propose():
        again = rewrite(made, TASK)
        assert again is not None
        assert again.source == made.source


@pytest.mark.parametrize(
    ("replies", "reply", "said"),
    [
        ("schedule", written(1), "schedules only"),
        ("schedule", patch("// kernel 3", "x"), "schedules only"),
        ("source", named({"family": "latency"}), "sources only"),
    ],
)
def test_a_run_takes_the_forms_that_it_was_started_with(replies: str, reply: str, said: str) -> None:
    table = only(reply, replies=replies, turns=0)
    assert table.propose(best=candidate(3)) == []
    assert said in table.log.recorded()[0].problem


def test_schedules_only_asks_for_as_many_replies_as_the_round_needs_and_repairs_nothing() -> None:
    table = Table(lambda _, place: named(*BEST[:2]) if place[1] else named(BEST[2]), replies="schedule", samples=4)
    assert len(table.propose(8, failures=(failure(5),), best=candidate(3))) == 3
    assert [place for place, _, _ in table.server.asked] == [(1, 0, 0), (1, 1, 0)]
    assert "// kernel" not in table.server.asked[0][1].messages[-1].content


def answer(_: Prompt, place: ExchangePlace) -> str:
    forms = {
        (0, 0): patch("// kernel 9", "x"),
        (0, 1): patch("// kernel 3", "// kernel 4"),
        (1, 0): named({"family": "none"}),
        (1, 1): named(*BEST[:2]),
        (2, 0): written(8),
    }
    return forms[place[1:]]


def test_each_form_replays_and_a_killed_round_asks_only_for_the_rest() -> None:
    whole = Table(answer, samples=3)
    proposed = whole.propose(best=candidate(3))
    assert [one.id for one in proposed] == [candidate(4).id, of_schedule(0).id, candidate(8).id, of_schedule(1).id]
    again = Table(ReplayServer(whole.log.recorded()), samples=3)
    assert again.propose(best=candidate(3)) == proposed
    log = MemoryLog([one for one in whole.log.recorded() if one.place in {(1, 0, 0), (1, 1, 0), (1, 1, 1)}])
    server = AnsweringServer(answer)
    resumed = Table(RecordedFirst(server, log), log, samples=3)
    assert resumed.propose(best=candidate(3)) == proposed
    assert [place for place, _, _ in server.asked] == [(1, 0, 1), (1, 2, 0)]
    assert [one.candidate_ids for one in log.recorded()] == [one.candidate_ids for one in whole.log.recorded()]


def test_each_form_over_http() -> None:
    replies = [Text(patch("// kernel 3", "// kernel 4")), Text(named(*BEST[:2])), Text(json.dumps(BEST[3])), Text(written(8))]
    with ScriptedServer(replies) as script:
        server = OpenAIServer(options(base_url=script.base_url, retries=0, samples=4), None, lambda _: None)
        table = Table(server, base_url=script.base_url, retries=0, samples=4)
        made = table.propose(best=candidate(3))
    assert {one.id for one in made} == {candidate(4).id, candidate(8).id, *(of_schedule(number).id for number in (0, 1, 3))}


def test_a_record_of_one_candidate_still_loads() -> None:
    table = only(written(1))
    table.propose()
    [exchange] = table.log.recorded()
    plain = json.loads(exchange.model_dump_json())
    assert Exchange.model_validate(plain) == exchange
    ids = plain.pop("candidate_ids")
    assert plain.pop("candidate_id") == ids[0]
    assert Exchange.model_validate({**plain, "candidate_id": ids[0]}) == exchange
    assert Exchange.model_validate({**plain, "candidate_id": None}).candidate_id is None
    assert Exchange.model_validate(plain).candidate_ids == ()


def test_a_module_is_written_and_repaired_and_takes_no_schedules() -> None:
    """The first reply is wrong and is repaired by a patch; schedules of matrix products go back with the reason."""
    task = row_softmax(3, 7)
    plan = '/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "k", "grid": ["rows", 1, 1], "block": [32, 1, 1], "args": ['
    plan += '{"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "columns"}]}]} */'
    whole = f'{plan}\nextern "C" __global__ void k(const float* x, float* out, int columns) {{\n  out[0] = 1;\n}}\n'
    replies = iter(
        [
            '```json\n[{"family": "latency", "block_m": 32}]\n```',
            f"## Design\nA row a CTA.\n\n## Code\n```cuda\n{whole}```\n",
            "## Design\nAnother value.\n\n## Code\n```diff\n--- failed\n@@\n-  out[0] = 1;\n+  out[0] = 2;\n```\n",
        ]
    )
    server: Any = AnsweringServer(lambda _prompt, _place: next(replies))
    table = Table(server, samples=1, replies="source")
    [first] = table.propose(task=task)
    assert first.source == whole
    assert "takes sources only" in server.asked[1][1].messages[-1].content
    wrong = TestResult(
        tier="special", name="nan", passed=False, worst=9.0, message="3 of 21 outputs are wrong; first out[0, 0]"
    )
    failed = Failure(candidate=first, evaluation=Wrong(test=wrong, tests=(wrong,), inspection=INSPECTION), repairs=0)
    [second] = table.propose(task=task, round=2, failures=(failed,))
    assert "out[0] = 2;" in second.source
    assert second.origin.parents == (first.id,)
    asked = server.asked[-1][1].messages[-1].content
    for part in ("special/nan: 3 of 21 outputs are wrong; first out[0, 0]", "_softmax(x, dim=-1", "out[0] = 1;"):
        assert part in asked
