"""The chat policy: its requests, the result of every reply, its records, and when it stops."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cudal2_agent.contract.errors import EndpointError, StoreError, UsageError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.protocols import Policy
from cudal2_agent.contract.records.evaluation import CompileFailed, Rejected
from cudal2_agent.contract.records.exchange import Exchange, Prompt
from cudal2_agent.contract.records.trajectory import Attempt, Failure
from cudal2_agent.policies.chat import conversation
from cudal2_agent.policies.chat.server.chat_server import ExchangePlace, Limit, Reply
from cudal2_agent.policies.chat.server.openai_server import OpenAIServer
from cudal2_agent.policies.chat.server.replay import RecordedFirst, ReplayServer
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN, chars_of
from tests.doubles.chat_server import Answer, Cut, NoStream, Refusal, ScriptedServer, Status, Text
from tests.policies.chat.conversing import AnsweringServer, MemoryLog, Table, candidate, ended, options, source, written

BROKEN_PLAN = written(1).replace('"block": [32, 1, 1]', '"block": [32, 1')
REJECTED = Rejected(rule="include", message="header 'cstdlib' is not allowed", line=2)


def by_sample(_: Prompt, place: ExchangePlace) -> str:
    return written(place[1])


def raising(error: Exception) -> Callable[..., object]:
    def fails(*_: object) -> object:
        raise error

    return fails


def last(prompt: Prompt) -> str:
    return prompt.messages[-1].content


def failure(number: int, policy: str = "chat", repairs: int = 0) -> Failure:
    return Failure(candidate=candidate(number, policy), evaluation=REJECTED, repairs=repairs)


def test_it_is_a_policy() -> None:
    checked: Policy = Table(by_sample).policy
    assert checked.name == "chat"
    assert checked.reads_code


def test_each_sample_becomes_a_candidate() -> None:
    table = Table(by_sample)
    proposed = table.propose()
    assert [one.source for one in proposed] == [source(number) for number in range(3)]
    origin = proposed[1].origin
    assert (origin.policy, origin.note, origin.parents) == ("chat", "Idea 1.", ())
    assert origin.prompt_hash == table.log.recorded()[1].prompt.id


@pytest.mark.parametrize(("count", "samples", "asked"), [(1, 4, 1), (8, 2, 2), (0, 4, 0)])
def test_no_more_is_asked_than_wanted(count: int, samples: int, asked: int) -> None:
    table = Table(by_sample, samples=samples)
    assert len(table.propose(count)) == asked == len(table.server.asked)


def test_every_exchange_is_recorded_and_told() -> None:
    table = Table(by_sample)
    proposed = table.propose()
    exchanges = table.log.recorded()
    assert [exchange.place for exchange in exchanges] == [(1, 0, 0), (1, 1, 0), (1, 2, 0)]
    assert [exchange.candidate_id for exchange in exchanges] == [one.id for one in proposed]
    assert all(exchange.reply and exchange.problem == "" for exchange in exchanges)
    told = table.told("replied")
    assert [event.total_tokens for event in told] == sorted(event.total_tokens for event in told)
    assert told[-1].total_tokens == sum(exchange.usage.tokens for exchange in exchanges) == table.account.totals.tokens


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("I would rather talk about something else.", "no code block"),
        (written(1) + written(2), "2 code blocks"),
        (BROKEN_PLAN, "plan-json"),
        (written(1).replace('"arch": "sm_90a"', '"arch": "sm_1"'), "plan-schema"),
    ],
)
def test_a_reply_of_the_wrong_form_goes_back_with_the_reason(reply: str, said: str) -> None:
    table = Table(lambda _, place: reply if place[2] == 0 else written(7), samples=1)
    assert [one.source for one in table.propose()] == [source(7)]
    first, second = table.log.recorded()
    assert said in first.problem
    assert first.candidate_id is None
    roles = [message.role for message in second.prompt.messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert said in last(second.prompt)
    assert second.prompt.messages[:2] == first.prompt.messages
    assert table.propose(0) == []


def test_after_its_turns_a_reply_is_dropped() -> None:
    table = Table(lambda _, __: "no", samples=1, turns=2)
    assert table.propose() == []
    assert [exchange.place for exchange in table.log.recorded()] == [(1, 0, 0), (1, 0, 1), (1, 0, 2)]


def test_why_a_round_came_to_nothing_is_told_once_for_each_reason() -> None:
    def answer(prompt: Prompt, place: ExchangePlace) -> Reply | str:
        if place[0] < 3:
            return ended("failed", "", prompt, f"HTTP 400: {5000 + place[0] + place[1]} tokens are too many")
        return "no" if place[0] < 5 else "no" if place[1] else written(1) + written(2)

    table = Table(answer, turns=0)
    for number in range(1, 6):
        assert table.propose(round=number) == []
    first, second = (notice.message for notice in table.told("notice"))
    assert first == "no request of the round was answered: HTTP 400: 5001 tokens are too many"
    assert second.startswith("no reply of the round holds a new kernel: the reply has no code block")


def test_a_round_in_which_something_was_written_needs_no_notice() -> None:
    table = Table(lambda _, place: written(1) if place[1] == 0 else "no", turns=0)
    assert len(table.propose()) == 1
    assert table.told("notice") == []


def test_without_turns_nothing_goes_back() -> None:
    table = Table(lambda _, __: "no", samples=2, turns=0)
    assert table.propose() == []
    assert len(table.server.asked) == 2


@pytest.mark.parametrize(("status", "asked"), [("refused", 1), ("failed", 1), ("stopped", 1), ("truncated", 2), ("cut", 2)])
def test_a_reply_that_did_not_end_by_itself(status: str, asked: int) -> None:
    text = "" if status in ("refused", "failed") else written(1).removesuffix("```\n")
    table = Table(lambda prompt, _: ended(status, text, prompt, "the server said so"), samples=1)
    assert table.propose() == []
    first = table.log.recorded()[0]
    assert len(table.server.asked) == asked
    assert (first.status, first.reply) == (status, text)
    assert "the server said so" in first.problem
    assert ("cut off" in first.problem) == (status not in ("refused", "failed"))


def test_a_kernel_that_is_whole_counts_however_the_reply_ended() -> None:
    table = Table(lambda prompt, _: ended("stopped", written(1) + "and so on " * 99, prompt, "too long"), samples=1)
    assert len(table.propose()) == 1
    assert table.log.recorded()[0].problem == ""


def test_what_was_tried_before_is_dropped_with_the_reason() -> None:
    known = candidate(0)
    attempt = Attempt(candidate_id=known.id, policy="chat", schedule=None, status="rejected")
    table = Table(by_sample)
    assert [one.source for one in table.propose(attempts=(attempt,))] == [source(1), source(2)]
    assert "tried before" in table.log.recorded()[0].problem
    assert len(table.server.asked) == 3  # its form was valid


def test_one_candidate_from_two_replies_is_one() -> None:
    def answer(_: Prompt, place: ExchangePlace) -> str:
        time.sleep(0.05 if place[1] == 0 else 0)  # the first sample finishes last
        return written(0 if place[1] < 2 else 5)

    table = Table(answer, parallel=3)
    assert [one.source for one in table.propose()] == [source(0), source(5)]
    exchanges = table.log.recorded()
    assert exchanges[0].candidate_id == candidate(0).id
    assert (exchanges[1].candidate_id, exchanges[1].problem != "") == (None, True)


def test_equal_prompts_are_asked_once_without_temperature() -> None:
    assert len(Table(by_sample, temperature=0.0).propose()) == 1
    assert len(Table(by_sample, temperature=None).propose()) == 3


def test_parallel_replies_are_recorded_as_if_in_order() -> None:
    def answer(_: Prompt, place: ExchangePlace) -> str:
        time.sleep(0.02 * (3 - place[1]))
        return "no" if place[1:] == (1, 0) else written(place[1])

    def story(table: Table) -> list[tuple[ExchangePlace, str, str | None]]:
        proposed = table.propose()
        assert [one.source for one in proposed] == [source(number) for number in range(3)]
        return [(exchange.place, exchange.prompt.id, exchange.candidate_id) for exchange in table.log.recorded()]

    assert story(Table(answer, parallel=3)) == story(Table(answer, parallel=1))


def test_repairs_come_first_and_take_half_of_the_samples() -> None:
    failures = tuple(failure(number) for number in range(10, 15))
    table = Table(by_sample, samples=4)
    proposed = table.propose(failures=failures)
    assert [one.origin.parents for one in proposed] == [(failures[0].candidate.id,), (failures[1].candidate.id,), (), ()]
    prompts = [last(prompt) for _, prompt, _ in sorted(table.server.asked)]
    assert "// kernel 10" in prompts[0]
    assert "rule include: header 'cstdlib' is not allowed" in prompts[0]
    assert "// kernel 1" not in prompts[2]


def test_a_single_sample_repairs_while_there_is_something_to_repair() -> None:
    table = Table(by_sample, samples=1)
    assert table.propose(failures=(failure(10),))[0].origin.parents == (failure(10).candidate.id,)


@pytest.mark.parametrize("spent", [failure(10, repairs=3), failure(10, policy="schedule")])
def test_what_is_not_ours_or_was_repaired_enough_is_left(spent: Failure) -> None:
    assert Table(by_sample, samples=1, repairs=3).propose(failures=(spent,))[0].origin.parents == ()


def test_no_time_left_asks_nothing() -> None:
    table = Table(by_sample)
    assert table.propose(seconds_left=4.0) == []
    assert table.server.asked == []


def test_the_time_left_bounds_a_request() -> None:
    table = Table(by_sample)
    table.propose(seconds_left=20.0)
    assert all(15 < limit.seconds <= 20 for _, _, limit in table.server.asked)
    assert len({prompt.id for _, prompt, _ in table.server.asked}) == 1  # and is not in the prompt


def test_a_cap_ends_the_asking_and_exhausts_the_policy() -> None:
    table = Table(lambda prompt, place: ended("complete", written(place[1]), prompt), tokens=12000, reply_tokens=600)
    assert table.policy.exhausted == ""
    assert 1 <= len(table.propose()) < 3
    assert "cap of 12000 tokens" in table.policy.exhausted
    assert table.propose(round=2) == []
    assert table.propose(round=3) == []
    assert table.told("notice") == []  # the reason of a run's end is reported at its end
    assert len(table.server.asked) == len(table.log.recorded())
    assert table.account.totals.tokens <= 12000


def test_an_endpoint_that_fails_midway_keeps_what_was_written() -> None:
    def answer(_: Prompt, place: ExchangePlace) -> str:
        if place[1] == 1:
            raise EndpointError("the key was refused")
        time.sleep(0.2)
        return written(place[1])

    table = Table(answer, parallel=2, samples=4)
    assert [one.source for one in table.propose()] == [source(0)]
    assert [exchange.place for exchange in table.log.recorded()] == [(1, 0, 0)]
    assert [place for place, _, _ in table.server.asked] == [(1, 0, 0), (1, 1, 0)]  # the other requests were not sent
    assert "the key was refused" in table.told("notice")[0].message


@pytest.mark.parametrize("error", [EndpointError("no such model"), UsageError("the replayed run has no reply")])
def test_an_endpoint_that_never_answered_raises(error: Exception) -> None:
    def answer(_: Prompt, __: ExchangePlace) -> str:
        raise error

    table = Table(answer, samples=4, parallel=2)
    with pytest.raises(type(error), match=str(error)):
        table.propose()
    assert table.log.recorded() == []
    assert len(table.server.asked) <= 2
    assert table.account.totals.requests == 0


def test_a_log_that_cannot_be_written_stops_the_run() -> None:
    class Full(MemoryLog):
        def record(self, exchange: Exchange) -> None:
            raise StoreError(f"no space for {exchange.place}")

    with pytest.raises(StoreError):
        Table(by_sample, log=Full()).propose()


def test_an_interrupt_ends_what_is_under_way() -> None:
    class Waiting(AnsweringServer):
        """Replies only when it is closed, with a stopped reply."""

        def __init__(self) -> None:
            super().__init__(lambda _, __: "")
            self.over = threading.Event()

        def ask(self, _: Prompt, place: ExchangePlace, __: Limit) -> Reply:
            if place[1] == 0:
                raise KeyboardInterrupt
            assert self.over.wait(20)
            return ended("stopped", "", problem="closed")

        def close(self) -> None:
            self.over.set()

    table = Table(Waiting(), parallel=3)
    with pytest.raises(KeyboardInterrupt):
        table.propose()
    assert table.log.recorded() == []  # a resumed run asks again
    assert table.account.totals.requests == 0


def test_a_round_that_was_killed_pays_nothing_twice() -> None:
    def answer(_: Prompt, place: ExchangePlace) -> str:
        return "no" if place == (1, 1, 0) else written(place[1])

    whole = Table(answer)
    proposed = whole.propose()
    done = [exchange for exchange in whole.log.recorded() if exchange.place in {(1, 0, 0), (1, 1, 0)}]
    log = MemoryLog(done)
    server = AnsweringServer(answer)
    resumed = Table(RecordedFirst(server, log), log)
    assert [one.id for one in resumed.propose()] == [one.id for one in proposed]
    assert [place for place, _, _ in server.asked] == [(1, 1, 1), (1, 2, 0)]
    assert resumed.account.totals.tokens == whole.account.totals.tokens
    assert [e.created_at for e in log.recorded()][:2] == [e.created_at for e in done]
    assert [e.problem for e in log.recorded()] == [e.problem for e in whole.log.recorded()]


def test_an_error_of_ours_loses_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply is paid for before it is read. A resumed run reads it again."""
    broken = Table(by_sample, samples=1)
    with monkeypatch.context() as patched:
        patched.setattr(conversation, "candidates_of", raising(FileNotFoundError("a template")))
        with pytest.raises(FileNotFoundError):
            broken.propose()
    [exchange] = broken.log.recorded()
    assert (exchange.reply, exchange.problem) == (written(0), "the reply could not be read: FileNotFoundError")
    resumed = Table(RecordedFirst(server := AnsweringServer(by_sample), broken.log), broken.log, samples=1)
    assert [one.source for one in resumed.propose()] == [source(0)]
    assert server.asked == []


