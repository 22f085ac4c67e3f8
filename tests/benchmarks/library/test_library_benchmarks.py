"""The benchmarks of the library on the CPU: a small block, shapes and costs, served by the platform of the tests."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.harness import execute
from benchmarks.library import __main__ as library_bench
from benchmarks.library.dispatched_shapes import (
    library_products,
    measure_products,
    products_of,
    random_shapes,
    served_first,
    slower_products,
    summary,
)
from benchmarks.library.host_costs import host_costs
from benchmarks.library.transformer_block import BlockSize, gradient_difference, measure_block
from cudal2.torch import compiled_build, torch_session
from cudal2.torch.compiled_kernels import CompiledKernels
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2_agent.agent.library.paired_programs import over_copies, paired_times
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from tests.doubles.host_products import HostProducts

SIZE = BlockSize(hidden=64, batch=2, sequence=8)
OUTPUTS = ((192, 64), (64, 64), (512, 64), (64, 256))  # outputs and inputs of the block's linear layers


@pytest.fixture
def products(tmp_path: Path) -> Iterator[HostProducts]:
    """Serves every product of the block."""
    tasks = [
        task
        for outputs, inputs in OUTPUTS
        for task in (
            GemmTask(m=SIZE.tokens, n=outputs, k=inputs, layout=Layout.TN),
            GemmTask(m=SIZE.tokens, n=inputs, k=outputs),
            GemmTask(m=outputs, n=inputs, k=SIZE.tokens, layout=Layout.NT),
        )
    ]
    before = torch_session.service()
    made = HostProducts(tmp_path, tasks)
    torch_session.use_service(made.service)
    yield made
    torch_session.use_service(before)


def test_a_block_is_served_forward_and_backward(products: HostProducts) -> None:
    row = measure_block(SIZE, "eager", "cpu", rounds=2)
    assert row["served_by_pass"] == {"forward": 4, "dX": 4, "dW": 4}
    assert row["fell_back"] == {}
    assert 0.0 <= row["gradient_difference"] < 0.02
    assert row["largest_gradient"] > 0.1, "gradients that vanish compare as equal"
    assert row["times"]["plain_us"] > 0
    assert products.platform.launches > 12


@pytest.mark.long
@pytest.mark.usefixtures("products")
def test_a_hugging_face_model_is_served_in_part() -> None:
    """Its products of queries, keys and values are one each, as large as the one behind attention."""
    pytest.importorskip("transformers")
    row = measure_block(SIZE, "eager", "cpu", rounds=2, model="llama")
    assert row["served_by_pass"]["forward"] > 0
    assert row["gradient_difference"] < 0.02


def test_a_graphs_row_tells_what_its_step_serves(products: HostProducts) -> None:
    """A replay calls nothing, so the step behind it is counted."""
    assert measure_block(SIZE, "graphs", "cpu", rounds=2)["served_by_pass"] == {"forward": 4, "dX": 4, "dW": 4}
    assert products.platform.launches > 12


def test_gradients_are_compared_to_their_largest_entry() -> None:
    same, other = torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0])
    assert gradient_difference([same], [same]) == 0.0
    assert gradient_difference([same, other], [same, same]) == 0.25


@pytest.mark.usefixtures("products")
def test_a_shape_is_served_or_left() -> None:
    rows = list(measure_products(products_of([f"{SIZE.tokens}x64x64", "24x24x24"]), "cpu", rounds=3, max_sets=2))
    assert [(row["shape"], row["served"]) for row in rows] == [("16x64x64", True), ("24x24x24", False)]
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in rows)


@pytest.mark.usefixtures("products")
def test_what_the_library_serves_is_measured_first() -> None:
    wanted = products_of(["24x24x24", f"{SIZE.tokens}x64x64", "40x40x40", f"{SIZE.tokens}x256x64"])
    ordered = served_first(wanted, device=-1)
    assert sorted(ordered) == sorted(wanted)
    assert {product.shape for product in ordered[:2]} == {"16x64x64", "16x256x64"}
    assert ordered == served_first(wanted, device=-1)


def test_every_product_of_a_library_is_served_in_its_layout(products: HostProducts) -> None:
    found = products.service.devices.find(-1)
    assert isinstance(found, DeviceDispatch)
    wanted = library_products(found.library)
    assert Counter(product.layout for product in wanted) == dict.fromkeys(Layout, 4)
    rows = list(measure_products(wanted, "cpu", rounds=8, max_sets=1))
    assert all(row["served"] for row in rows)
    assert [(row["shape"], row["layout"]) for row in rows] == [(product.shape, product.layout.value) for product in wanted]
    assert library_products(found.library, ElementType.BF16) == []


def test_products_in_bf16_are_called_so() -> None:
    [product] = products_of(["24x40x8"], Layout.TN, ElementType.BF16)
    a, b = product.operands("cpu")
    assert (a.dtype, b.dtype, tuple(a.shape), tuple(b.shape), b.stride()) == (*(torch.bfloat16,) * 2, (24, 8), (8, 40), (1, 8))
    assert product.words == "24x40x8 tn bf16"
    [row] = measure_products([product], "cpu", rounds=8, max_sets=1)
    assert (row["name"], row["served"]) == (product.words, False)


def test_copies_take_turns_and_warm_runs_are_not_timed() -> None:
    ran: list[str] = []
    copies = {name: [partial(ran.append, f"{name}{copy}") for copy in range(2)] for name in ("plain", "served")}
    paired_times(copies["plain"], copies["served"], calls=1, rounds=4, device="cpu", warm_runs=1)
    assert Counter(ran) == dict.fromkeys(("plain0", "plain1", "served0", "served1"), 2 * (1 + 2))
    ran.clear()
    times = paired_times(lambda: time.sleep(0.02), lambda: None, calls=2, rounds=3, device="cpu")
    assert times.plain_us > 10_000 > times.served_us


def test_the_interval_is_taken_over_copies() -> None:
    """Rounds of a copy share its place in memory, so that many of them do not narrow the interval."""
    ratio, low, high = over_copies([1.0, 1.02, 1.0, 1.02])
    assert ratio == pytest.approx(1.01, abs=1e-4)
    assert (low, high) == (pytest.approx(0.9917, abs=1e-4), pytest.approx(1.0285, abs=1e-4))
    equal = [1.0 + difference for difference in (0.003, -0.002, 0.001, -0.003, 0.002, 0.0)]
    assert over_copies(equal)[1] < 1.0 < over_copies(equal)[2]


def test_equal_programs_are_told_equal() -> None:
    """By Student's t, one in twenty of equal pairs lies wholly to one side."""
    source, wholly = random.Random(3), 0
    for _ in range(2000):
        _, low, high = over_copies([source.gauss(1.0, 0.01) for _ in range(8)])
        wholly += low > 1.0 or high < 1.0
    assert 70 <= wholly <= 130


