"""The portfolio over scripted arms: the opening arm, each arm's slots, and arms that fall short or fail."""

import pytest

from cudal2_agent.contract.errors import EndpointError
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.protocols import Policy
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.portfolio.policy import SURE_ROUNDS, Portfolio
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from tests.doubles import OBSERVATION, PLAN


def made(arm: str, number: int) -> Candidate:
    return Candidate(source=f"// {arm} {number}", plan=PLAN, origin=Origin(policy=arm))


class Arm:
    """Proposes its untried candidates in order, at most `most` per round; or fails."""

    reads_code = False

    def __init__(self, name: str, most: int = 99, failure: Exception | None = None, exhausted: str = "") -> None:
        self.name = name
        self.exhausted = exhausted
        self.most = most
        self.failure = failure
        self.asked: list[int] = []

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        self.asked.append(count)
        if self.failure:
            raise self.failure
        tried = {attempt.candidate_id for attempt in observation.attempts}
        fresh = (one for number in range(200) if (one := made(self.name, number)).id not in tried)
        return [one for one, _ in zip(fresh, range(min(count, self.most)), strict=False)]


def portfolio(*arms: Arm, budget: int = 96, seed: int = 0, events: list[Event] | None = None) -> Portfolio:
    return Portfolio(
        {arm.name: arm for arm in arms},
        budget,
        seed,
        events.append if events is not None else lambda _: None,
        now_s=lambda: 0.0,
    )


def round_of(number: int, attempts: tuple[Attempt, ...] = (), seconds_left: float | None = 200.0) -> Observation:
    return OBSERVATION.model_copy(update={"round": number, "attempts": attempts, "seconds_left": seconds_left})


def attempt(one: Candidate, time_us: float | None = None, seconds: float = 1.0) -> Attempt:
    status = "measured" if time_us is not None else "wrong"
    return Attempt(
        candidate_id=one.id, policy=one.origin.policy, schedule=None, status=status, time_us=time_us, seconds=seconds
    )


def names(batch: list[Candidate]) -> list[str]:
    return [one.origin.policy for one in batch]


def test_it_is_a_policy_and_reads_code_where_an_arm_does() -> None:
    checked: Policy = portfolio(Arm("a"), Arm("b"))
    assert checked.name == "portfolio"
    assert not checked.reads_code
    reader = Arm("b")
    reader.reads_code = True
    assert portfolio(Arm("a"), reader).reads_code


def test_a_portfolio_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Portfolio({}, 1)


def test_the_first_arm_opens_alone() -> None:
    chat = Arm("chat")
    assert names(portfolio(Arm("schedule"), chat).propose(round_of(1), 8)) == ["schedule"] * 8
    assert chat.asked == []


def test_where_the_opener_has_nothing_the_others_open() -> None:
    assert names(portfolio(Arm("schedule", most=3), Arm("chat")).propose(round_of(1), 8)) == ["schedule"] * 3 + ["chat"] * 5


def test_every_arm_has_a_slot_in_the_sure_rounds() -> None:
    """An arm whose candidates all failed still gets slots."""
    arms = Arm("schedule"), Arm("chat")
    history = tuple(attempt(made("chat", n)) for n in range(30))
    for number in range(2, 2 + SURE_ROUNDS):
        batch = portfolio(*arms).propose(round_of(number, history), 8)
        assert "chat" in names(batch)
        assert len(batch) == 8


def test_slots_follow_what_pays() -> None:
    def history(good: str, bad: str) -> tuple[Attempt, ...]:
        failed = tuple(attempt(made(bad, n)) for n in range(100, 120))
        return failed + tuple(attempt(made(good, n), 100.0 * 0.9**n) for n in range(100, 120))

    def share(attempts: tuple[Attempt, ...]) -> int:
        return sum(names(portfolio(Arm("a"), Arm("b"), seed=s).propose(round_of(9, attempts), 8)).count("b") for s in range(20))

    assert share(history("b", "a")) > 140 > 20 > share(history("a", "b"))


def test_time_that_runs_out_counts_and_time_in_plenty_does_not() -> None:
    dear = tuple(attempt(made("b", n), 100.0 - n % 2, seconds=40.0) for n in range(100, 112))
    cheap = tuple(attempt(made("a", n), 100.0 - n % 2, seconds=0.5) for n in range(100, 112))
    attempts = tuple(one for pair in zip(dear, cheap, strict=True) for one in pair)

    def given(seconds_left: float) -> int:
        splits = [portfolio(Arm("a"), Arm("b"), seed=s) for s in range(20)]
        return sum(names(one.propose(round_of(9, attempts, seconds_left), 8)).count("b") for one in splits)

    assert given(100.0) < 40 < given(1e6)


def test_what_an_arm_leaves_goes_to_the_next_and_to_the_opener() -> None:
    schedule, short, last = Arm("schedule"), Arm("short", most=0), Arm("last")
    batch = portfolio(schedule, short, last).propose(round_of(2), 9)
    assert len(batch) == 9
    assert last.asked[0] >= short.asked[0] + 1
    schedule, chat = Arm("schedule"), Arm("chat", most=1)
    batch = portfolio(schedule, chat).propose(round_of(2), 8)
    assert names(batch).count("chat") == 1
    assert names(batch).count("schedule") == 7
    assert len(chat.asked) == 1, "a chat server is paid by the request: one round, one call"
    assert len({one.id for one in batch}) == 8


def test_an_exhausted_opener_is_not_asked_again_and_the_round_is_short() -> None:
    schedule, chat = Arm("schedule", most=0), Arm("chat", most=2)
    assert names(portfolio(schedule, chat).propose(round_of(2), 8)) == ["chat"] * 2
    assert len(schedule.asked) == 1


