"""Which policies of the settings open, and what is refused before a request."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.wiring.policy import chat_limits, open_policy, with_policy_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.protocols import Policy
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store
from tests.doubles.modules import relu_of_sum


@pytest.mark.parametrize("prices", [{"prompt_price": 1.0}, {"reply_price": 1.0}, {"prompt_price": 1.0, "reply_price": 2.0}])
def test_a_cap_on_money_needs_one_price(tmp_path: Path, prices: dict[str, float]) -> None:
    _open(tmp_path, prices)
    with pytest.raises(UsageError, match="a cap on money needs prices"):
        _open(tmp_path, {})


SERVER = {"model": "any", "base_url": "http://127.0.0.1:9/v1"}


@pytest.mark.parametrize("policy", ["fusion", "fusion-algebra", "chat", "portfolio"])
def test_a_module_has_policies_of_its_own(tmp_path: Path, policy: str) -> None:
    with _opened(tmp_path, policy, relu_of_sum(), **SERVER) as opened:
        assert opened.name == policy


def test_a_module_s_portfolio_begins_with_the_fuser(tmp_path: Path) -> None:
    observation = Observation(task=relu_of_sum(), chip=REFERENCE_CHIPS[relu_of_sum().arch], round=1, seed=0)
    with _opened(tmp_path, "portfolio", relu_of_sum(), **SERVER) as opened:
        assert opened.reads_code
        [candidate] = opened.propose(observation, 1)
    assert candidate.origin.policy == "fusion"


@pytest.mark.parametrize("policy", ["schedule", "lm"])
def test_a_policy_of_matrix_products_is_refused_for_a_module(tmp_path: Path, policy: str) -> None:
    choose = "choose from fusion, fusion-algebra, chat, portfolio"
    refusal = f"the policy {policy} names schedules of matrix products; for a module {choose}"
    with pytest.raises(UsageError, match=refusal), _opened(tmp_path, policy, relu_of_sum()):
        pass


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        ("fusion", "the policy fusion works on modules only"),
        ("fusion-algebra", "the policy fusion-algebra works on modules only"),
        ("nothing", "policy 'nothing' is not known; choose from schedule, chat, portfolio, lm"),
    ],
)
def test_what_a_matrix_product_refuses(tmp_path: Path, policy: str, refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal), _opened(tmp_path, policy, GemmTask(m=64, n=64, k=64)):
        pass


@pytest.mark.parametrize(
    ("asked", "model", "may_ask", "of_product", "of_module"),
    [
        ("auto", "", True, "schedule", "fusion"),
        ("auto", "any", True, "portfolio", "portfolio"),
        ("auto", "any", False, "schedule", "fusion"),
        ("chat", "any", True, "chat", "chat"),
        ("schedule", "any", True, "schedule", "schedule"),
    ],
)
def test_a_model_that_is_named_shares_the_rounds_unless_a_policy_is(
    tmp_path: Path, asked: str, model: str, may_ask: bool, of_product: str, of_module: str
) -> None:
    settings = load_settings(home=tmp_path, policy=asked, model=model)
    assert with_policy_of(settings, GemmTask(m=64, n=64, k=64), may_ask=may_ask).policy == of_product
    assert with_policy_of(settings, relu_of_sum(), may_ask=may_ask).policy == of_module


def test_what_a_model_may_cost_is_reported_where_one_is_asked(tmp_path: Path) -> None:
    def line(**flags: Any) -> str:
        return chat_limits(load_settings(home=tmp_path, model="any", **flags))

    assert line(policy="schedule") == ""
    assert line(policy="portfolio", replay="run-1") == ""
    assert line(policy="portfolio") == "any may use up to 2,000,000 tokens, no cap on money"
    capped = line(policy="chat", tokens=9, money=0.5, chat_minutes=2)
    assert capped == "any may use up to 9 tokens, 0.5 of money, 2 minutes of waiting"


def test_replies_of_schedules_are_refused_for_a_module(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="--replies schedule names schedules of matrix products"),
        _opened(tmp_path, "chat", relu_of_sum(), replies="schedule", **SERVER),
    ):
        pass


@contextmanager
def _opened(home: Path, policy: str, task: Task, **chat: Any) -> Iterator[Policy]:
    settings = load_settings(home=home, policy=policy, seed=0)
    settings = settings.model_copy(update={"chat": settings.chat.model_copy(update=chat)})
    with open_store(settings.store_url) as store, open_policy(task, settings, store, "run-1", lambda _: None) as opened:
        yield opened


def _open(home: Path, prices: dict[str, float]) -> None:
    with _opened(home, "chat", GemmTask(m=64, n=64, k=64), money=5.0, **SERVER, **prices) as policy:
        assert policy.name == "chat"