@pytest.mark.parametrize(("plain", "served", "rounds"), [(2, 3, 9), (4, 4, 3), (17, 17, 20), (0, 0, 3)])
def test_copies_that_cannot_be_paired_are_refused(plain: int, served: int, rounds: int) -> None:
    with pytest.raises(ValueError, match="copies"):
        paired_times([int] * plain, [int] * served, calls=1, rounds=rounds, device="cpu")


def test_the_summary_counts_slower_shapes() -> None:
    rows = [
        {"name": "1x1x1 nn", "served": True, "ratio": 2.0, "low": 1.9, "high": 2.1},
        {"name": "2x2x2 tn bf16", "served": True, "ratio": 0.5, "low": 0.4, "high": 0.6},
        {"name": "3x3x3 nn", "served": False, "ratio": 0.99, "low": 0.9, "high": 1.1},
    ]
    told = summary(rows)
    assert (told["shapes"], told["geometric_mean"]) == (3, 0.9967)
    assert (told["interval_wholly_above_1"], told["interval_wholly_below_1"], told["below_0.98"]) == (1, 1, ["2x2x2 tn bf16"])
    assert (told["served"]["shapes"], told["served"]["geometric_mean"]) == (2, 1.0)
    assert (told["left"]["shapes"], told["left"]["interval_wholly_below_1"]) == (1, 0)
    assert slower_products(rows) == "2x2x2 tn bf16  # 0.500 (0.400 to 0.600)\n"


