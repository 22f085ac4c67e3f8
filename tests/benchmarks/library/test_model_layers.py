"""The linear layers of public models, as a campaign reads them."""

import sys
from pathlib import Path

import pytest

from benchmarks.harness import execute
from benchmarks.library.model_layers import HALVES, MODELS, ROWS, WHOLE, Weight, main, shape_file, weights
from cudal2_agent.agent.campaign.shapes import read_shapes
from cudal2_agent.contract.records.task import Layout

LLAMA = next(one for one in MODELS if one.name == "Llama-3.1-8B")


def test_the_weights_of_a_layer() -> None:
    assert list(weights(LLAMA, WHOLE, joined=True)) == [
        Weight(6144, 4096),
        Weight(4096, 4096),
        Weight(28672, 4096),
        Weight(4096, 14336),
    ]
    assert list(weights(LLAMA, HALVES, joined=True)) == [
        Weight(3072, 4096),
        Weight(4096, 2048),
        Weight(14336, 4096),
        Weight(4096, 7168),
    ]
    assert {(one.n, one.k) for one in weights(LLAMA, WHOLE, joined=False)} == {
        *((4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336))
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.name)
@pytest.mark.parametrize("joined", [True, False])
def test_two_halves_are_a_whole(model: object, joined: bool) -> None:
    whole, half = (list(weights(model, gpus, joined=joined)) for gpus in (WHOLE, HALVES))  # type: ignore[arg-type]
    assert [one.n * one.k for one in whole] == [2 * one.n * one.k for one in half]
    assert all(one.n % 8 == one.k % 8 == 0 for one in half)


def test_weights_of_several_models_count_for_each() -> None:
    found = shape_file([LLAMA, LLAMA._replace(name="again", inner=64)], [WHOLE], [1, 8], joined=True)
    counts = {(one.n, one.k): one.count for one in found.products}
    assert counts[4096, 4096] == 2
    assert counts[4096, 14336] == 1
    assert [one.m for one in found.products][:2] == [1, 8]


def test_a_campaign_reads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "layers.json"
    monkeypatch.setattr(sys, "argv", ["model_layers", "--out", str(out)])
    main()
    wanted, notices = read_shapes([str(out)])
    assert (len(wanted), notices) == (int(capsys.readouterr().out.split()[0]), [])
    assert {one.m for one in wanted} == set(ROWS)
    assert {one.layout for one in wanted} == {Layout.TN}
    assert {(one.n, one.k) for one in wanted if one.bias} == {(4608, 3584), (2304, 3584)}


def test_an_unknown_model_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["model_layers", "--out", str(tmp_path / "x"), "--models", "GPT-9"])
    with pytest.raises(SystemExit) as ended:
        execute(main)
    assert ended.value.code == 2
    assert "'GPT-9' is not known" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
