"""Machine code of two versions: what is drawn, and what counts as a difference."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.same_code import compare, drawn
from cudal2_agent.sandbox.building import compile_child

SOURCE = 'extern "C" __global__ void k(int* d) { const int value = VALUE; d[threadIdx.x] = value; }  // COMMENT\n'
PAIR: dict[str, Any] = {"task": {"m": 64, "n": 64, "k": 64}, "schedule": {"family": "mma_sync"}}


def cubin(folder: Path, value: int, comment: str) -> str:
    folder.mkdir()
    source = "\n" * len(comment) + SOURCE.replace("VALUE", str(value)).replace("COMMENT", comment)
    compile_child.compile_source(source, ["-arch=sm_90a", "-lineinfo"], {}, folder)
    return str(folder / compile_child.CUBIN)


def test_drawn_pairs_are_different_and_drawn_again() -> None:
    pairs = [json.dumps(pair) for pair in drawn(12)]
    assert len(set(pairs)) == 12
    assert pairs == [json.dumps(pair) for pair in drawn(12)]
    assert {json.loads(pair)["schedule"]["family"] for pair in pairs} == {"mma_sync", "wgmma_tma", "latency", "resident"}


@pytest.mark.parametrize(("value", "outcome"), [(7, "identical"), (8, "different")])
def test_code_is_compared_and_text_is_not(tmp_path: Path, value: int, outcome: str) -> None:
    old, new = cubin(tmp_path / "old", 7, "as it was"), cubin(tmp_path / "new", value, "as it is")
    row = compare(PAIR, old, new)
    assert row["outcome"] == outcome
    assert row.get("sections") == (None if outcome == "identical" else [".text.k"])


def test_what_does_not_compile_is_told(tmp_path: Path) -> None:
    row = compare(PAIR, cubin(tmp_path / "old", 7, ""), "failed: no such header")
    assert (row["outcome"], row["new"]) == ("not compiled", "failed: no such header")
