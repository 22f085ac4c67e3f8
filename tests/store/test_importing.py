"""Imports: all of it or nothing, twice as good as once, and one clear line for what cannot be imported."""

import gzip
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.records.evaluation import TestResult, Wrong
from cudal2_agent.contract.records.trajectory import RunRecord, Step, Trajectory
from cudal2_agent.store import importing, incoming
from cudal2_agent.store.importing import ImportSummary, import_files
from cudal2_agent.store.incoming import lines_of, shown
from cudal2_agent.store.packing import zstd
from cudal2_agent.store.plain_records import candidate_id
from cudal2_agent.store.steps import export_steps, to_line
from cudal2_agent.store.store import Store, open_store
from cudal2_agent.store.sweep import sweep_reading
from cudal2_agent.store.sweep.sweep_files import export_sweep
from tests.doubles import INSPECTION, NOW, OBSERVATION, profile, run_record, step
from tests.policies.chat.exchanges import exchange

FIXTURE = Path(__file__).parent / "exported_steps_v1.jsonl"
WRONG = Wrong(
    test=TestResult(tier="exact", name="wide-sums", passed=False, worst=math.nan, message="Ünïcode ✗ \u2028"),
    tests=(),
    inspection=INSPECTION,
)
NOTHING = ImportSummary(files=1, runs=0, steps=0, exchanges=0, known_steps=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as made:
        yield made


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """A store with two runs, one of which asked a model."""
    with open_store(f"sqlite:///{tmp_path / 'other.sqlite'}") as made:
        for run_id in ("run-1", "run-2"):
            made.start_run(run_record(run_id, versions={"python": "3.11"}))
            made.record_observation(run_id, OBSERVATION)
        made.record_exchange("run-1", exchange(candidate_id=step(1, number=1).candidate.id))
        for one in (step(0), step(1, number=1, evaluation=WRONG, reward=-2.0), step(0, run_id="run-2", profile=profile())):
            made.record_step(one)
        yield made


def lines_of_steps(store: Store) -> list[str]:
    return [to_line(one) for trajectory in store.trajectories() for one in export_steps(trajectory)]


def written(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def one_run(*steps: Step, run: RunRecord | None = None) -> list[Trajectory]:
    return [Trajectory(run=run or run_record(), observations={}, steps=steps)]


def test_steps_come_back_as_the_same_lines(store: Store, other: Store, tmp_path: Path) -> None:
    path = written(tmp_path / "steps.jsonl", lines_of_steps(other))
    assert import_files(store, [path]) == ImportSummary(files=1, runs=2, steps=3, exchanges=1, known_steps=0)
    assert lines_of_steps(store) == lines_of_steps(other)
    assert [one.model_dump_json() for one in store.steps("run-1")] == [one.model_dump_json() for one in other.steps("run-1")]
    assert store.exchanges("run-1") == other.exchanges("run-1")


def test_the_exchange_of_several_candidates_is_counted_once(store: Store, other: Store, tmp_path: Path) -> None:
    both = exchange(candidate_ids=(step(0).candidate.id, step(1, number=1).candidate.id))
    other.record_exchange("run-1", both)
    lines = lines_of_steps(other)
    assert sum('"candidate_ids":[' in line for line in lines) == 2
    assert import_files(store, [written(tmp_path / "steps.jsonl", lines)]).exchanges == 1
    assert store.exchanges("run-1") == [both]


def test_what_lines_do_not_hold_of_a_run_is_not_invented(store: Store, other: Store, tmp_path: Path) -> None:
    import_files(store, [written(tmp_path / "steps.jsonl", lines_of_steps(other))])
    run = store.run("run-1")
    assert (run.status, run.finished_at, run.best_candidate_id, run.out) == ("finished", None, None, None)
    assert (run.settings.cutlass, run.settings.seed, run.settings.policy) == ("", 0, "scripted")
    assert run.versions == {"python": "3.11"}


def test_lines_of_the_first_release_import(store: Store) -> None:
    count = len(FIXTURE.read_text("utf-8").splitlines())
    assert import_files(store, [str(FIXTURE)]).steps == count > 0
    assert import_files(store, [str(FIXTURE)]).known_steps == count


def test_an_import_into_the_store_that_wrote_the_files_adds_nothing(other: Store, tmp_path: Path) -> None:
    before = lines_of_steps(other)
    export_sweep(other.trajectories(), tmp_path / "a.sweep.zst")
    files = [written(tmp_path / "steps.jsonl", before), str(tmp_path / "a.sweep.zst")]
    assert import_files(other, files[:1]) == NOTHING.model_copy(update={"known_steps": 3})
    assert import_files(other, files[1:]) == NOTHING.model_copy(update={"known_steps": 3})
    assert lines_of_steps(other) == before


def test_files_of_any_packing_and_blank_lines_import(store: Store, other: Store, tmp_path: Path) -> None:
    text = "\n\n".join(lines_of_steps(other)).encode()
    (tmp_path / "a").write_bytes(gzip.compress(text))
    (tmp_path / "b").write_bytes(zstd.compress(text))
    assert import_files(store, [str(tmp_path / "a"), str(tmp_path / "b")]).known_steps == 3


def test_a_source_with_a_byte_order_mark_imports_as_without_it(store: Store, other: Store, tmp_path: Path) -> None:
    """Named by the hash of either text, as older versions and editors leave it."""
    plain, marked = lines_of_steps(other), []
    for index, line in enumerate(plain):
        fields = json.loads(line)
        fields["candidate"]["source"] = "\ufeff" + fields["candidate"]["source"]
        if index == 0:
            fields["candidate_id"] = candidate_id(fields["candidate"])
        marked.append(json.dumps(fields))
    path = written(tmp_path / "steps.jsonl", marked)
    assert import_files(store, [path]).steps == len(plain)
    assert [one.candidate for one in store.steps("run-1")] == [one.candidate for one in other.steps("run-1")]
    assert import_files(store, [path]).known_steps == len(plain)


def spoilt(line: str, **changes: Any) -> str:
    return json.dumps({**json.loads(line), **changes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line[:-20], r"line 2: Invalid JSON"),
        (lambda line: spoilt(line, reward="good"), r"line 2: reward: Input should be a valid number"),
        (lambda line: spoilt(line, later=1), r"line 2: later: Extra inputs are not permitted"),
        (lambda line: spoilt(line, candidate_id="00"), r"line 2: candidate_id 00 is not the hash of the candidate"),
        (lambda line: spoilt(line, index=2**40), r"line 2: step 1099511627776 of run run-1 has an index or"),
        (lambda line: spoilt(line, index=-1), r"line 2: step -1 of run run-1 has an index or a round out"),
        (lambda line: spoilt(line, run_id=""), r"line 2: run_id: String should match pattern"),
        (lambda _: "[" * 100_000, r"line 2: Invalid JSON"),
        (lambda _: "\udcff", r"line 2: Invalid JSON"),
    ],
)
def test_a_corrupt_line_is_named_and_nothing_of_any_file_is_imported(
    store: Store, other: Store, tmp_path: Path, change: Any, message: str
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    lines = lines_of_steps(other)
    written(good, lines[2:])
    bad.write_bytes(f"{lines[0]}\n{change(lines[1])}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=rf"bad\.jsonl, {message}.*; nothing was imported$") as caught:
        import_files(store, [str(good), str(bad)])
    assert "\n" not in str(caught.value)
    assert store.runs() == []
    assert store.step_counts() == {}


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_named(store: Store, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"a\.jsonl is empty"):
        import_files(store, [written(tmp_path / "a.jsonl", [text] if text else [])])


@pytest.mark.parametrize("text", ['{"messages": []}', "[]", "3", '"text"', "null"])
def test_a_file_of_another_form_is_named(store: Store, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"a\.jsonl, line 1: neither a sweep nor steps; write such a file with"):
        import_files(store, [written(tmp_path / "a.jsonl", [text])])


def test_a_truncated_piece_is_named_and_nothing_of_it_is_imported(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.sweep.zst"
    export_sweep(one_run(*(step(index, number=index) for index in range(50))), path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UsageError, match=r"a\.sweep\.zst is damaged or incomplete"):
        import_files(store, [str(path)])
    assert store.runs() == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"format": "cudal2-sweep", "version": 3, "product": "9.1"}', "line 1: sweep version 3 of cudal2-agent 9.1; this"),
        ('{"index": 0, "round": 1}', "line 2: "),
        ('{"unknown": 0}', "line 2: not a line of a sweep"),
        ("[1]", "line 2: not a line of a sweep"),
        (
            '{"index":0,"round":1,"created_ms":0,"evaluation":{},"origin":{},"candidate":{}}',
            "line 2: a step before the first run",
        ),
    ],
)
def test_a_corrupt_sweep_is_named(store: Store, tmp_path: Path, line: str, message: str) -> None:
    header = [] if "format" in line else ['{"format":"cudal2-sweep","version":1,"product":"0.2"}']
    with pytest.raises(UsageError, match=rf"a\.sweep, {message}"):
        import_files(store, [written(tmp_path / "a.sweep", [*header, line])])


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("created_ms", number) for number in (10**15, -(10**15), 10**30)), ("seconds_ms", {"evaluate": 10**400})],
)
def test_a_time_out_of_range_is_named(store: Store, tmp_path: Path, name: str, value: object) -> None:
    lines = _sweep_lines(tmp_path)
    lines[-1][name] = value
    with pytest.raises(UsageError, match="a number or a time is out of range"):
        import_files(store, [written(tmp_path / "b.sweep", [json.dumps(line) for line in lines])])
    assert store.runs() == []


