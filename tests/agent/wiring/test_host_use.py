"""What a search takes of the host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign.watching import CampaignCost, cost_of
from cudal2_agent.agent.cli.render.campaign_table import cost_line
from cudal2_agent.agent.wiring import host_use
from cudal2_agent.agent.wiring.host_use import HostMeter, Process, below, processes
from cudal2_agent.contract.records.campaign import HostCost, ShapeResult
from tests.doubles.campaign_rows import shape_result

WORK = "import time; data = bytearray(120 << 20); t = time.process_time()\nwhile time.process_time() - t < 0.3: pass"


def test_a_child_counts_with_its_time_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_use, "SAMPLE_S", 0.02)
    with HostMeter() as idle:
        pass
    with HostMeter() as meter:
        subprocess.run([sys.executable, "-c", WORK], check=True)
    before, cost = idle.cost(), meter.cost()
    assert before is not None
    assert cost is not None
    assert 0.3 <= cost.cpu_s < 30
    assert before.cpu_s < 0.3
    assert cost.peak_mib >= before.peak_mib + 100
    assert cost.campaign_mib >= cost.peak_mib


def test_a_process_with_a_strange_name(tmp_path: Path) -> None:
    times = f"{' '.join(['0'] * 9)} 100 50 40 10"
    stat = f"7 (a) b ( c) S 3 {times} {' '.join(['0'] * 6)} 512 0"
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(stat)
    (tmp_path / "8").mkdir()  # it has ended
    (tmp_path / "meminfo").write_text("")
    tick_s, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert processes(tmp_path) == {7: Process(3, 200 / tick_s, 512 * page / 1024**2)}


def test_only_descendants_count() -> None:
    known = {pid: Process(parent, float(pid), 1.0) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1), (5, 3))}
    assert sorted(one.cpu_s for one in below(2, known)) == [2.0, 3.0, 5.0]
    assert below(9, known) == []


def test_where_the_system_does_not_tell_there_is_no_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_use, "processes", lambda: processes(tmp_path / "none"))
    with HostMeter() as meter:
        pass
    assert meter.cost() is None


def test_the_cost_of_a_campaign() -> None:
    host = HostCost(cpu_s=30.0, peak_mib=400.0, campaign_mib=1500.0)
    rows = [shape_result("64x64x64", host=host), shape_result("64x64x128", gpu_seconds=2.0)]
    cost = cost_of(rows)
    assert cost == CampaignCost(gpu_s=3.5, host_cpu_s=30.0, candidates=48, search_peak_mib=400.0, campaign_peak_mib=1500.0)
    assert cost_line(cost) == (
        "per shape 48 candidates, 3.5 GPU s, 30.0 host CPU s; memory at most 400 MiB per search, 1,500 MiB in all"
    )
    assert cost_line(cost_of(rows[1:])) == "per shape 48 candidates, 2.0 GPU s"
    assert cost_line(cost_of([])) == ""


def test_rows_without_host_cost_load() -> None:
    row = shape_result("64x64x64")
    old = row.model_dump(mode="json")
    del old["host"]
    assert ShapeResult.model_validate(old) == row
