"""The sandbox of a worker: open between two tasks, closed while it waits."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cudal2_agent.agent.campaign import shape_search
from cudal2_agent.agent.campaign.shape_search import open_search
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import Store, open_store
from tests.doubles import ScriptedSandbox


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("sqlite://") as opened:
        yield opened


def test_a_closed_sandbox_is_opened_again_for_the_next_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[ScriptedSandbox]:
        seen.append("open")
        yield ScriptedSandbox()
        seen.append("closed")

    monkeypatch.setattr(shape_search, "open_sandbox_of", opened)
    with open_search(Settings(), store, lambda _: None) as search:
        search.open(Arch.SM_90A)
        search.open(Arch.SM_90A)
        assert seen == ["open"]
        search.close()
        search.close()
        assert seen == ["open", "closed"]
        search.open(Arch.SM_90A)
    assert seen == ["open", "closed", "open", "closed"]
