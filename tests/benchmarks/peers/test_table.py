from typing import Any

from benchmarks.peers.table import tables
from cudal2_agent.contract.records.evaluation import AUTOTUNED


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
    assert "| geometric mean, all shapes |  | **1.000**, 1 of 2 faster |" in text
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


def test_wrong_outputs_and_sums_of_kernels_are_marked() -> None:
    rows = [row("64x64x64", triton=1.0, paper=0.5), row("64x64x128", triton=1.0, paper=2.0)]
    for one, fault, clock in zip(rows, ("sums are narrow", ""), ("graph", "kernels"), strict=True):
        one["peers"]["cuda-l2-paper"] = one["peers"].pop("paper") | {"fault": fault, "clock": clock}
    text = "\n".join(tables({"rows": rows}))
    assert "| shape | AutoTuning, µs | triton | cuda-l2-paper | cuda-l2-paper: outputs |" in text
    assert "| 64x64x64 | 4.00 | 1.000 | 0.500 | wrong |" in text
    assert "| 64x64x128 | 4.00 | 1.000 | 2.000† | right |" in text
    assert "| geometric mean, all shapes |  | **1.000**, 0 of 2 faster | **1.000**, 1 of 2 faster |  |" in text
    assert "| geometric mean, shapes with right outputs |  | **1.000**, 0 of 2 faster | **2.000**, 1 of 1 faster |  |" in text
    assert "- cuda-l2-paper, 64x64x64, wrong: sums are narrow" in text
    assert "- cuda-l2-paper: † sum of its kernels' durations, because no graph holds its launches: 64x64x128" in text
