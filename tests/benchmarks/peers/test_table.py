from typing import Any

from benchmarks.peers.table import tables
from contract.evaluation import AUTOTUNED


def row(shape: str, element: str = "f16", failures: dict[str, str] | None = None, **ratios: float) -> dict[str, Any]:
    peers = {name: {"speedup": {"ratio": ratio}} for name, ratio in {AUTOTUNED: 1.0, **ratios}.items()}
    return {"shape": shape, "element": element, "autotuned_us": 4.0, "peers": peers, "failures": failures or {}}


def test_a_column_for_each_peer_with_a_time_and_a_line_for_the_others() -> None:
    rows = [
        row("64x64x64", triton=0.5, failures={"cutlass": "no library"}),
        row("64x64x128", triton=2.0, failures={"cutlass": "no library"}),
    ]
    text = "\n".join(tables({"rows": rows, "troubles": ["64x64x64, cuda-l2-paper: hang"], "left": ["1x1x1"]}))
    assert "| shape | AutoTuning, µs | triton |" in text
    assert "| 64x64x128 | 4.00 | 2.000 |" in text
    assert "| geometric mean |  | **1.000** |" in text
    assert "| shapes, of these faster |  | 2, 1 |" in text
    assert "- cutlass: every shape: no library" in text
    assert "- crash or hang: 64x64x64, cuda-l2-paper: hang" in text
    assert "- not reached in time: 1x1x1" in text


def test_a_peer_that_lacks_one_shape_has_a_dash_and_the_reason() -> None:
    rows = [row("64x64x64", triton=0.5), row("64x64x128", failures={"triton": "too large"})]
    text = "\n".join(tables({"rows": rows}))
    assert "| 64x64x128 | 4.00 | — |" in text
    assert "- triton: 64x64x128: too large" in text


def test_types_have_tables_of_their_own() -> None:
    rows = [row("64x64x64", triton=0.5, failures={"deepgemm": "it is timed in BF16"}), row("64x64x64", "bf16", deepgemm=1.5)]
    text = "\n".join(tables({"rows": rows}))
    assert "same rounds, F16:" in text
    assert "same rounds, BF16:" in text
    assert "timed in BF16" not in text


def test_a_run_without_a_row_says_why() -> None:
    assert list(tables({"rows": [], "troubles": ["a, start: no GPU"]})) == ["- crash or hang: a, start: no GPU"]