@pytest.mark.parametrize("status", ["truncated", "cut"])
def test_a_reply_cut_short_is_told_alike_after_a_kill(status: str) -> None:
    def answer(prompt: Prompt, _: ExchangePlace) -> Reply:
        return ended(status, "## Code\n```", prompt, "at 600 tokens")

    whole = Table(answer, samples=1)
    assert whole.propose() == []
    log = MemoryLog(whole.log.recorded())
    server = AnsweringServer(answer)
    Table(RecordedFirst(server, log), log, samples=1).propose()
    assert server.asked == []
    assert log.recorded() == whole.log.recorded()


def test_a_run_replays_without_a_server() -> None:
    whole = Table(lambda _, place: "no" if place == (1, 1, 0) else written(place[1]))
    proposed = whole.propose()
    again = Table(ReplayServer(whole.log.recorded()))
    assert again.propose() == proposed
    assert again.policy.exhausted == ""
    assert again.propose(round=2) == [] == again.told("notice")
    assert again.policy.exhausted == "the 4 replies of the replayed run are used up"


def test_a_reply_that_a_record_lacks_ends_its_conversation_only() -> None:
    """The recorded run has a server failure for one sample."""
    whole = Table(lambda _, place: "no" if place[1:] == (1, 0) else written(place[1]), temperature=0.5)
    whole.propose()
    replay = ReplayServer([one for one in whole.log.recorded() if one.place != (1, 1, 1)])
    again = Table(replay, parallel=2, temperature=0.5)
    assert [one.source for one in again.propose()] == [source(0), source(2)]
    assert (again.policy.exhausted, replay.missing) == ("", 1)


