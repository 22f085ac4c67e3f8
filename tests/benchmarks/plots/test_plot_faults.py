"""The picture of the seeded faults counts what the table counts."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.pictures.faults import CLASSES, SANITIZER, draw
from benchmarks.pictures.svg import GOOD, OURS
from benchmarks.sanitizer_corpus.sanitizer_table import PLAIN, SanitizerResult, SanitizerRow
from tests.benchmarks.pictures import SVG, outside, words
from tests.benchmarks.test_sanitizer_table import VERDICTS, result, row
from tests.sandbox.emulator.corpus import RECORDED_FAULTS

CLASS = "out of bounds or misaligned"
OF_CLASS = [fault.id for fault in RECORDED_FAULTS if fault.detectors[0] in CLASSES[CLASS]]


def squares(picture: str, colour: str) -> list[float]:
    """Side lengths of the squares of one colour."""
    every = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    return [float(one.attrib["width"]) for one in every if one.attrib["fill"] == colour]


def rows() -> tuple[SanitizerRow, ...]:
    """Two faults of a class reported by different tools, a third that only crashes."""
    return (
        row(OF_CLASS[2], PLAIN, "crashed"),
        row(OF_CLASS[0], "memcheck", "reported", errors=1),
        row(OF_CLASS[1], "racecheck", "reported", warnings=1),
    )


def test_every_fault_belongs_to_one_class() -> None:
    named = [name for detectors in CLASSES.values() for name in detectors]
    assert len(named) == len(set(named))
    assert {fault.detectors[0] for fault in RECORDED_FAULTS} == set(named)


def test_squares_are_full_where_a_fault_is_reported_and_small_where_it_is_only_noticed() -> None:
    picture = draw(result(*rows()), VERDICTS)
    full, small = max(squares(picture, GOOD)), min(squares(picture, GOOD))
    assert small < full
    assert sorted(squares(picture, SANITIZER)) == [small, full, full]
    assert squares(picture, GOOD).count(full) == 38
    assert squares(picture, GOOD).count(small) == 21
    assert squares(picture, OURS) == [full] * 88


def test_counts_stand_over_the_columns_and_behind_the_classes() -> None:
    shown = words(draw(result(*rows()), VERDICTS))
    assert {"2 reported, 1 noticed", "38 reported, 21 noticed", "88 reported, 0 noticed"} <= set(shown)
    assert "2 + 1" in shown


def test_false_alarms_and_what_was_not_run_are_told() -> None:
    alarm = row("right-one", "initcheck", "reported", errors=1)
    shown = words(draw(result(alarm, row("right-two", "initcheck", "nothing"), not_run=("a, b",)), VERDICTS))
    assert any("out of 2: memcheck 0, racecheck 0, initcheck 1, synccheck 0." in one for one in shown)
    assert any("for want of time: 1 launches" in one for one in shown)


def test_no_text_leaves_the_picture() -> None:
    crashed = result(*(row(fault.id, PLAIN, "crashed") for fault in RECORDED_FAULTS), not_run=("a, b",) * 500)
    assert outside(draw(crashed, VERDICTS)) == []


def test_the_committed_picture_is_the_committed_result_drawn() -> None:
    stored = Path("benchmarks/results/h200_sanitizer_2026-11-22.json").read_text(encoding="utf-8")
    assert draw(SanitizerResult.model_validate_json(stored), VERDICTS) == Path("docs/pictures/h200_faults.svg").read_text(
        encoding="utf-8"
    )