@pytest.mark.parametrize("kind", ["axes", "exchange"])
def test_what_a_sweep_declares_does_not_fill_the_memory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sweep_reading, "MAX_LINE_BYTES", 4000)
    lines = [json.dumps(line) for line in _sweep_lines(tmp_path)]
    said = exchange(text="x" * 500).model_dump(mode="json")
    more = [{"axes": ["x" * 900, str(number)]} if kind == "axes" else {"exchange": said} for number in range(5)]
    lines[1:1] = [json.dumps(line) for line in more]
    with pytest.raises(UsageError, match=r"environments, axes, baselines and exchanges of more than 4,000 bytes"):
        import_files(store, [written(tmp_path / "b.sweep", lines)])


def _sweep_lines(folder: Path) -> list[dict[str, Any]]:
    export_sweep(one_run(step(0)), folder / "a.sweep.zst")
    return [json.loads(line) for line in zstd.decompress((folder / "a.sweep.zst").read_bytes()).splitlines()]


def test_a_candidate_without_a_field_is_not_the_one_it_names(store: Store, tmp_path: Path) -> None:
    line = json.loads(FIXTURE.read_text().splitlines()[0]) | {"candidate_id": "0" * 32}
    del line["candidate"]["flags"]
    with pytest.raises(UsageError, match=r"line 1: .*flags"):
        import_files(store, [written(tmp_path / "a.jsonl", [json.dumps(line)])])