def test_random_shapes_are_drawn_once_and_within_the_grid() -> None:
    shapes = random_shapes()
    assert shapes == random_shapes()
    sizes = [int(size) for shape in shapes for size in shape.split("x")]
    assert len(shapes) == len(set(shapes)) == 200
    assert min(sizes) >= 64
    assert max(sizes) <= 16384
    assert all(size % 8 == 0 for size in sizes)


@pytest.mark.usefixtures("products")
def test_the_host_costs_name_every_way_of_a_call() -> None:
    served = torch.randn(16, 64).half(), torch.randn(64, 64).half()
    costs = host_costs("cpu", served, (torch.randn(3, 4), torch.randn(4, 5)))
    assert len(costs) == 11
    assert all(cost > 0 for cost in costs.values())


def test_the_host_costs_of_cpp_are_rows_of_their_own(products: HostProducts, compiled_folder: Path) -> None:
    file = compiled_build.find(compiled_folder, "CPU")
    assert file is not None
    served = torch.randn(16, 64).half(), torch.randn(64, 64).half()
    costs = host_costs("cpu", served, (torch.randn(3, 4), torch.randn(4, 5)), CompiledKernels(file))
    assert {name for name in costs if "C++" in name} == {
        "torch.mm enabled in C++, served",
        "torch.mm enabled in C++, left to torch",
        "torch.mm enabled in C++, disabled again",
    }
    assert len(costs) == 14
    assert products.service.counts.fallbacks()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--part", "3/2"], "--part '3/2': write 1/2"),
        (["--shapes", "64x64"], "64x64"),
        (["--layout", "tt"], "invalid"),
        (["--entries", "--shapes", "64x64x64"], "not allowed with"),
    ],
)
def test_options_that_cannot_be_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["library", "shapes", "--out", str(tmp_path), *words])
    with pytest.raises(SystemExit, match="2"):
        execute(library_bench.main)
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.usefixtures("products")
def test_processes_share_the_products_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(
        library_bench, "measure_products", lambda wanted, *_: measured.extend(one.words for one in wanted) or ()
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    for part in ("1/2", "2/2"):
        shapes = ["64x64x64", "72x72x72", "80x80x80"]
        words = ["library", "shapes", "--out", str(tmp_path), "--layout", "tn", "--part", part, "--shapes", *shapes]
        monkeypatch.setattr("sys.argv", words)
        assert library_bench.main() == 0
    assert measured == ["64x64x64 tn", "80x80x80 tn", "72x72x72 tn"]


@pytest.mark.usefixtures("products")
def test_steps_in_bf16_are_rows_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder that holds the same steps in F16: a name that is there is not measured again."""
    monkeypatch.setattr(library_bench, "measure_block", lambda *size_to_element: {"element": size_to_element[-1].value})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    sizes = ["--hidden", "64", "--batches", "1", "--modes", "eager"]
    for element in ("f16", "bf16", "bf16"):
        words = ["library", "blocks", "--out", str(tmp_path), "--element", element, *sizes]
        monkeypatch.setattr("sys.argv", words)
        assert library_bench.main() == 0
    rows = json.loads((tmp_path / "blocks.json").read_text("utf-8"))["rows"]
    assert [(row["name"], row["element"]) for row in rows[::2]] == [
        ("block 64 1 eager", "f16"),
        ("block 64 1 eager bf16", "bf16"),
    ]
    assert len(rows) == 4, "each with the Hugging Face model"
