"""A few hundred mutants: the emulator raises only its documented exceptions, and the process survives."""

import random
from collections import Counter
from itertools import islice

import pytest

from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiler
from tests.fuzz.mutation import mutate, vocabulary
from tests.fuzz.seed import Seed
from tests.fuzz.seeds import family_seed, golden_seeds, one_of_each_trait
from tests.fuzz.trial import Fate, Mutants, attempt
from tests.sandbox.emulator.golden.families import family

MUTANTS = 250


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Seed]:
    compiler = Compiler(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache"))))
    chosen = {kernel.family: kernel for kernel in one_of_each_trait()}
    products = [family_seed(kernel, compiler) for kernel in chosen.values()]
    golden = [seed for name in ("bulk", "clusters", "copies") for seed in islice(golden_seeds(family(name), 1), 12)]
    return products + golden


def test_seeds_themselves_run(seeds: list[Seed]) -> None:
    assert {attempt(seed, random.Random(0), below=False).fate for seed in seeds} == {Fate.RAN}


def test_mutants_of_equal_numbers_are_equal(seeds: list[Seed]) -> None:
    words = vocabulary(seed.ptx for seed in seeds)
    assert Mutants(seeds, words, 1).draw(7)[0] == Mutants(seeds, words, 1).draw(7)[0]
    assert len({mutate(seeds[0], words, random.Random(number)).ptx for number in range(20)}) > 15


def test_mutants_do_no_harm(seeds: list[Seed]) -> None:
    mutants = Mutants(seeds, vocabulary(seed.ptx for seed in seeds), seed=0)
    tried = [attempt(*mutants.draw(number)) for number in range(MUTANTS)]
    fates = Counter(each.fate for each in tried)
    assert fates[Fate.RAN] > MUTANTS / 3
    assert fates[Fate.UNSUPPORTED] > MUTANTS / 50
    assert sum(bool(each.findings) for each in tried) > MUTANTS / 10