def test_a_step_that_differs_is_refused(store: Store, other: Store, tmp_path: Path) -> None:
    lines = lines_of_steps(other)
    import_files(store, [written(tmp_path / "a.jsonl", lines)])
    before = lines_of_steps(store)
    changed = written(tmp_path / "b.jsonl", [lines[2], spoilt(lines[0], reward=0.25)])
    with pytest.raises(
        UsageError, match=r"b\.jsonl, line 2: step 0 of run run-1 differs from the known one; import it into another"
    ):
        import_files(store, [changed])
    assert lines_of_steps(store) == before


def test_a_step_that_differs_from_an_earlier_file_is_refused(store: Store, tmp_path: Path) -> None:
    export_sweep(one_run(step(0, reward=0.1)), tmp_path / "a.zst")
    export_sweep(one_run(step(0, reward=0.2)), tmp_path / "b.zst")
    with pytest.raises(UsageError, match="step 0 of run run-1"):
        import_files(store, [str(tmp_path / "a.zst"), str(tmp_path / "b.zst")])
    assert store.runs() == []


def test_a_run_of_another_task_in_two_files_is_refused(store: Store, tmp_path: Path) -> None:
    export_sweep(one_run(step(0)), tmp_path / "a.zst")
    export_sweep(one_run(step(1), run=run_record(seed=3)), tmp_path / "b.zst")
    with pytest.raises(UsageError, match=r"b\.zst, line 2: run run-1 has another task, chip or seed"):
        import_files(store, [str(tmp_path / "a.zst"), str(tmp_path / "b.zst")])
    assert store.runs() == []


def test_a_run_of_another_task_is_refused(store: Store, tmp_path: Path) -> None:
    store.start_run(run_record(seed=3))
    export_sweep(one_run(step(0)), tmp_path / "a.zst")
    with pytest.raises(
        UsageError, match=r"a\.zst, line 2: run run-1 has another task, chip or seed than the known run of that id"
    ):
        import_files(store, [str(tmp_path / "a.zst")])


def test_a_run_in_files_of_two_forms_is_imported_one_after_the_other(store: Store, other: Store, tmp_path: Path) -> None:
    export_sweep(other.trajectories(), tmp_path / "a.zst")
    files = [written(tmp_path / "b.jsonl", lines_of_steps(other)), str(tmp_path / "a.zst")]
    with pytest.raises(UsageError, match="import one after the other"):
        import_files(store, files)
    assert import_files(store, files[:1]).steps == 3
    assert import_files(store, files[1:]).known_steps == 3


def test_a_run_that_has_ended_since_takes_its_new_record_and_steps(store: Store, tmp_path: Path) -> None:
    ended = run_record(status="finished", finished_at=NOW, best_candidate_id="abc")
    export_sweep(one_run(step(0)), tmp_path / "a.zst")
    export_sweep(one_run(step(0), step(1, number=1), run=ended), tmp_path / "b.zst")
    import_files(store, [str(tmp_path / "a.zst")])
    summary = import_files(store, [str(tmp_path / "b.zst")])
    assert (summary.steps, summary.known_steps) == (1, 1)
    assert store.run("run-1") == ended
    import_files(store, [str(tmp_path / "a.zst")])
    assert store.run("run-1") == ended


