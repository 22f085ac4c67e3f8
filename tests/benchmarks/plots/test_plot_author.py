"""The picture of the scripted author's run is the committed result, drawn."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pictures.author import draw, evidence, reason
from benchmarks.pictures.svg import BAD, GOOD, OURS
from tests.benchmarks.pictures import dots, outside, words

ROOT = Path(__file__).parents[3]
RESULT: dict[str, Any] = json.loads(
    (ROOT / "benchmarks/results/h200_strong_author_2026-11-21.json").read_text(encoding="utf-8")
)
SEARCHED = [row for row in RESULT["rows"] if not row["final"]]
TIMED = [row for row in SEARCHED if row["status"] == "measured"]


def test_the_committed_picture_shows_the_committed_result() -> None:
    assert (ROOT / "docs/pictures/h200_author.svg").read_text(encoding="utf-8") == draw(RESULT)


def test_every_reply_is_there_in_order_and_marked_by_what_became_of_it() -> None:
    picture = draw(RESULT)
    marks = sorted((y, colour) for colour in (BAD, GOOD) for _, y in dots(picture, colour))
    assert [colour for _, colour in marks] == [GOOD if row in TIMED else BAD for row in SEARCHED]
    assert [word for word in words(picture) if word.isdigit() and len(word) == 1] == [
        str(n) for n in range(1, len(SEARCHED) + 1)
    ]


def test_the_measured_kernels_show_time_rate_and_ratio() -> None:
    shown = words(draw(RESULT))
    for row in TIMED:
        ratio = row["speedup"]["cublaslt-autotuning"][0]
        at = shown.index(f"{row['time_us']:.1f}")
        assert shown[at + 1 : at + 3] == [f"{row['tflops']:.0f}", f"{ratio:.2f}×"]


def test_a_slower_kernel_stands_further_right() -> None:
    points = dots(draw(RESULT), OURS)
    assert len(points) == len(TIMED)
    by_time = sorted(zip((row["time_us"] for row in TIMED), (x for x, _ in points), strict=True))
    assert [x for _, x in by_time] == sorted(x for _, x in by_time)


def test_between_two_kernels_stands_the_first_ones_heaviest_finding_and_its_basis() -> None:
    shown = words(draw(RESULT))
    heaviest = [max(row["findings"], key=lambda one: one["weight"])["bottleneck"] for row in TIMED]
    assert [word for word in shown if word.startswith("counters: ")] == [f"counters: {name}" for name in heaviest[:-1]]
    blind = {**RESULT, "rows": [{**row, "diagnosis": "timed"} for row in RESULT["rows"]]}
    assert f"timed: {heaviest[0]}" in words(draw(blind))


def test_the_last_measurement_stands_apart_from_the_searchs() -> None:
    [final] = [row for row in RESULT["rows"] if row["final"] and row["reply"] == "08_cluster"]
    [told] = [word for word in words(draw(RESULT)) if word.startswith("Measured again")]
    assert f"reply 8 {final['time_us']:.1f} µs" in told
    assert f"{final['speedup']['cublaslt-autotuning'][0]:.3f}×" in told
    assert not any(word.startswith("Measured again") for word in words(draw({**RESULT, "rows": SEARCHED})))


def test_no_text_leaves_the_picture() -> None:
    assert outside(draw(RESULT)) == []


def test_a_result_without_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no reply of this result was measured"):
        draw({**RESULT, "rows": [row for row in SEARCHED if row not in TIMED]})


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("include: header 'x.h' is not allowed; allowed are a, b", "include: header 'x.h' is not allowed"),
        ("ptxas application ptx input, line 278; error : Illegal blayout", "Illegal blayout"),
        ("kernel.cu(29): error: no instance matches", "no instance matches"),
        ("exact: 3868905 of 4194304 outputs are wrong, in rows 0-2047", "exact: 3,868,905 of 4,194,304 outputs are wrong"),
        ("", ""),
    ],
)
def test_a_reason_is_the_message_without_its_place_and_details(message: str, short: str) -> None:
    assert reason(message) == short


def test_evidence_is_the_first_statement_without_the_kernels_name() -> None:
    assert (
        evidence({"evidence": "hgemm: 5 of 9 passes are conflicts (loads 5, stores 0), and it is busy"})
        == "5 of 9 passes are conflicts"
    )
    assert evidence({"evidence": "14.88 µs is 77% of what H200 allows"}) == "14.88 µs is 77% of what H200 allows"
