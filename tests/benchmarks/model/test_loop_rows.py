"""Rows of the loop with a model: which replies count as right, and what a search had after as many GPU seconds."""

from typing import Any

import pytest

from benchmarks.model.loop_rows import page, tries_of, upto, within_of
from cudal2_agent.agent.library.paired_programs import over_copies
from cudal2_agent.contract.records.candidate import AnyCandidate, Origin
from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.contract.records.exchange import Exchange
from tests.doubles import candidate, measured, step
from tests.policies.chat.exchanges import exchange

FAILED = CompileFailed(message="no", log="no")


def written(number: int, *parents: AnyCandidate) -> AnyCandidate:
    origin = Origin(policy="chat", parents=tuple(each.id for each in parents))
    return candidate(number).model_copy(update={"origin": origin})


def reply(number: int, *found: AnyCandidate) -> Exchange:
    return exchange((number, 0, 0), candidate_ids=tuple(one.id for one in found))


def test_a_repair_is_no_first_try() -> None:
    first, wrong, other = written(1), written(2), written(5)
    mended, second = written(3, wrong), written(4, first)
    outcomes = {first.id: measured(5.0), wrong.id: FAILED, mended.id: measured(4.0), second.id: measured(3.0), other.id: FAILED}
    steps = [
        step(index, round=index + 1).model_copy(update={"candidate": one, "evaluation": outcomes[one.id]})
        for index, one in enumerate([first, wrong, mended, second, other])
    ]
    replies = [reply(n + 1, one) for n, one in enumerate([first, wrong, mended, second, other])]
    assert tries_of(replies, steps) == (4, 2, 3)
    assert tries_of([*replies, reply(6)], steps) == (5, 2, 3), "a reply without a kernel was not right"


def row(policy: str, task: str, ratio: float, path: list[list[Any]], without: str = "") -> dict[str, Any]:
    found = {"policy": policy, "task": task, "group": "weak", "without": without, "rounds": 2, "gpu_s": 10.0, "path": path}
    found |= {"profiled": 1, "tokens": [100, 10], "shown": 4, "used": 1, "replies": 2, "right": 1, "mended": 2, "by": "source"}
    return found | ({"speedup": [ratio, ratio, ratio]} if ratio else {})


SEARCH = row(
    "schedule", "a", 1.3, [[1, 4.0, 1.1, "screen"], [2, 9.0, 1.2, "screen"], [3, 12.0, 1.4, "screen"], [3, 20.0, 1.3, "race"]]
)


@pytest.mark.parametrize(("gpu_s", "ratio"), [(3.0, 0.0), (5.0, 1.1), (11.0, 1.2), (12.0, 1.3)])
def test_a_search_counts_as_far_as_it_came(gpu_s: float, ratio: float) -> None:
    assert within_of(SEARCH, gpu_s) == ratio


def test_the_page_compares_within_the_models_seconds() -> None:
    model = row("chat", "a", 1.5, [[1, 3.0, 0.9, "quick"], [2, 8.0, 1.5, "quick"], [2, 10.0, 1.5, "race"]])
    blind = row("chat", "a", 1.2, [[1, 3.0, 0.6, "quick"], [2, 8.0, 1.2, "quick"]], without="counters")
    shown = page([model, SEARCH, blind])
    assert "| a | 2 | 10 | 1.500 | 1.200 | 1.300 | source |" in shown
    assert "| weak | 1 | 1 of 1 | 1.500 | 1.250 |" in shown
    assert "| counters | 1 | 0.800 | – | 0.80 |" in shown
    assert "4 replies that were no repair: 2 right at the first try, 4 after one repair." in shown
    assert (upto(model, 1), upto(model, 2)) == (0.9, 1.5)


def test_what_is_left_out_is_compared_after_equal_rounds_with_an_interval_over_tasks() -> None:
    whole = [row("chat", task, 1.5, [[1, 3.0, 1.0, "quick"], [2, 8.0, 1.5, "quick"]]) for task in ("a", "b")]
    first = row("chat", "a", 1.2, [[1, 3.0, 1.2, "quick"]], without="counters") | {"rounds": 1}
    second = row("chat", "b", 1.2, [[1, 3.0, 0.6, "quick"], [2, 8.0, 1.2, "quick"]], without="counters")
    mean, low, high = over_copies([1.2, 0.8])
    assert f"| counters | 2 | {mean:.3f} | {low:.3f} to {high:.3f} | 0.80, 1.20 |" in page([*whole, first, second])


def test_a_task_without_a_right_kernel_stays_in_the_table() -> None:
    shown = page([row("chat", "a", 0.0, [[1, 3.0, 0.0, "compile_failed"]])])
    assert "| a | 2 | 10 | – | – | – |" in shown