def test_of_the_records_in_two_files_the_one_that_ended_counts(store: Store, tmp_path: Path) -> None:
    ended = run_record(status="finished", finished_at=NOW)
    export_sweep(one_run(step(0)), tmp_path / "a.zst")
    export_sweep(one_run(step(1, number=1), run=ended), tmp_path / "b.zst")
    import_files(store, [str(tmp_path / name) for name in ("a.zst", "b.zst", "a.zst")])
    assert store.run("run-1") == ended
    assert store.step_counts() == {"run-1": 2}


def test_a_store_that_fails_has_nothing_of_the_import(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_sweep(one_run(*(step(index, number=index) for index in range(5))), tmp_path / "a.zst")

    def full(*_: object) -> None:
        raise StoreError("store sqlite:///… cannot be used (database or disk is full)")

    monkeypatch.setattr("cudal2_agent.store.store.Writer.record_step", full)
    with pytest.raises(StoreError, match="disk is full"):
        import_files(store, [str(tmp_path / "a.zst")])
    assert store.runs() == []


def test_progress_names_the_file_and_counts_the_steps(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_REPORT_EVERY", 8)
    export_sweep(one_run(*(step(index, number=index) for index in range(20))), tmp_path / "a.zst")
    seen: list[tuple[str, int]] = []
    import_files(store, [str(tmp_path / "a.zst")], lambda name, steps: seen.append((Path(name).name, steps)))
    assert seen == [("a.zst", 3), ("a.zst", 11), ("a.zst", 19)]


def test_an_exchange_finds_its_observation(store: Store, other: Store, tmp_path: Path) -> None:
    import_files(store, [written(tmp_path / "a.jsonl", lines_of_steps(other))])
    [asked] = store.exchanges("run-1")
    assert store.observation(asked.observation_id) == OBSERVATION


# Lines of a file: the content says how it is packed; a damaged file is one clear line.
TEXT = b'{"a":1}\n\r\n{"b":"\xc3\xbc"}'
LINES = [b'{"a":1}', b"", b'{"b":"\xc3\xbc"}']
PACKERS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("packing", PACKERS)
def test_the_content_decides_not_the_name(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "steps.txt"
    path.write_bytes(PACKERS[packing](TEXT))
    assert list(lines_of(str(path))) == LINES


@pytest.mark.parametrize("packing", PACKERS)
def test_stdin_is_read_the_same_way(monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(PACKERS[packing](TEXT))))
    monkeypatch.setattr("sys.stdin", stdin)
    assert list(lines_of("-")) == LINES


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:-1] + b"?", lambda data: data + b"more"])
@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_damaged_file_is_named(tmp_path: Path, packing: str, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.zst"
    options = {zstd.CompressionParameter.checksum_flag: 1}
    data = zstd.compress(TEXT * 100, options=options) if packing == "zstd" else gzip.compress(TEXT * 100)
    path.write_bytes(damage(data))
    with pytest.raises(UsageError, match=r"a\.zst is damaged or incomplete \(.*\); nothing was imported: fetch the file again"):
        list(lines_of(str(path)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.zst cannot be read \(No such file or directory\)"):
        list(lines_of(str(tmp_path / "none.zst")))


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MAX_LINE_BYTES", 1024**2)
    path = tmp_path / "a.zst"
    path.write_bytes(zstd.compress(b"x" * 5 * 1024**2))
    with pytest.raises(UsageError, match="has a line over 1 MiB; it is not an export"):
        list(lines_of(str(path)))


def test_a_name_that_is_not_utf8_can_be_shown() -> None:
    assert shown("a\udcff.zst") == "a?.zst"
    assert shown("-") == "stdin"


def test_a_file_of_empty_lines_has_an_end(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(zstd.compress(b"\n" * (64 << 20)))
    with pytest.raises(UsageError, match="more than 1,000 empty lines; nothing was imported"):
        import_files(store, [str(tmp_path / "a.zst")])


@pytest.mark.parametrize("run_id", ["../../outside", "/tmp/x", "a/b", "", ".", "..", "a\x1b[2J", "x" * 200, "a b", "ü"])
def test_a_run_id_that_is_no_name_of_a_file_is_refused(store: Store, tmp_path: Path, run_id: str) -> None:
    line = json.loads(FIXTURE.read_text().splitlines()[0]) | {"run_id": run_id}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UsageError, match="line 1: run_id: String should"):
        import_files(store, [str(tmp_path / "a.jsonl")])
    assert store.runs() == []
