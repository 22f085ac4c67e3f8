"""A library on a GPU: its shipped entries are verified and timed anew, and its kernels are built."""

import json
from pathlib import Path

import pytest

from cudal2.library.kernel_library import shipped_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.task import Arch

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_shipped_entries_hold_and_are_timed_again(tmp_path: Path) -> None:
    words = ["library", "check", "--sample", "4", "--max-gflop", "1", "--device", "cuda:0"]
    assert main(words) == 0
    text = (tmp_path / "library-check.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["status"] for row in rows] == ["passed"] * 4
    assert all(row["time_us"] > 0.5 for row in rows)
    assert all(0.5 < row["speedup"]["low"] <= row["speedup"]["ratio"] for row in rows)
    assert main(words) == 0
    assert (tmp_path / "library-check.jsonl").read_text() == text, "nothing is checked twice"


def test_kernels_are_prepared_for_the_gpu_at_hand(home: Path) -> None:
    from cudal2_agent.agent.wiring.gpus import visible_sms

    library = shipped_library("H200")
    assert library is not None
    entry = next(iter(library))
    assert main(["library", "prepare", "--entry", entry.id]) == 0
    kernel = PreparedKernels(home / "cache" / "library").find(entry, visible_sms(Arch.SM_90A))
    assert kernel is not None
    assert kernel.cubin.startswith(b"\x7fELF")
