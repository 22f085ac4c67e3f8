"""What counts as found: a report that the right kernel does not get, or, counted apart, a crash or a hang."""

from pathlib import Path

import pytest

from benchmarks.emulator.sanitizer_table import (
    AGREEMENT,
    PLAIN,
    TOOLS,
    FaultComparison,
    LaunchOutcome,
    SanitizerResult,
    SanitizerRow,
    agreement,
    compare,
    render,
    right_name,
)
from tests.doubles import ENVIRONMENT
from tests.sandbox.emulator.corpus import RECORDED_FAULTS

VERDICTS = agreement((Path(__file__).parents[3] / AGREEMENT).read_text(encoding="utf-8"))
FAULT = RECORDED_FAULTS[0]
RIGHT = right_name(FAULT)


def row(kernel: str, tool: str, outcome: LaunchOutcome, *said: str, errors: int = 0, warnings: int = 0) -> SanitizerRow:
    return SanitizerRow(kernel=kernel, tool=tool, outcome=outcome, errors=errors, warnings=warnings, said=said, seconds=1.0)


def result(*rows: SanitizerRow, not_run: tuple[str, ...] = ()) -> SanitizerResult:
    return SanitizerResult(
        command="command",
        commit="c0ffee",
        date="2026-11-22",
        sanitizer="1.2.3",
        options=dict.fromkeys(TOOLS, "--option"),
        environment=ENVIRONMENT,
        rows=rows,
        not_run=not_run,
    )


def compared(*rows: SanitizerRow) -> FaultComparison:
    return next(one for one in compare(result(*rows), VERDICTS) if one.fault is FAULT)


def line(table: str, start: str) -> str:
    [found] = [line for line in table.splitlines() if line.startswith(f"| {start} |")]
    return found


def test_the_committed_agreement_has_every_fault() -> None:
    assert set(VERDICTS) == {fault.id for fault in RECORDED_FAULTS}
    found = [one for one in compare(result(), VERDICTS) if one.gpu != "nothing"]
    assert len(found) == 59  # as the head of that table says
    assert sum(one.emulator == "reported" for one in compare(result(), VERDICTS)) == 88


def test_an_agreement_that_lacks_faults_is_refused() -> None:
    with pytest.raises(SystemExit, match=FAULT.id):
        compare(result(), {})


def test_a_report_counts_unless_the_right_kernel_gets_it_from_the_same_tool() -> None:
    reported = row(FAULT.id, "memcheck", "reported", "Invalid read", errors=1)
    assert compared(reported, row(RIGHT, "memcheck", "nothing")).sanitizer == "reported"
    assert compared(reported, row(RIGHT, "initcheck", "reported", errors=5)).sanitizer == "reported"
    right = row(RIGHT, "memcheck", "reported", "Unwritten, 16 bytes at 0x7f3d1ca28", errors=5)
    assert compared(reported, right).sanitizer == "reported"
    assert (
        compared(row(FAULT.id, "memcheck", "reported", "Unwritten, 8 bytes at 0xab0", errors=1), right).sanitizer == "nothing"
    )


def test_a_crash_or_a_hang_without_a_report_counts_apart() -> None:
    assert compared(row(FAULT.id, PLAIN, "crashed")).sanitizer == "noticed"
    assert compared(row(FAULT.id, "racecheck", "timed out")).sanitizer == "noticed"
    assert compared(row(FAULT.id, "racecheck", "failed"), row(FAULT.id, PLAIN, "nothing")).sanitizer == "nothing"


def test_the_table_counts_by_tool_and_by_way() -> None:
    table = render(
        result(
            row(FAULT.id, "memcheck", "reported", "Invalid __global__ read", errors=3),
            row(FAULT.id, PLAIN, "crashed", "launch failed: x"),
            row(RECORDED_FAULTS[1].id, "racecheck", "timed out"),
            row(RIGHT, "memcheck", "nothing"),
            row(RIGHT, "initcheck", "reported", "Uninitialized", errors=1, warnings=2),
        ),
        VERDICTS,
    )
    assert line(table, "memcheck") == "| memcheck | 1 | 0 | 0 of 1 |"
    assert line(table, "racecheck") == "| racecheck | 0 | 1 | 0 of 0 |"
    assert line(table, "initcheck") == "| initcheck | 0 | 0 | 1 of 1 |"
    assert line(table, "without a tool") == "| without a tool | 0 | 1 | 0 of 0 |"
    assert line(table, "any of the four") == "| any of the four | 1 | 1 |  |"
    assert line(table, "emulator") == "| emulator | 88 | 0 |  |"
    assert "| crashed: launch failed: x | 3 errors: Invalid __global__ read | not run |" in line(table, FAULT.id)
    assert line(table, RIGHT).endswith("| 1 error, 2 warnings: Uninitialized | not run |")


def test_a_report_that_the_right_kernel_gets_too_says_so() -> None:
    table = render(
        result(row(FAULT.id, "memcheck", "reported", "x", errors=1), row(RIGHT, "memcheck", "reported", "x", errors=1)),
        VERDICTS,
    )
    assert "| as of the right kernel: 1 error: x |" in line(table, FAULT.id)
    assert line(table, "memcheck") == "| memcheck | 0 | 0 | 1 of 1 |"


def test_what_was_not_run_is_told() -> None:
    assert "Not run, for want of time (2): a, memcheck; b, none." in render(
        result(not_run=("a, memcheck", "b, none")), VERDICTS
    )
    assert "want of time" not in render(result(), VERDICTS)
