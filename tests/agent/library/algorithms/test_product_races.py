"""How contenders race: a long product's samples follow products of its own."""

from __future__ import annotations

import pytest
import torch

from cudal2_agent.agent.library.algorithms import product_graphs
from cudal2_agent.agent.library.algorithms.product_graphs import LONG_US, race


@pytest.mark.parametrize(("product_us", "replays"), [(LONG_US - 1, 0), (LONG_US, 50), (1000.0, 25), (30_000.0, 1)])
def test_a_long_product_runs_warm_before_each_sample(monkeypatch: pytest.MonkeyPatch, product_us: float, replays: int) -> None:
    """Supposed, not shown: its power lowers the clock for a while, and its rival's next sample pays for it."""
    before = list[int]()

    class SilentGraph:
        def __init__(self, *_: object) -> None: ...

        def sample_us(self, replays_before: int = 0) -> float:
            before.append(replays_before)
            return product_us

    monkeypatch.setattr(product_graphs, "ProductGraph", SilentGraph)
    sets = [(torch.zeros(4, 4), torch.zeros(4, 4))]
    contenders = {"one": product_graphs.by_torch, "other": product_graphs.by_torch}
    times = race(contenders, sets, launches=2, rounds=3, product_us=product_us)
    assert before == [replays] * 6
    assert [len(one.samples_us) for one in times.values()] == [3, 3]
