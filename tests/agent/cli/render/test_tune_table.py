"""The lines of `tune` while it works. Its answer is tested with the stages."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cudal2_agent.agent.cli.render.tune_table import TuneLines, time_lines
from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct
from cudal2_agent.agent.model_tuning.tune_records import JudgedProduct, PassTimes, WayTimes
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup

TASK = GemmTask(m=16, n=32, k=64, layout=Layout.TN)
NOW = datetime(2026, 11, 28, tzinfo=UTC)
FASTER = Speedup(baseline="torch", ratio=1.25, low=1.2, high=1.3)
SLOWER = Speedup(baseline="torch", ratio=0.9, low=0.88, high=0.92)


def judged(**changes: Any) -> JudgedProduct:
    fields: dict[str, Any] = {"speedup": FASTER, "time_us": 2.0, "torch_us": 2.5} | changes
    return JudgedProduct(task=TASK, entry="e", chip="H200", environment="here", measured_at=NOW, **fields)


def tuned(**changes: Any) -> TunedProduct:
    fields: dict[str, Any] = {"faster": True, "speedup": FASTER, "time_us": 2.0, "torch_us": 2.5} | changes
    return TunedProduct(task=TASK, chip="H200", environment="here", tried=3, seconds=0.1, measured_at=NOW, **fields)


def test_a_line_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    lines = TuneLines()
    lines.stage("looking at the GPU")
    lines.judged(judged())
    lines.judged(judged(speedup=SLOWER))
    lines.judged(judged(speedup=None, fault="[draw 0]: an operand changed"))
    lines.tuned(tuned())
    lines.tuned(tuned(faster=False, speedup=None))
    lines.note("two\n  lines")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "looking at the GPU",
        "16x32x64 tn: kernel 2.00 us, 1.250x (1.200–1.300) of torch.mm",
        "16x32x64 tn: kernel 2.00 us, 0.900x (0.880–0.920) of torch.mm, left to PyTorch",
        "16x32x64 tn: [draw 0]: an operand changed, left to PyTorch",
        "16x32x64 tn: cuBLASLt 2.00 us, 1.250x (1.200–1.300) of torch.mm",
        "16x32x64 tn: cuBLASLt suggests nothing, left to PyTorch",
        "note: two lines",
    ]


def test_a_row_for_each_way_of_each_pass() -> None:
    def row(tokens: int | None, *ways: WayTimes) -> PassTimes:
        return PassTimes(
            tokens=tokens, library_sha256="0" * 64, environment="here", ways=ways, served=3, asked=12, measured_at=NOW
        )

    eager = WayTimes(way="eager", before_us=1234.5, after_us=987.6, speedup=FASTER)
    graph = WayTimes(way="graph", before_us=900.0, after_us=1000.0, speedup=SLOWER)
    assert time_lines((row(None, eager), row(512, eager, graph))) == [
        "tokens  way    before, ms  after, ms  speedup                served",
        "     –  eager       1.234      0.988  1.250x (1.200–1.300)  3 of 12",
        "   512  eager       1.234      0.988  1.250x (1.200–1.300)  3 of 12",
        "   512  graph       0.900      1.000  0.900x (0.880–0.920)  3 of 12",
    ]
