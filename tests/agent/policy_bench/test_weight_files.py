"""Cards of weights are read from their headers; what is no file of weights is one line; names and paths are found."""

import json
from pathlib import Path

import pytest

from agent.policy_bench.weight_files import chosen_weights, find_weights, read_card
from contract.errors import UsageError
from tests.agent.policy_bench.weights import write_weights

CARD = {"name": "h200", "chip": "H200", "trained_on": "919 shapes", "date": "2026-11-23"}


def test_a_card_is_read(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.safetensors", CARD)
    card = read_card(path)
    assert (card.name, card.chip, card.trained_on, card.date) == tuple(CARD.values())
    assert (card.path, card.size_bytes, card.origin) == (path, path.stat().st_size, "file")


def test_a_card_as_json_under_one_key_is_the_same(tmp_path: Path) -> None:
    told = {**CARD, "trained_on": {"shapes": 919}}
    card = read_card(write_weights(tmp_path / "a.safetensors", {"card": json.dumps(told)}))
    assert (card.name, card.trained_on) == ("h200", '{"shapes": 919}')


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np

    numpy.save_file({"w": np.zeros(3, np.float32)}, tmp_path / "own.safetensors", metadata={"chip": "H100"})
    assert (read_card(tmp_path / "own.safetensors").name, read_card(tmp_path / "own.safetensors").chip) == ("own", "H100")


@pytest.mark.parametrize("content", [b"", b"text", b"\xff" * 64, (2**62).to_bytes(8, "little"), b"\x02" + b"\0" * 7 + b"[]"])
def test_another_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no file of learned weights"):
        read_card(path)


def test_weights_without_a_card_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it has no card"):
        read_card(write_weights(tmp_path / "a.safetensors", None))
    with pytest.raises(UsageError, match="cannot be read"):
        read_card(tmp_path / "missing.safetensors")


def test_weights_at_home_are_found_and_damaged_ones_named(tmp_path: Path) -> None:
    write_weights(tmp_path / "policies" / "b.safetensors", {"chip": "H100"})
    write_weights(tmp_path / "policies" / "a.safetensors", CARD)
    (tmp_path / "policies" / "c.safetensors").write_bytes(b"half")
    cards, reasons = find_weights(tmp_path)
    assert [card.name for card in cards if card.origin == "home"] == ["h200", "b"]
    assert len(reasons) == 1
    assert "c.safetensors" in reasons[0]


def test_a_name_or_a_path_is_chosen(tmp_path: Path) -> None:
    inside = write_weights(tmp_path / "policies" / "a.safetensors", CARD)
    outside = write_weights(tmp_path / "elsewhere.safetensors", {"chip": "H100"})
    assert chosen_weights("h200", tmp_path).path == inside
    assert chosen_weights(str(outside), tmp_path).origin == "file"
    with pytest.raises(UsageError, match=r"'h300' is no file, and no policy among .*h200"):
        chosen_weights("h300", tmp_path)
