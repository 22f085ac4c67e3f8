"""Products with a bias that a campaign draws."""

import sys
from pathlib import Path

import pytest

from benchmarks.library.biased_layers import COUNT, MODELS, MOST_ROWS, draw, main
from cudal2_agent.agent.campaign.shapes import read_shapes


def test_a_draw_is_repeated_and_a_longer_one_begins_alike() -> None:
    assert draw() == draw()
    assert draw(120).products[:COUNT] == draw().products
    assert draw(seed=47) != draw()


def test_each_is_a_layer_of_a_model_with_a_bias() -> None:
    layers = {layer for model in MODELS for layer in model.layers()}
    found = draw().products
    assert len({(one.m, one.n, one.k) for one in found}) == len(found) == COUNT
    assert all(one.bias and (one.n, one.k) in layers and 1 <= one.m <= MOST_ROWS for one in found)
    few = sum(one.m <= 64 for one in found)
    assert COUNT // 5 < few < COUNT // 2, "a third has few rows"
    assert len({(one.n, one.k) for one in found}) > 20


def test_a_campaign_reads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "biased.json"
    monkeypatch.setattr(sys, "argv", ["biased_layers", "--out", str(file), "--count", "3"])
    main()
    assert "3 products" in capsys.readouterr().out
    tasks, notices = read_shapes([str(file)])
    assert (len(tasks), notices) == (3, [])
    assert all(task.bias for task in tasks)
