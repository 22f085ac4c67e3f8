"""Which policies of the settings open, and what is refused before a request."""

from pathlib import Path

import pytest

from cudal2_agent.agent.wiring.policy import FUSION, open_policy
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store
from tests.doubles.modules import relu_of_sum


@pytest.mark.parametrize("prices", [{"prompt_price": 1.0}, {"reply_price": 1.0}, {"prompt_price": 1.0, "reply_price": 2.0}])
def test_a_cap_on_money_needs_one_price(tmp_path: Path, prices: dict[str, float]) -> None:
    _open(tmp_path, prices)
    with pytest.raises(UsageError, match="a cap on money needs prices"):
        _open(tmp_path, {})


@pytest.mark.parametrize("policy", ["schedule", "chat", "portfolio", "lm"])
def test_a_module_is_written_by_its_own_policy(tmp_path: Path, policy: str) -> None:
    settings = load_settings(home=tmp_path, policy=policy)
    with open_store(settings.store_url) as store:
        with open_policy(
            relu_of_sum(), settings.model_copy(update={"policy": FUSION}), store, "run-1", lambda _: None
        ) as opened:
            assert opened.name == FUSION
        with (
            pytest.raises(UsageError, match=f"the policy {policy} works on matrix products only"),
            open_policy(relu_of_sum(), settings, store, "run-1", lambda _: None),
        ):
            pass


def _open(home: Path, prices: dict[str, float]) -> None:
    settings = load_settings(home=home, policy="chat", seed=0)
    chat = settings.chat.model_copy(update={"model": "any", "base_url": "http://127.0.0.1:9/v1", "money": 5.0, **prices})
    with (
        open_store(settings.store_url) as store,
        open_policy(
            GemmTask(m=64, n=64, k=64), settings.model_copy(update={"chat": chat}), store, "run-1", lambda _: None
        ) as policy,
    ):
        assert policy.name == "chat"