def test_hostile_characters_are_kept_out_of_records() -> None:
    table = Table(lambda _, __: written(1, body="// \ud800 \x1b[31m\n").replace("Idea 1", "\x1b[31mIdea\u202e"), samples=1)
    proposed = table.propose()
    assert Exchange.model_validate_json(table.log.recorded()[0].model_dump_json())
    assert "\x1b" not in proposed[0].origin.note
    assert "\u202e" not in proposed[0].origin.note


def over_http(script: ScriptedServer, **changes: object) -> Table:
    server = OpenAIServer(options(base_url=script.base_url, retries=0, **changes), None, ignore)
    return Table(server, base_url=script.base_url, retries=0, **changes)


def test_bad_replies_over_http_end_as_recorded_reasons() -> None:
    replies = [Text("no code"), Text(written(3)), Text(written(1) + written(2)), Text(BROKEN_PLAN)]
    replies += [Refusal(), Cut(written(4)[:-20]), NoStream(written(5))]
    with ScriptedServer(replies) as script:
        table = over_http(script, samples=4, turns=1)
        assert [one.source for one in table.propose()] == [source(3), source(5)]
    told = {exchange.place: (exchange.status, exchange.problem) for exchange in table.log.recorded()}
    assert told[1, 0, 0][1].startswith("the reply has no code block")
    assert told[1, 0, 1] == ("complete", "")
    assert "2 code blocks" in told[1, 1, 0][1]
    assert "plan-json" in told[1, 1, 1][1]
    assert told[1, 2, 0][0] == "refused"
    assert told[1, 3, 0][0] == "cut"
    assert told[1, 3, 1] == ("complete", "")


