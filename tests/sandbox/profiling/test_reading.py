"""Reading ncu's tables: two real ones of an H200, and texts that are not numbers."""

import contextlib
import csv
import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.profiling.metric_set import MetricSet, MetricSpec, load_metric_set
from cudal2_agent.sandbox.profiling.reading import Unreadable, conversion, read_launches
from tests.sandbox.profiling.pretend import CRASH, HERE, MMA_SYNC, WGMMA

HOPPER = load_metric_set(Arch.SM_90A)
DURATION = MetricSpec(metric="gpu__time_duration.sum", unit="ns", meaning="time")
ONE = MetricSet(name="one", metrics={"duration_ns": DURATION})


def table(value: str = "1,234.50", unit: str = "ns", **changes: str) -> str:
    """A table of one kernel and one metric."""
    row = {"ID": "0", "Kernel Name": "gemm", "Block Size": "(128, 1, 1)", "Grid Size": "(32, 8, 1)", DURATION.metric: value}
    row |= {name.replace("_", " "): text for name, text in changes.items()}
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(row)
    writer.writerow([unit if name == DURATION.metric else "" for name in row])
    writer.writerow(row.values())
    return out.getvalue()


def value_of(text: str) -> float | None:
    [launch] = read_launches(text, ONE)
    return launch.metrics.get("duration_ns")


def test_a_real_table():
    [launch] = read_launches(WGMMA, HOPPER)
    assert (launch.entry, launch.grid, launch.block) == ("wgmma_tma_gemm", (132, 1, 1), (384, 1, 1))
    assert launch.metrics["duration_ns"] == 11136
    assert launch.metrics["dram_read_bytes"] == 5265152


def test_what_the_real_table_lacks_is_absent():
    [launch] = read_launches(WGMMA, HOPPER)
    columns = set(next(csv.reader(line for line in WGMMA.splitlines() if line.startswith('"'))))
    present = {short for short, spec in HOPPER.metrics.items() if spec.metric in columns}
    assert 20 < len(present) < len(HOPPER.metrics)
    assert set(launch.metrics) <= present
    # Every unit that ncu prints fits the set; only uncounted quantities are missing.
    assert len(present - set(launch.metrics)) <= 4


def test_the_values_of_the_real_table_are_ncus_own():
    """Against a plain reading of the same file."""
    rows = list(csv.reader(line for line in MMA_SYNC.splitlines() if line.startswith('"')))
    plain = dict(zip(rows[0], rows[2], strict=True))
    [launch] = read_launches(MMA_SYNC, HOPPER)
    for short, value in launch.metrics.items():
        spec = HOPPER.metrics[short]
        assert value == pytest.approx(float(plain[spec.metric].replace(",", "")) * spec.scale), short


def test_several_kernels_keep_their_order():
    other = [line for line in table(Kernel_Name="reduce", Grid_Size="(4, 1, 1)").splitlines() if "reduce" in line]
    both = table() + "==PROF== something between\n" + other[0] + "\n"
    assert [(launch.entry, launch.grid) for launch in read_launches(both, ONE)] == [("gemm", (32, 8, 1)), ("reduce", (4, 1, 1))]


def test_a_crashed_kernel_gives_no_values():
    [launch] = read_launches(CRASH, HOPPER)
    assert launch.metrics == {}


def test_an_unknown_metric_is_absent():
    text = (HERE / "h200_unknown.csv").read_text()
    asked = MetricSet(
        name="x", metrics={"foo": MetricSpec(metric="foo__bar.sum", unit="", meaning="nothing"), "duration_ns": DURATION}
    )
    [launch] = read_launches(text, asked)
    assert set(launch.metrics) == {"duration_ns"}


@pytest.mark.parametrize(
    "text", ["n/a", "", "no data", "nan", "inf", "-inf", "1,23", "1.234,5", "1 234", "0x10", "(!) n/a", "１２"]
)
def test_what_is_no_number_is_absent(text):
    assert value_of(table(text)) is None


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("12", 12), ("1,234", 1234), ("1,234,567.89", 1234567.89), ("1.5e3", 1500), ("-7", -7)]
)
def test_numbers(text, value):
    assert value_of(table(text)) == value


@pytest.mark.parametrize(
    ("unit", "value"), [("ns", 2), ("nsecond", 2), ("us", 2e3), ("usecond", 2e3), ("ms", 2e6), ("s", 2e9), ("second", 2e9)]
)
def test_units_of_another_size_are_converted(unit, value):
    assert value_of(table("2", unit)) == pytest.approx(value)


@pytest.mark.parametrize("unit", ["", "%", "cycle", "byte", "inst", "s/byte", "ns/cycle", "fortnight"])
def test_a_unit_of_another_kind_is_dropped_with_a_warning(unit, caplog):
    with caplog.at_level(logging.WARNING):
        assert value_of(table("2", unit)) is None
    assert "it is left out" in caplog.text


@pytest.mark.parametrize(
    ("unit", "wanted", "factor"),
    [
        ("Kbyte", "byte", 1e3), ("Mbyte/s", "byte/s", 1e6), ("byte/second", "byte/s", 1), ("byte/ns", "byte/s", 1e9),
        ("Kbyte/block", "byte/block", 1e3), ("hz", "Ghz", 1e-9), ("Ghz", "hz", 1e9), ("inst", "inst", 1), ("%", "%", 1),
        ("", "", 1), ("inst", "", None), ("byte/sector", "byte", None), ("sector", "byte/sector", None),
    ],
)  # fmt: skip
def test_conversions(unit, wanted, factor):
    found = conversion(unit, MetricSpec(metric="x", unit=wanted, meaning="y"))
    assert found is None if factor is None else found == pytest.approx(factor)


def test_the_scale_of_a_metric_is_applied():
    scaled = MetricSet(name="x", metrics={"warps": DURATION.model_copy(update={"scale": 4.0})})
    [launch] = read_launches(table("2"), scaled)
    assert launch.metrics == {"warps": 8}


@pytest.mark.parametrize(
    "cut", ["", "==ERROR== nothing works\n", "plain text\nmore of it\n", "==WARNING== No kernels were profiled.\n"]
)
def test_no_table_is_no_launch(cut):
    assert read_launches(cut, ONE) == ()


@pytest.mark.parametrize("missing", ["Kernel Name", "Grid Size", "Block Size"])
def test_a_table_without_a_needed_column_is_refused(missing):
    with pytest.raises(Unreadable, match=missing):
        read_launches(table().replace(missing, "Other"), ONE)


def test_a_table_without_units_is_refused():
    lines = table().splitlines()
    with pytest.raises(Unreadable, match="units"):
        read_launches("\n".join([lines[0], lines[2]]), ONE)


def test_a_grid_that_is_none_is_refused():
    with pytest.raises(Unreadable, match="big"):
        read_launches(table(Grid_Size="big"), ONE)


def test_a_table_that_was_cut_off_anywhere_gives_nothing_wrong():
    """A truncated table reads as the whole one or is refused."""
    [whole] = read_launches(WGMMA, HOPPER)
    for end in range(len(WGMMA)):
        try:
            launches = read_launches(WGMMA[:end], HOPPER)
        except Unreadable:
            continue
        assert launches in ((), (whole,)), end


@given(st.text(alphabet='",\n=1a(). ', max_size=200))
def test_garbage_is_refused_or_empty(text):
    with contextlib.suppress(Unreadable):
        assert read_launches(text, ONE) == ()
