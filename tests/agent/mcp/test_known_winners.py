"""What `best_known` knows: the shipped library and the store, for the task and near ones."""

from pathlib import Path

import pytest

from cudal2_agent.agent.mcp.known_winners import winners
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.store.store import open_store

CHIP = REFERENCE_CHIPS[Arch.SM_90A]


def test_the_shipped_library_s_kernels_of_the_task_and_near_it_come_with_their_sources(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        found = winners(GemmTask(m=64, n=64, k=64), CHIP, store)
        other = winners(GemmTask(m=64, n=64, k=64), CHIP.model_copy(update={"name": "no such chip"}), store)
    assert 1 < len(found) <= 4
    assert found[0].said.startswith("64x64x64 nn, of the library for H200")
    assert "us measured" in found[0].said
    assert '"requires": ["M==64", "N==64", "K==64"]' in found[0].source
    assert other == []


def test_a_kernel_of_another_layout_is_not_near_and_a_stale_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        turned = winners(GemmTask(m=64, n=64, k=64, layout=Layout.TN), CHIP, store)
        assert all(" tn, " in one.said for one in turned)

        def stale(_: object) -> None:
            raise LibraryError("stale")

        monkeypatch.setattr("cudal2_agent.agent.mcp.known_winners.candidate_of", stale)
        assert winners(GemmTask(m=64, n=64, k=64), CHIP, store) == []