def test_a_refused_key_over_http_is_one_line() -> None:
    with ScriptedServer(lambda _: Status(401, {"error": {"message": "bad key"}})) as script:
        table = over_http(script)
        with pytest.raises(EndpointError) as raised:
            table.propose()
    assert "\n" not in str(raised.value)
    assert table.log.recorded() == []


class Together:
    """Answers only when this many requests are in flight."""

    def __init__(self, requests: int) -> None:
        self._together = threading.Barrier(requests, timeout=20)

    def act(self, answer: Answer) -> None:
        self._together.wait()
        Text(written(answer.request.number)).act(answer)


def test_samples_go_out_in_parallel_over_http() -> None:
    with ScriptedServer([Together(3)] * 3) as server:
        assert len(over_http(server, parallel=3).propose()) == 3


def test_dates_are_of_the_reply() -> None:
    begin = datetime.now(UTC)
    table = Table(by_sample, samples=1)
    table.propose()
    assert begin <= table.log.recorded()[0].created_at <= datetime.now(UTC)


def test_a_compile_error_is_shown_to_its_author() -> None:
    log = 'kernel.cu(3): error: identifier "warp" is undefined\n  x = warp;\n      ^\n\n1 error detected\n'
    failed = Failure(candidate=candidate(9), evaluation=CompileFailed(message="m", log=log), repairs=1)
    table = Table(by_sample, samples=1)
    table.propose(failures=(failed,))
    assert 'identifier "warp" is undefined\n  x = warp;' in last(table.server.asked[0][1])


