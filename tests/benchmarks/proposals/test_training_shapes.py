"""The shapes off the grid that a policy may learn from."""

import pytest

from benchmarks.h200.grid import SIZES, held_out
from benchmarks.proposals.training_shapes import COUNT, HARD, KINDS, drawn, main
from cudal2_agent.contract.records.task import parse_shape


def test_they_are_drawn_once_and_none_is_held_out() -> None:
    shapes = drawn()
    assert shapes == drawn()
    assert len(set(shapes)) == COUNT
    assert not set(shapes) & held_out()
    assert shapes[:8] == drawn(8)


def test_each_kind_has_its_share_and_none_lies_on_the_grid() -> None:
    sizes = [parse_shape(shape) for shape in drawn()]
    assert not any(set(one) <= set(SIZES) for one in sizes)
    long = sizes[:: len(KINDS)]
    assert all(max(one) >= 4096 for one in long)
    assert all(sorted(one)[1] <= 512 for one in long)
    assert {one.index(max(one)) for one in long} == {0, 1, 2}
    assert all(n % 8 == k % 8 == 0 for _, n, k in sizes)
    assert any(m % 8 for m, _, _ in sizes)


def test_one_kind_can_be_drawn_with_another_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["training_shapes", *words])
        main()
        return capsys.readouterr().out.split()

    assert printed() == drawn()
    layers = printed("--kind", "layer", "--seed", "5", "--count", "30")
    assert len(layers) == 30
    assert any(parse_shape(shape)[0] <= 64 for shape in layers)
    assert all(min(parse_shape(shape)[1:]) >= 384 for shape in layers)
    assert not set(layers) & set(drawn())
    assert printed("--hard", "--count", "40") == drawn(40, kinds=HARD)
    with pytest.raises(SystemExit, match="2"):
        printed("--hard", "--kind", "layer")


def test_the_hard_kinds_have_few_rows_a_short_k_or_a_long_one() -> None:
    sizes = [parse_shape(shape) for shape in drawn(200, kinds=HARD)]
    few, short, deep = (sizes[kind :: len(HARD)] for kind in range(3))
    assert all(m <= 64 and min(n, k) >= 512 for m, n, k in few)
    assert all(k <= 512 and max(m, n) >= 4096 for m, n, k in short)
    assert all(k >= 3072 and m <= 640 for m, n, k in deep)
    assert not {f"{m}x{n}x{k}" for m, n, k in sizes} & held_out()
