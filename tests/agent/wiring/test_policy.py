"""Which policies of the settings open, and what is refused before a request."""

from pathlib import Path

import pytest

from cudal2_agent.agent.wiring.policy import open_policy
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store


@pytest.mark.parametrize("prices", [{"prompt_price": 1.0}, {"reply_price": 1.0}, {"prompt_price": 1.0, "reply_price": 2.0}])
def test_a_cap_on_money_needs_one_price(tmp_path: Path, prices: dict[str, float]) -> None:
    _open(tmp_path, prices)
    with pytest.raises(UsageError, match="a cap on money needs prices"):
        _open(tmp_path, {})


def _open(home: Path, prices: dict[str, float]) -> None:
    settings = load_settings(home=home, policy="chat", seed=0)
    chat = settings.chat.model_copy(update={"model": "any", "base_url": "http://127.0.0.1:9/v1", "money": 5.0, **prices})
    with (
        open_store(settings.store_url) as store,
        open_policy(Arch.SM_90A, settings.model_copy(update={"chat": chat}), store, "run-1", lambda _: None) as policy,
    ):
        assert policy.name == "chat"
