"""Every attack is refused by its layer, and no right kernel is refused, on the sandbox's own path.

Faults that only a clock or a GPU's memory shows have the mark `gpu`.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from benchmarks.redteam.redteam_bench import RedteamBench
from tests.redteam.case import Case
from tests.redteam.corpus import VARIANTS, corpus

CASES = corpus()
ATTACKS = [case for case in CASES if not case.honest]
HONEST = [case for case in CASES if case.honest]
REFUSED = ("refused", "harmless")
RARE = 1e-5  # share of test runs that may fail by chance


def each(cases: Iterable[Case]) -> list[Any]:
    """Parameters with ids; variants are marked slow."""
    return [pytest.param(case, id=case.id, marks=[pytest.mark.long] if case.id in VARIANTS else []) for case in cases]


@pytest.mark.parametrize("case", each(case for case in ATTACKS if case.emulator and not case.blind))
def test_an_attack_is_refused_by_its_layer(bench: RedteamBench, case: Case) -> None:
    row = bench.row(case)
    missed = case.missed
    while row.verdict not in REFUSED and missed > RARE:
        row, missed = bench.row(case), missed * case.missed
    assert row.verdict in REFUSED, f"{row.layer}, expected {row.layers}: {row.message}"


@pytest.mark.parametrize("case", each(HONEST))
def test_a_right_kernel_passes(bench: RedteamBench, case: Case) -> None:
    row = bench.row(case)
    assert row.verdict == "passed", f"{row.layer}: {row.message}"


@pytest.mark.parametrize("case", [case for case in ATTACKS if case.blind], ids=lambda case: case.id)
def test_a_blind_attack_ends_nothing_and_tells_of_no_file(bench: RedteamBench, case: Case) -> None:
    assert bench.row(case).verdict not in ("LEAKED", "ENDED THE RUN")


@pytest.mark.gpu
@pytest.mark.parametrize("case", [case for case in ATTACKS if case.gpu], ids=lambda case: case.id)
def test_an_attack_is_refused_on_a_gpu(gpu_bench: RedteamBench, case: Case) -> None:
    row = gpu_bench.row(case)
    assert row.verdict in (*REFUSED, "no gain"), f"{row.layer}, ratio {row.ratio}, expected {row.layers}: {row.message}"


@pytest.mark.gpu
@pytest.mark.parametrize("case", HONEST, ids=lambda case: case.id)
def test_a_right_kernel_passes_on_a_gpu(gpu_bench: RedteamBench, case: Case) -> None:
    row = gpu_bench.row(case)
    assert row.verdict == "passed", f"{row.layer}: {row.message}"