def test_nobody_has_anything_new() -> None:
    assert portfolio(Arm("a", most=0), Arm("b", most=0)).propose(round_of(3), 8) == []


def test_the_same_code_of_two_arms_is_proposed_once_and_the_slot_given_on() -> None:
    class Copying(Arm):
        def propose(self, observation: Observation, count: int) -> list[Candidate]:
            super().propose(observation, count)
            return [made("schedule", number) for number in range(count)]

    batch = portfolio(Arm("schedule"), Copying("chat")).propose(round_of(2), 8)
    assert len({one.id for one in batch}) == len(batch) == 8


def test_what_was_tried_already_takes_no_slot() -> None:
    class Stubborn(Arm):
        def propose(self, _: Observation, count: int) -> list[Candidate]:
            return [made("chat", 0)] * count

    batch = portfolio(Arm("schedule"), Stubborn("chat")).propose(round_of(2, (attempt(made("chat", 0)),)), 4)
    assert names(batch) == ["schedule"] * 4


def test_an_arm_that_fails_is_out_with_one_notice_and_the_run_goes_on() -> None:
    events: list[Event] = []
    chat = Arm("chat", failure=EndpointError("no such model: x"))
    both = portfolio(Arm("schedule"), chat, events=events)
    for number in (2, 3, 4):
        assert names(both.propose(round_of(number), 8)) == ["schedule"] * 8
    assert len(chat.asked) == 1
    [notice] = events
    assert isinstance(notice, Notice)
    assert notice.message == "no such model: x; the run goes on without the chat policy"


def test_where_no_arm_is_left_the_failure_is_raised_every_time() -> None:
    events: list[Event] = []
    alone = portfolio(Arm("chat", failure=EndpointError("the key was refused")), events=events)
    for number in (1, 2):
        with pytest.raises(EndpointError, match="the key was refused"):
            alone.propose(round_of(number), 8)
    assert events == []


def test_an_exhausted_arm_is_out_with_one_notice_and_what_it_wrote_last_counts() -> None:
    events: list[Event] = []
    chat = Arm("chat", most=2, exhausted="the cap is reached")
    both = portfolio(Arm("schedule"), chat, events=events)
    assert names(both.propose(round_of(2), 8)).count("chat") == 2
    for number in (3, 4):
        assert names(both.propose(round_of(number), 8)) == ["schedule"] * 8
    assert len(chat.asked) == 1
    assert [event.message for event in events if isinstance(event, Notice)] == [
        "the cap is reached; the run goes on without the chat policy"
    ]
    assert both.exhausted == ""


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_portfolio_is_exhausted_when_its_last_arm_is(failed_before: bool) -> None:
    chat = Arm("chat", most=0, exhausted="the cap is reached")
    arms = [Arm("schedule", failure=EndpointError("down")), chat] if failed_before else [chat]
    both = portfolio(*arms)
    for number in (2, 3):
        assert both.propose(round_of(number), 8) == []
        assert both.exhausted == "the cap is reached"


def test_what_the_last_arm_but_one_wrote_is_not_lost_when_all_fail() -> None:
    first, second = Arm("first"), Arm("second", failure=EndpointError("down"))
    both = portfolio(first, second)
    assert len(both.propose(round_of(2), 4)) == 4
    first.failure = EndpointError("down too")
    with pytest.raises(EndpointError, match="down too"):
        both.propose(round_of(3), 4)


def test_other_errors_are_not_swallowed() -> None:
    with pytest.raises(RuntimeError):
        portfolio(Arm("a", failure=RuntimeError()), Arm("b")).propose(round_of(1), 4)


def test_the_same_observation_and_seed_give_the_same_split() -> None:
    history = tuple(attempt(made("schedule", n), 50.0) for n in range(8))

    def batch(seed: int) -> list[str]:
        return [one.id for one in portfolio(Arm("schedule"), Arm("chat"), seed=seed).propose(round_of(7, history), 8)]

    assert batch(1) == batch(1)
    assert len({tuple(batch(seed)) for seed in range(20)}) > 1


def test_a_candidate_carries_the_time_that_its_own_arm_took() -> None:
    clock = iter((0.0, 0.5, 10.0, 70.0, 80.0, 81.0))
    two = Portfolio({"a": Arm("a"), "b": Arm("b")}, 96, now_s=lambda: next(clock))
    batch = two.propose(round_of(2), 2)
    assert [one.origin.seconds for one in batch] == [0.5, 60.0]


def test_an_arm_that_never_writes_is_asked_less_than_one_never_asked() -> None:
    """Round 6: the guaranteed rounds are over, and the chat arm has no candidate."""
    history = tuple(attempt(made("schedule", n), 100.0 * 0.97**n) for n in range(40))

    def asked(number: int) -> int:
        chats = [Arm("chat") for _ in range(30)]
        for seed, chat in enumerate(chats):
            portfolio(Arm("schedule"), chat, seed=seed).propose(round_of(number, history), 8)
        return sum(sum(chat.asked) for chat in chats)

    assert asked(6) < asked(2)


def test_with_the_real_schedule_policy_as_opener() -> None:
    schedule = SchedulePolicy(families(OBSERVATION.task.arch))
    both = Portfolio({"schedule": schedule, "chat": Arm("chat", most=1)}, 96, now_s=lambda: 0.0)
    opening = both.propose(round_of(1), 8)
    assert [one.id for one in opening] == [one.id for one in schedule.propose(round_of(1), 8)]
    history = tuple(attempt(one, 50.0).model_copy(update={"schedule": one.origin.schedule}) for one in opening)
    batch = both.propose(round_of(2, history), 8)
    assert sorted(names(batch)) == ["chat"] + ["schedule"] * 7
    assert not {one.id for one in batch} & {one.id for one in opening}
