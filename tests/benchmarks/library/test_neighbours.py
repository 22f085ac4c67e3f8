"""Entries lent to other M: which products are drawn, what is kept of a measurement, and how the rule is judged."""

import json
from pathlib import Path

import pytest

from benchmarks.library import neighbours
from benchmarks.library.neighbours import ROWS, LentProduct, joined, lent, main, read_products, table
from cudal2.dispatch.padded_m_rule import shipped_rule
from cudal2.library.kernel_library import open_library
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.contract.records.task import GemmTask
from tests.doubles.libraries import library_entry, write_entries

TASKS = [GemmTask(m=m, n=32, k=64) for m in (32, 64)]


def product(shape: str, entry_m: int, entry_low: float, ratio: float, half: float = 0.01) -> LentProduct:
    return LentProduct(
        shape=shape,
        entry_m=entry_m,
        entry_low=entry_low,
        family="latency",
        plain_us=2 * ratio,
        served_us=2.0,
        ratio=ratio,
        low=ratio - half,
        high=ratio + half,
    )


def rows_of(products: list[LentProduct]) -> dict[str, list[str]]:
    """The table's cells by the name of the row."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(products).splitlines()[2:]]
    return {name: cells for name, *cells in lines}


def test_products_are_lent_once_and_within_an_octave() -> None:
    entries = [library_entry(task) for task in TASKS]
    found = list(lent(entries, each=4))
    assert found == list(lent(entries, each=4))
    assert len({entry.task.shape for entry, _ in found}) == len(found) >= 6
    assert not {entry.task.m for entry, _ in found} & {32, 64}
    for entry, own in found:
        assert own / 2 <= entry.task.m <= 2 * own
        assert candidate_of(entry).source, "its source is that of its own M"


def test_the_library_that_is_lent_and_its_rows_make_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["neighbours", *map(str, words)])
        main()
        return capsys.readouterr().out

    small = write_entries(tmp_path / "small", [library_entry(task, ratio=1.5) for task in TASKS])
    library = tmp_path / "lent.jsonl.gz"
    assert run("lend", "--library", small, "--each", 1, "--out", library) == "2 products of 2 entries\n"
    shapes = run("shapes", library).split()
    assert sorted(shapes) == sorted(entry.task.shape for entry in open_library(library))
    times = {"plain_us": 3.0, "served_us": 2.0, "ratio": 1.5, "low": 1.4, "high": 1.6, "sets": 1}
    measured = [{"shape": shape, "served": shape == shapes[0], **times} for shape in shapes]
    said = {"command": "the command", "gpu": "H200", "torch": "2.11", "summary": {}, "rows": measured}
    (tmp_path / "shapes.json").write_text(json.dumps(said))
    assert run("rows", library, tmp_path / "shapes.json", "--out", tmp_path / "rows.json").startswith("1 of 2 products")
    [kept] = read_products(tmp_path / "rows.json")
    origins = json.loads((tmp_path / "lent_from.json").read_text())
    assert (kept.shape, kept.entry_m, kept.entry_low) == (shapes[0], origins[shapes[0]], 1.49)
    assert (kept.family, kept.ratio, kept.low, kept.high) == ("latency", 1.5, 1.4, 1.6)
    assert run("judge", tmp_path / "rows.json") == table([kept]) + "\n"


def test_a_fresh_judgement_draws_what_the_rule_lends_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drawn(*words: str) -> dict[str, int]:
        small = write_entries(tmp_path / "small", [library_entry(GemmTask(m=256, n=32, k=64), ratio=1.31)])
        places = ["--library", str(small), "--out", str(tmp_path / "lent.jsonl.gz")]
        monkeypatch.setattr("sys.argv", ["neighbours", "lend", "--each", "40", *places, *words])
        main()
        capsys.readouterr()
        found: dict[str, int] = json.loads((tmp_path / "lent_from.json").read_text())
        return found

    allowed = {int(shape.partition("x")[0]) for shape in drawn("--allowed")}
    free = {int(shape.partition("x")[0]) for shape in drawn()}
    assert allowed == {m for m in free if m < 256 and 1.3 * m / 256 >= shipped_rule().least}
    assert min(free) < min(allowed)
    assert drawn("--allowed", "--seed", "1") != drawn("--allowed")


def test_a_row_that_ran_no_lent_kernel_is_left() -> None:
    entry = library_entry(TASKS[0])
    assert list(joined([entry], {entry.task.shape: 64}, [{"shape": entry.task.shape, "served": False}])) == []


def test_the_rule_is_judged_by_half_and_threshold() -> None:
    first, second = "32x64", "32x128"
    assert [product(f"48x{rest}", 64, 1.0, 1.0).second for rest in (first, second)] == [False, True]
    found = rows_of(
        [
            product(f"48x{first}", 64, 1.4, 1.2),  # margin 1.05
            product(f"56x{first}", 64, 1.1, 0.97),  # 0.9625
            product(f"32x{second}", 64, 2.2, 1.5),  # 1.1
            product(f"96x{second}", 64, 2.0, 0.9),  # a larger M
        ]
    )
    at = "half, low · m / M at least"
    assert found[f"first {at} 0.95"] == ["2", "1", "1", "1", "0.970", "1.079"]
    assert found[f"first {at} 1.0"] == ["1", "1", "0", "0", "1.200", "1.200"]
    assert [found[f"second {at} {least}"][0] for least in (0.9, 1.0, 1.05)] == ["1", "1", "1"]
    assert [found[name][0] for name, _, _ in neighbours.RATIOS] == ["1", "2", "0", "1"]
    assert found["1.4 and more"] == ["1", "0", "1", "1", "0.900", "0.900"]


def test_the_shipped_threshold_holds_on_both_halves_of_the_committed_rows() -> None:
    rule, products = shipped_rule(), read_products(ROWS)
    assert len(products) == 228
    allowed = [one for one in products if one.allowed(rule.least)]
    assert sorted((half, sum(one.second is half for one in allowed)) for half in (False, True)) == [(False, 10), (True, 15)]
    assert all(one.low > 1.0 for one in allowed)
    assert min(one.distance for one in products) >= rule.smallest
    assert json.loads(ROWS.read_text("utf-8"))["entries_measured"] == [rule.measured]
