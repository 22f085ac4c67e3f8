"""Splits by shape: deterministic, whole shapes, and nothing of a test shape in training."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.policies.exports.dataset import export_dataset
from cudal2_agent.policies.exports.formats import FORMATS, ExportOptions
from cudal2_agent.policies.exports.splits import ShapeSplit, shapes_in
from tests.doubles import measured
from tests.policies.exports.runs import PROMPTS, RunOfTests, kernel, searched

SHAPES = [(m, n, k) for m in (64, 256, 1024) for n in (128, 512, 4096) for k in (96, 768, 2048)]
TEST_SHAPES = ((1024, 4096, 768), (256, 512, 96))


def test_a_shape_has_one_split_that_depends_on_the_seed_alone() -> None:
    one, other = ShapeSplit(0.5, seed=1), ShapeSplit(0.5, seed=2)
    assert [one.of(shape) for shape in SHAPES] == [ShapeSplit(0.5, seed=1).of(shape) for shape in SHAPES]
    assert [one.of(shape) for shape in SHAPES] != [other.of(shape) for shape in SHAPES]
    assert ShapeSplit(0.1).of((4096, 1024, 512)) == "train", "a change of the hash moves shapes between splits"
    assert [shape for shape in SHAPES if ShapeSplit(0.1).of(shape) == "test"] == [(64, 4096, 96)]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_the_share_of_the_shapes_is_as_asked(share: float) -> None:
    split = ShapeSplit(share)
    found = sum(split.of((m, n, 512)) == "test" for m in range(64, 1664, 16) for n in range(64, 1664, 16))
    assert found / 10_000 == pytest.approx(share, abs=0.01)
    assert split.divides == (share > 0)


def test_listed_shapes_are_for_testing() -> None:
    split = ShapeSplit(test_shapes=("4096x1024x512", "64_64_64"))
    assert [split.of(shape) for shape in ((4096, 1024, 512), (64, 64, 64), (512, 1024, 4096))] == ["test", "test", "train"]
    assert split.divides
    with pytest.raises(UsageError, match="4096x1024"):
        ShapeSplit(test_shapes=("4096x1024",))


@pytest.mark.parametrize(
    "text",
    [
        "4096x1024x512",
        "hgemm_4096_1024_512.cu",
        "4096 × 1024 × 512",
        "(1, 4096, 1024, 512)",
        "M = 4096, N = 1024, K = 512",
        'requires": ["M==4096", "N==1024", "K==512"]',
        '{"m": 4096, "n": 1024, "k": 512}',
        "constexpr int M = 4096;\nconstexpr int N = 1024;\nconstexpr int K = 512;",
        "m=4096 n=1024 k=512",
    ],
)
def test_a_shape_is_found_as_it_is_written(text: str) -> None:
    assert (4096, 1024, 512) in shapes_in(text)


@pytest.mark.parametrize("text", ["14096x1024x512", "4096x1024x5120", "4096 and 1024 and 512", "M = 4096, N = 1024", ""])
def test_other_numbers_are_no_such_shape(text: str) -> None:
    assert (4096, 1024, 512) not in shapes_in(text)


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_shape_is_found_in_any_text(before: str, after: str) -> None:
    assert (4096, 1024, 512) in shapes_in(f"{before} 4096x1024x512 {after}")


def gossiping(shape: tuple[int, int, int], run_id: str, said: str) -> Trajectory:
    """A run whose prompts quote a text about another shape, and show kernels that were made for it."""
    run = RunOfTests(shape, run_id)
    chunk = Chunk(release="cutlass-4.2.0", path="a.md", start_line=1, end_line=2, symbol="x", kind="text", text=said)
    for number in (1, 2):
        observation = run.round(number, hits=(Hit(chunk=chunk, score=1.0),))
        for position, time_us in enumerate((5.0, 8.0, 13.0, 21.0)):
            run.add(observation, kernel(10 * number + position), measured(time_us / number))
    return run.trajectory


def runs_with_gossip() -> list[Trajectory]:
    """Every shape once; some training runs name a test shape in retrieved text or in a kernel, others only seem to."""
    trajectories = [searched(shape, f"run-{number}") for number, shape in enumerate(SHAPES)]
    trajectories += [
        gossiping((640, 640, 640), "names-it", "On 1024 x 4096 x 768 a tile of 128x128x64 is best."),
        gossiping((704, 640, 640), "names-another", "A tile of 128x256x64 is best for M = 64, N = 128, K = 96."),
    ]
    run = RunOfTests((768, 640, 640), "kernel-names-it")
    first = run.round(1)
    for number in range(4):
        written = kernel(number, extra="constexpr int M = 256;\nconstexpr int N = 512;\nconstexpr int K = 96;\n")
        run.add(first, written, measured(5.0 + 4 * number))
    return [*trajectories, run.trajectory]


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_of_a_test_shape_is_in_training(name: str, tmp_path: Path) -> None:
    """The whole text of the training file is searched for the numbers of each test shape, in order and close together."""
    options = ExportOptions(test_shapes=tuple("x".join(map(str, shape)) for shape in TEST_SHAPES))
    summary = export_dataset(runs_with_gossip(), name, tmp_path / "out", options, PROMPTS)
    train, test = ((tmp_path / "out" / f"{split}.jsonl").read_text("utf-8") for split in ("train", "test"))
    for m, n, k in TEST_SHAPES:
        anywhere = re.compile(rf"(?<!\d){m}(?!\d)\D{{1,80}}(?<!\d){n}(?!\d)\D{{1,80}}(?<!\d){k}(?!\d)")
        assert anywhere.search(train) is None
        assert anywhere.search(test)
    rows = {split: [json.loads(line) for line in text.splitlines()] for split, text in (("train", train), ("test", test))}
    shapes = {split: {row["shape"] for row in found} for split, found in rows.items()}
    assert shapes["test"] == {"1024x4096x768", "256x512x96"}
    assert not shapes["train"] & shapes["test"]
    assert "704x640x640" in shapes["train"], "what only looks like a test shape costs nothing"
    assert "640x640x640" not in shapes["train"]
    assert summary.left_out["leaked"] > 0
    assert summary.rows == {split: len(found) for split, found in rows.items()}


def test_a_tile_that_the_hash_would_put_into_testing_costs_nothing(tmp_path: Path) -> None:
    """Only shapes that there are count: 64x4096x96 is for testing by its hash, and no run has it."""
    assert ShapeSplit(0.1).of((64, 4096, 96)) == "test"
    said = gossiping((256, 256, 256), "run-1", "a tile of 64x4096x96")
    alone = export_dataset([said], "sft", tmp_path / "alone", ExportOptions(test_share=0.1), PROMPTS)
    assert (alone.left_out, alone.rows["train"]) == ({}, 8)
    run = searched((64, 4096, 96), "run-2")
    both = export_dataset([said, run], "sft", tmp_path / "both", ExportOptions(test_share=0.1), PROMPTS)
    assert (both.left_out["leaked"], both.rows) == (8, {"train": 0, "test": 8})
