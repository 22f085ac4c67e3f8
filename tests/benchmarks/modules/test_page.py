"""The page of results is a function of rows: which row counts, what each table says, and that the page in docs is current."""

import gzip
import json

from benchmarks.harness import ROOT, filled
from benchmarks.modules.counters import chosen, counted
from benchmarks.modules.page import MARKS, PAGE, floor_us, latest, page_text, text_of, waits_for, with_soundness
from benchmarks.modules.rows import read_rows
from cudal2_agent.contract.records.profile import LaunchProfile


def row(task: str, ratio: float, **more: object) -> dict[str, object]:
    us, speedup = 1000 / ratio, [ratio, ratio, ratio]
    baselines = {"eager": {"us": 3000.0, "speedup": [3 * ratio] * 3}, "compiled": {"us": 1000.0, "speedup": speedup}}
    return {
        "task": task,
        "level": int(task[0]),
        "arithmetic": "f32",
        "class": "pointwise",
        "bytes": 3_350_000_000,
        "flops": 0,
        "status": "measured",
        "us": us,
        "baselines": baselines,
        "fastest": "compiled",
        "speedup": speedup,
        "answer": "kernel" if ratio > 1 else "keep PyTorch's",
        "worst": 0.125,
        "best": "b",
        "candidates": [{"candidate": "b", "kernels": 2, "calls": 1}],
        "gpu": "H100 80GB HBM3",
        "torch": "2.11.0",
        "soundness": "sound",
        **more,
    }


FAILED = {**row("2/3_sum", 1.0), "status": "failed", "message": "too little memory: 123 bytes"}


def test_the_last_row_of_a_task_counts_and_tasks_come_in_order():
    rows = [row("1/19_ReLU", 2.0), row("1/2_mm", 0.5), {**FAILED, "task": "1/19_ReLU", "level": 1}, row("1/19_ReLU", 1.5)]
    assert [(each["task"], each["speedup"][0]) for each in latest(rows)] == [("1/2_mm", 0.5), ("1/19_ReLU", 1.5)]
    other = row("1/19_ReLU", 3.0, arithmetic="f16")
    assert [each["arithmetic"] for each in latest([other, *rows])] == ["f32", "f32", "f16"]


def test_soundness_is_the_tasks_wherever_it_was_found():
    assert with_soundness(row("1/19_ReLU", 2.0), {(1, 19): "unsound"})["soundness"] == "unsound"
    assert with_soundness(row("1/19_ReLU", 2.0), {(2, 19): "unsound"})["soundness"] == "sound"


def test_the_page_in_docs_is_of_the_committed_files():
    assert filled(PAGE.read_text("utf-8"), MARKS, text_of(ROOT / "benchmarks" / "results")) == PAGE.read_text("utf-8")


def test_files_count_in_the_order_of_their_dates(tmp_path):
    (tmp_path / "h200_modules_rows_2026-11-27.jsonl").write_text(json.dumps(row("1/19_ReLU", 2.0)))
    (tmp_path / "h100_modules_rows_2026-11-28.jsonl").write_text(json.dumps(row("1/19_ReLU", 4.0)))
    (tmp_path / "modules_soundness_2026-11-28.jsonl").write_text(json.dumps({"name": "level1/19_ReLU", "status": "unsound"}))
    assert "4.000 (4.000–4.000)" in text_of(tmp_path)
    assert "Soundness: 1 unsound." in text_of(tmp_path)


def test_the_floor_is_of_the_card_that_measured():
    assert floor_us(row("1/1", 1.0)) == 1000.0
    assert floor_us(row("1/1", 1.0, gpu="H200", bytes=4_800_000_000)) == 1000.0
    assert floor_us(row("1/1", 1.0, flops=67e12)) == 1e6
    assert floor_us(row("1/1", 1.0, gpu="another")) is None


def test_a_page_says_card_errors_soundness_and_times_of_every_task(tmp_path):
    rows = [row("1/19_ReLU", 2.0), row("1/2_mm", 0.5, soundness="unsound"), FAILED]
    text = page_text(rows, [])
    assert "Measured: 2 on one H100 80GB HBM3 with torch 2.11.0. Soundness: 2 sound, 1 unsound." in text
    assert (
        "| 1/19 ReLU | pointwise | 1000.0 | 500.0 | 3000.0 | — | 1000.0 | — | 2.000 (2.000–2.000) | 6.00 | 2 + 1 | 0.12" in text
    )
    assert "| sound | kernel |" in text
    assert "| unsound | keep PyTorch's |" in text
    assert "| failed | too little memory: N bytes | 1 | 2/3 |" in text
    assert "| pointwise | 2 | 1.25 | 1.00 |" in text, "shares of the floor"
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert page_text(read_rows(packed), []) == text


def test_max_autotune_counts_where_a_row_has_it_even_if_a_later_one_has_not():
    tuned = row("1/19_ReLU", 2.0)
    tuned["baselines"] = {**tuned["baselines"], "compiled-max-autotune": {"us": 400.0, "speedup": [0.8] * 3}}
    tuned |= {"fastest": "compiled-max-autotune", "speedup": [0.8] * 3}
    text = page_text([tuned, row("1/19_ReLU", 2.0)], [])
    assert "1 drawn tasks; nothing better counts as 1.00: 1.000 over the fastest." in text
    assert "| compiled-max-autotune | 1 | 1 | 0.800 |" in text


LAUNCH = LaunchProfile(
    entry="k0",
    grid=(1, 1, 1),
    block=(256, 1, 1),
    metrics={
        "duration_ns": 900.0,
        "dram_read_bytes": 3e9,
        "dram_write_bytes": 3.7e9,
        "dram_pct": 91.0,
        "stall_wait": 1.0,
        "stall_long_scoreboard": 9.0,
    },
)


def test_counters_say_what_the_longest_kernel_waits_for():
    launch = counted(LAUNCH)
    assert launch["stalls"] == {"long_scoreboard": 9.0, "wait": 1.0}
    assert waits_for(launch) == "device memory"
    assert waits_for({**launch, "dram_pct": 40.0}) == "latency: long scoreboard"
    counted_row = {**row("1/19_ReLU", 2.0), "launches": [launch, {**launch, "duration_ns": 100.0, "moved_bytes": 0.0}]}
    text = page_text([row("1/19_ReLU", 2.0)], [counted_row])
    assert "| pointwise | 1/19 | 2.00 | 90% | 91 % | — | — | — | — | 2.00 | device memory |" in text


def test_the_median_and_the_slowest_of_each_class_are_counted():
    rows = [row(f"1/{number}", ratio) for number, ratio in enumerate((0.5, 1.0, 2.0))]
    alone = row("2/1", 1.0, **{"class": "scan"})
    assert [each["task"] for each in chosen([*rows, alone, FAILED, row("1/9", 0.1, bytes=1e12)])] == ["1/1", "2/1", "1/0"]
