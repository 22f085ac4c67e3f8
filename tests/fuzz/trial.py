"""Parses, lowers and runs one mutant, and reports the stage it reached."""

import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum

from cudal2_agent.sandbox.emulator.lowering.program import Program, lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Interleaving
from cudal2_agent.sandbox.emulator.ptx.module import PtxError, Unsupported
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from tests.fuzz.mutation import Vocabulary, mutate
from tests.fuzz.seed import Seed, launch, memory_of
from tests.fuzz.tables import Changing

MOST_INSTRUCTIONS = 20_000
DEADLINE_S = 2.0
TABLES_SHARE = 0.35  # share of mutants that are changed after the lowering


class Fate(StrEnum):
    """The stage that a mutant reached."""

    NO_PTX = "no PTX"
    UNSUPPORTED = "unsupported"
    TABLE_REFUSED = "table refused"
    LAUNCH_REFUSED = "launch refused"
    RAN = "ran"
    OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Tried:
    """`runs`: grids that the core executed; `findings`: kinds that it reported."""

    fate: Fate
    runs: int = 0
    findings: tuple[str, ...] = ()


class Mutants:
    """Mutants by number: equal seeds and numbers give equal mutants."""

    def __init__(self, seeds: list[Seed], words: Vocabulary, seed: int) -> None:
        self._seeds, self._words, self._seed = seeds, words, seed

    def draw(self, number: int) -> tuple[Seed, random.Random, bool]:
        """A mutant, its random stream, and whether its table is changed instead of its text."""
        rng = random.Random(f"{self._seed} {number}")
        chosen = rng.choice(self._seeds)
        below = rng.random() < TABLES_SHARE
        return (chosen if below else mutate(chosen, self._words, rng)), rng, below


def attempt(mutant: Seed, rng: random.Random, below: bool) -> Tried:
    """Lower and run a mutant under drawn conditions. Raises: every exception that is a fault of the emulator."""
    try:
        module = parse(mutant.ptx)
        with Changing(rng) if below else nullcontext():
            programs = [lower(module, each.entry) for each in mutant.launches]
    except PtxError:
        return Tried(Fate.NO_PTX)
    except Unsupported:
        return Tried(Fate.UNSUPPORTED)
    except ValueError as exc:
        if below and str(exc).startswith("the program"):
            return Tried(Fate.TABLE_REFUSED)
        raise
    return _run(mutant, programs, rng)


def _run(mutant: Seed, programs: list[Program], rng: random.Random) -> Tried:
    runs, kinds = 0, Counter[str]()
    for interleaving in rng.sample(list(Interleaving), rng.choice((1, 2))):
        conditions = Conditions(
            interleaving,
            seed=rng.randrange(2**32),
            races=rng.random() < 0.6,
            taint=rng.random() < 0.5,
            poison=rng.choice((0xFF, 0x3C, 0, 0x80)),
            most_instructions=MOST_INSTRUCTIONS,
            deadline_s=DEADLINE_S,
        )
        machine, addresses = memory_of(mutant)
        for launched, program in zip(mutant.launches, programs, strict=True):
            try:
                outcome = launch(launched, program, machine, addresses, conditions)
            except ValueError as exc:
                if not str(exc).startswith(("the launch", "the grid", "a tensor map")):
                    raise
                return Tried(Fate.LAUNCH_REFUSED, runs, tuple(kinds))
            except MemoryError:
                return Tried(Fate.OUT_OF_MEMORY, runs, tuple(kinds))
            runs += 1
            kinds.update(finding.kind for finding in outcome.findings)
            if outcome.stopped:
                break
    return Tried(Fate.RAN, runs, tuple(kinds))