def reasoned(text: str, status: str = "complete", problem: str = "") -> Reply:
    return replace(ended(status, "", problem=problem), reasoning=text)


def test_a_prompt_that_the_server_cannot_hold_is_shortened_for_the_run() -> None:
    def answer(prompt: Prompt, place: ExchangePlace) -> str | Reply:
        if chars_of(prompt) <= 6000 * CHARS_PER_TOKEN:
            return by_sample(prompt, place)
        return replace(ended("failed", "", problem="too long"), prompt_tokens=5900)

    long = [candidate(0, body=f"// {'x' * 90}\n" * 300)]
    table = Table(answer, samples=2, replies="source")
    observed = {"best": long[0], "best_evaluation": None, "attempts": ()}
    assert len(table.propose(**observed)) == 2
    exchanges = table.log.recorded()
    assert [exchange.status for exchange in exchanges] == ["complete"] * 2
    assert len(table.server.asked) == 3, "the second conversation knows it"
    [notice] = table.told("notice")
    assert "prompts are limited to 5900 tokens in this run" in notice.message
    assert table.account.totals.requests == 2


def test_a_prompt_that_cannot_be_shorter_fails_with_the_servers_line() -> None:
    table = Table(lambda *_: replace(ended("failed", "", problem="no room: serve more"), prompt_tokens=10), samples=1)
    assert table.propose() == []
    [exchange] = table.log.recorded()
    assert (exchange.status, exchange.problem) == ("failed", "no room: serve more")
    assert len(table.server.asked) <= 3


@pytest.mark.parametrize(
    "text", [written(1), f"Let me think.\n{written(1)}", f"<think>```cuda\n{source(2)}```\n</think>\n{written(1)}"]
)
def test_a_complete_reply_that_is_all_reasoning_is_read(text: str) -> None:
    table = Table(lambda *_: reasoned(text), samples=1)
    assert [one.source for one in table.propose()] == [source(1)]
    assert table.log.recorded()[0].problem == "the reply is all reasoning and no answer; the kernel in the reasoning was taken"


@pytest.mark.parametrize("text", ["Let me think.", written(1) + written(2)])
def test_one_without_a_kernel_is_named_and_asked_again(text: str) -> None:
    table = Table(lambda _, place: reasoned(text) if place[2] == 0 else written(7), samples=1)
    assert [one.source for one in table.propose()] == [source(7)]
    assert table.log.recorded()[0].problem == "the reply is all reasoning and no answer"
    assert "all reasoning and no answer" in last(table.server.asked[1][1])


def test_reasoning_to_the_limit_is_asked_again_with_twice_the_limit_which_later_requests_keep() -> None:
    said = "the reply is all reasoning and no answer: it reached its token limit"

    def answer(_: Prompt, place: ExchangePlace) -> str | Reply:
        limit = table.server.asked[-1][2].reply_tokens
        return written(place[1]) if limit >= 8000 else reasoned(written(9), "truncated", said)

    table = Table(answer, samples=3, reply_tokens=4000)
    assert [one.source for one in table.propose()] == [source(number) for number in range(3)]
    assert [limit.reply_tokens for _, _, limit in table.server.asked] == [4000, 8000, 8000, 8000]
    assert table.server.asked[0][1] == table.server.asked[1][1]
    assert table.log.recorded()[0].problem == said
    vain = Table(lambda *_: reasoned("hm", "truncated", said), samples=1, reply_tokens=4000, turns=9)
    assert vain.propose() == []
    assert max(limit.reply_tokens for _, _, limit in vain.server.asked) == 16_000
