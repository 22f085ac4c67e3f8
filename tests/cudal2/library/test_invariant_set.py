"""The kernels of the batch-invariant mode: which one serves a product, and that all for one weight sum alike."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from pydantic import ValidationError

import cudal2
from cudal2.library.invariant_set import cubin_path, read_set, set_path
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import Workspace
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.library import InvariantSet
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout
from tests.doubles.invariant_sets import invariant_set, write_set

MEASURED = Path(__file__).parents[3] / "benchmarks" / "results" / "h200_invariant_schedules_2026-11-29.jsonl.gz"
NAMES = {  # in these rows, by the tile and the tiles of an SM; the tile of 256 rows was not timed
    ((16, 64), 1): "t16 k128 s10",
    ((16, 64), 2): "t16 s10",
    ((32, 64), 1): "t32 s16",
    ((64, 64), 1): "n64 k128 s6",
    ((64, 128), 1): "n128 s8",
    ((128, 128), 1): "c2 n128 s6",
}
SIZES = (1, 2, 7, 8, 16, 24, 63, 64, 65, 136, 300, 1024, 1025, 20001)


@pytest.mark.parametrize("arch", Arch)
def test_every_product_has_a_kernel_that_fits_and_all_of_a_weight_sum_alike(arch: Arch) -> None:
    found = invariant_set(arch)
    for element, n, k in itertools.product(ElementType, (1, 8, 24, 136, 137, 50257), (1, 8, 17, 64, 4096)):
        summations = set()
        for m, layout in itertools.product(SIZES, Layout):
            task = GemmTask(m=m, n=n, k=k, layout=layout, element=element, arch=arch)
            kernel = found.choose(task, REFERENCE_CHIPS[arch].sms)
            if kernel is None:
                assert layout is Layout.NT
                continue
            resolve(kernel.plan, task, LIMITS[arch], REFERENCE_CHIPS[arch].sms)
            summations.add(kernel.summation)
        assert len(summations) == 1, (n, k)


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (1, 4096, (16, 64)),
        (32, 4096, (32, 64)),
        (64, 4096, (64, 64)),
        (256, 4096, (64, 128)),
        (384, 4096, (128, 128)),
        (1024, 4096, (256, 128)),
        (1, 14336, (16, 64)),
        (128, 14336, (128, 128)),
        (8192, 14336, (256, 128)),
    ],
)
def test_a_tile_is_chosen_by_the_waves_of_a_chip(m: int, n: int, tile: tuple[int, int]) -> None:
    kernel = invariant_set(Arch.SM_90A).choose(GemmTask(m=m, n=n, k=4096, arch=Arch.SM_90A), 132)
    assert kernel is not None
    assert kernel.tile == tile


def measured() -> list[dict[str, Any]]:
    """Of each weight and M, times in us by schedule: of one weight again and again, and of several in turns."""
    with gzip.open(MEASURED, "rt") as lines:
        return [json.loads(line) for line in lines]


def chosen(row: dict[str, Any], found: InvariantSet) -> str:
    n, k = row["nk"]
    task = GemmTask(m=row["m"], n=n, k=k, layout=Layout.TN, element=ElementType.BF16, arch=Arch.SM_90A)
    kernel = found.choose(task, 132)
    assert kernel is not None
    return NAMES[kernel.tile, kernel.per_sm]


def test_the_choice_takes_little_longer_than_the_best_that_was_measured() -> None:
    found, losses = invariant_set(Arch.SM_90A), []
    for row in measured():
        times = {name: geometric_mean(row[name]) for name in NAMES.values()}
        losses.append(times[chosen(row, found)] / min(times.values()))
    assert len(losses) == 42
    assert geometric_mean(losses) < 1.01
    assert sorted(losses)[-2] < 1.08
    assert max(losses) < 1.12, "128 rows of N = 1024"


@pytest.mark.parametrize(
    ("rows", "warm", "cold"),
    [((1, 16, 64), (0.97, 0.71), (0.99, 0.78)), ((96, 128), (0.97, 0.74), (0.96, 0.77))],
    ids=["few", "more"],
)
def test_what_the_page_says_of_the_time_of_torch_mm_over_that_of_the_choice(
    rows: tuple[int, ...], warm: tuple[float, float], cold: tuple[float, float]
) -> None:
    found = invariant_set(Arch.SM_90A)
    for turns, said in enumerate((warm, cold)):
        gains = [row["torch"][turns] / row[chosen(row, found)][turns] for row in measured() if row["m"] in rows]
        assert (round(geometric_mean(gains), 2), round(min(gains), 2)) == said


def test_a_chip_without_wgmma_chooses_by_its_waves_alone() -> None:
    task, found = GemmTask(m=64, n=8192, k=4096, arch=Arch.SM_80), invariant_set(Arch.SM_80)
    kernel = found.choose(task, 108)
    assert kernel is not None
    assert {(one.row, one.per_sm) for one in found.kernels} == {(0.0, 1)}
    assert kernel.cost(task, 108) == 2 * kernel.wave


def test_a_transposed_a_with_odd_rows_is_copied() -> None:
    assert invariant_set(Arch.SM_90A).choose(GemmTask(m=9, n=64, k=64, layout=Layout.NT), 132) is None


def test_a_set_with_two_orders_of_summation_for_a_weight_cannot_be_made() -> None:
    found = invariant_set()
    first = found.kernels[0]
    planted = first.model_copy(update={"summation": "wgmma.m64k16 f16 in order of K"})
    with pytest.raises(ValidationError, match=r"two orders of summation: wgmma\.m64k16 f16"):
        InvariantSet.model_validate({**found.model_dump(), "kernels": (planted, *found.kernels[1:])})


def test_a_set_needs_kernels_for_any_size_and_no_workspace() -> None:
    found = invariant_set()
    aligned = tuple(one for one in found.kernels if one.k_step == 8)
    with pytest.raises(ValidationError, match="no f16 kernel for products of any size"):
        InvariantSet.model_validate({**found.model_dump(), "kernels": aligned})
    plan = found.kernels[0].plan.model_copy(update={"workspace": Workspace(bytes=16)})
    with pytest.raises(ValidationError, match="no workspace"):
        found.kernels[0].model_validate({**found.kernels[0].model_dump(), "plan": plan})


def test_a_set_is_read_with_its_code(tmp_path: Path) -> None:
    assert read_set(tmp_path, Arch.SM_80, cudal2.__version__) is None
    write_set(tmp_path, Arch.SM_80)
    found = read_set(tmp_path, Arch.SM_80, cudal2.__version__)
    assert found is not None
    assert len({found.cubin(one) for one in found.kernels.kernels}) == len(found.kernels.kernels)
    assert read_set(tmp_path, Arch.SM_80, "another version") is None


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    cubin = cubin_path(tmp_path, invariant_set().kernels[0].source_sha256, Arch.SM_90A)
    for content, why in ((b"another", "is damaged: it is not the kernel"), (None, "is missing")):
        cubin.unlink() if content is None else cubin.write_bytes(content)
        with pytest.raises(LibraryError, match=f"{cubin.name} {why}.*--batch-invariant"):
            read_set(tmp_path, Arch.SM_90A, cudal2.__version__)
    set_path(tmp_path, Arch.SM_90A).write_text("{}", encoding="utf-8")
    with pytest.raises(LibraryError, match=r"batch-invariant-sm_90a\.json is damaged"):
        read_set(tmp_path, Arch.SM_90A, cudal2.__version__)
