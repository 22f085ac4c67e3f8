"""What `--shapes` takes, and results as files."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.speed.grid import grid_shapes
from cudal2_agent.agent.bench.proposals.bench_shapes import read_bench_shapes
from cudal2_agent.agent.campaign.result_files import import_results, write_results
from cudal2_agent.agent.campaign.shapes import GRID, RecordedProduct, ShapeFile, read_shapes
from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.records.task import Activation, Layout
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.campaign_results import ResultFilter
from cudal2_agent.store.store import open_store
from tests.store.campaigns.rows import result, tasks


def test_the_grid_is_that_of_the_benchmark() -> None:
    shapes, _ = read_shapes([GRID])
    assert [f"{one.m}x{one.n}x{one.k}" for one in shapes] == grid_shapes()


def test_shapes_come_from_words_and_files_each_once(tmp_path: Path) -> None:
    file = tmp_path / "shapes.txt"
    file.write_text("# layers\n64x64x64\n\n128x64x32  # odd\n")
    shapes, notices = read_shapes(["64x64x64,1x2x3", str(file)])
    assert [(one.m, one.n, one.k) for one in shapes] == [(64, 64, 64), (1, 2, 3), (128, 64, 32)]
    assert notices == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64x64x64\n64x64\n", "line 2"),
        ("# nothing\n", "holds no shape"),
        ('{"format": "cudal2-shapes",\n oops}', "line 2"),
        ('{"format": "cudal2-shapes", "version": 2, "products": []}', "version"),
        ('{"products": [{"m": 1, "n": 2, "k": 3, "layout": "nn", "part": "dX", "count": 1%s}]}' % ("0" * 400), "count"),
        ("64x0x64\n", "line 1"),
        ("64x64x64\n65536x64x32768\n", r"largest operand of 65536x64x32768 has 2147483648 elements"),
    ],
)
def test_a_bad_file_is_one_line_that_says_where(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "shapes.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_shapes([str(file)])
    assert len(str(caught.value).splitlines()) == 1


def test_a_word_that_is_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="neither grid1000 nor a file"):
        read_shapes(["grid100"])
    with pytest.raises(UsageError, match=r"^the largest operand of 32768x65536x64 has"):
        read_shapes(["32768x65536x64"])


def test_recorded_products_keep_their_layout_and_their_counts(tmp_path: Path) -> None:
    products = [
        RecordedProduct(m=64, n=32, k=16, layout="tn", part="forward", count=3),
        RecordedProduct(m=64, n=32, k=16, layout="tn", part="dX", count=2),
        RecordedProduct(m=64, n=32, k=16, layout="nt", part="dW", count=6),
        RecordedProduct(m=64, n=32, k=16, layout="tt", part="dW", count=4),
        RecordedProduct(m=65536, n=64, k=32768, layout="nt", part="dW", count=2),
    ]
    file = tmp_path / "shapes.json"
    file.write_text(ShapeFile(products=tuple(products)).model_dump_json())
    shapes, notices = read_shapes([str(file)])
    assert [(shape.layout, shape.weight) for shape in shapes] == [(Layout.TN, 5), (Layout.NT, 6)]
    assert notices == [
        f"4 products of {file} are left out: layout tt is not supported",
        f"2 products of {file} are left out: an operand has over 2^31-1 elements",
    ]


def test_recorded_products_keep_what_follows_them(tmp_path: Path) -> None:
    plain = RecordedProduct(m=64, n=32, k=16, layout="tn", part="forward", count=3)
    gated = {"activation": Activation.SILU, "gated": True}
    ends = [{}, {"bias": True}, {"activation": Activation.GELU}, gated, {"bias": True, "activation": Activation.GELU}]
    file = tmp_path / "shapes.recorded"  # a bench reads lists from .json
    file.write_text(ShapeFile(products=tuple(plain.model_copy(update=end) for end in [*ends, ends[-1]])).model_dump_json())
    assert plain.model_dump_json() == '{"m":64,"n":32,"k":16,"layout":"tn","part":"forward","count":3}', "as files of before"
    for shapes, _ in (read_shapes([str(file)]), read_bench_shapes([str(file)], None)):
        assert [(one.bias, one.activation, one.gated) for one in shapes] == [
            (False, None, False),
            (True, None, False),
            (False, Activation.GELU, False),
            (False, Activation.SILU, True),
            (True, Activation.GELU, False),
        ]
    assert [one.weight for one in read_shapes([str(file)])[0]] == [3, 3, 3, 3, 6]
    file.write_text(file.read_text().replace('"activation":"gelu"', '"activation":"swish"'))
    with pytest.raises(UsageError, match="'relu', 'gelu', 'gelu_tanh' or 'silu'"):
        read_shapes([str(file)])


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_results_travel_and_their_shapes_are_done_there(tmp_path: Path, name: str) -> None:
    rows = [result(task, 1.0 + number) for number, task in enumerate(tasks(3))]
    assert write_results(tmp_path / name, rows) == 3
    with open_store(f"sqlite:///{tmp_path / 'other.sqlite'}") as store:
        assert import_results(store, [tmp_path / name], "grid") == (3, 3)
        assert import_results(store, [tmp_path / name], "grid") == (0, 3)
        assert import_results(store, [tmp_path / name], "copy") == (0, 3), "a row is kept once, in its first campaign"
        assert store.results(ResultFilter(campaigns=("grid",))) == rows
        queue = CampaignQueue(store, "grid")
        queue.open(RunSettings())
        queue.add(tasks(5), seed=0)
        assert (queue.counts().done, queue.counts().pending) == (3, 2)


@pytest.mark.parametrize("damage", ["cut", "line", "header", "absent"])
def test_a_damaged_file_imports_nothing_of_a_whole_one_either(tmp_path: Path, damage: str) -> None:
    whole, path = tmp_path / "whole.jsonl.gz", tmp_path / "rows.jsonl.gz"
    for file in (whole, path):
        write_results(file, [result(task) for task in tasks(3)])
    match damage:
        case "cut":
            path.write_bytes(path.read_bytes()[:-20])
        case "line":
            lines = gzip.decompress(path.read_bytes()).splitlines()
            path.write_bytes(gzip.compress(b"\n".join([*lines[:2], b'{"campaign": "x"}', *lines[2:]])))
        case "header":
            path.write_bytes(json.dumps({"format": "cudal2-sweep"}).encode())
        case _:
            path.unlink()
    with open_store(f"sqlite:///{tmp_path / 'other.sqlite'}") as store:
        with pytest.raises(UsageError) as caught:
            import_results(store, [whole, path], "grid")
        assert len(str(caught.value).splitlines()) == 1
        assert "line 3" in str(caught.value) or damage != "line"
        assert store.results() == []


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        write_results(tmp_path / "no" / "rows.jsonl", [])
