"""Whether the emulator names seeded faults and passes right kernels: the corpus of the tests under many interleavings.

Run from the repository's root; no GPU is needed:
    python -m benchmarks.emulator.corpus --out benchmarks/results/emulator_corpus_DATE.md
Exits with 1 if a fault is missed or a right kernel is flagged.
"""

import functools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import cache_argument, execute, script, stamp, table, write_text
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator.detector import Detector
from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.corpus import FAULTS
from tests.sandbox.emulator.corpus.fault import Fault
from tests.sandbox.emulator.kernels.families import CHIP, sampled
from tests.sandbox.emulator.kernels.written import WRITTEN
from tests.sandbox.emulator.trial import Trial, interleavings

RANDOM = 50
RANDOM_OF_FAULTS = 10


@dataclass(frozen=True)
class CorpusSubject:
    """A kernel on a task. `fault`: its seeded fault; None for a right kernel."""

    name: str
    group: str
    candidate: Candidate
    task: GemmTask
    sms: int
    fault: Fault | None = None


@dataclass(frozen=True)
class CorpusRow:
    """The result for one kernel. `kinds`: the fault found in each run, in order; "" for a run without one.

    `schedule`: the first schedule that showed a fault.
    """

    subject: CorpusSubject
    kinds: tuple[str, ...]
    schedule: str
    message: str
    seconds: float

    @property
    def named(self) -> str:
        return next(filter(None, self.kinds), "")

    @property
    def as_expected(self) -> bool:
        if self.subject.fault is None:
            return not self.named
        return self.named in self.subject.fault.detectors


def main() -> int:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--random", type=int, default=RANDOM, help="random interleavings per right kernel")
    cache_argument(parser, "emulator-kernels")
    arguments = parser.parse_args()
    started = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        one = functools.partial(_run, cache=arguments.cache, random=arguments.random)
        rows = list(pool.map(one, subjects()))
    seconds = time.monotonic() - started
    head = stamp(__file__, arguments.commit)
    write_text(arguments.out, render(rows, head, random=arguments.random, seconds=seconds))
    unexpected = [row for row in rows if not row.as_expected]
    for row in unexpected:
        print(f"{row.subject.name}, {row.schedule}: {row.message}" if row.named else f"{row.subject.name}: not found")
    print(f"{len(rows) - len(unexpected)} of {len(rows)} as expected; {seconds:.0f} s")
    return 1 if unexpected else 0


def subjects() -> list[CorpusSubject]:
    """Every fault, the right kernels that the faults patch, the sample of both families, and the kernels written for tests."""
    faulty = [CorpusSubject(each.name, each.schedule.family, each.wrong(), each.task, each.sms, each) for each in FAULTS]
    right = {}
    for each in FAULTS:
        candidate = each.right()
        name = f"{each.schedule.family}-{each.task.shape}-{each.task.layout}-{candidate.id[:8]}"
        right[name, each.sms] = CorpusSubject(name, "of the faults", candidate, each.task, each.sms)
    sample = [CorpusSubject(each.id, each.family, each.candidate, each.task, CHIP.sms) for each in sampled()]
    written = [
        CorpusSubject(f"{each.name}-{task.shape}", "written", each.candidate(), task, CHIP.sms)
        for each in WRITTEN
        if each.missing() is None
        for task in each.tasks
    ]
    return [*faulty, *right.values(), *sample, *written]


def _run(subject: CorpusSubject, cache: Path, random: int) -> CorpusRow:
    """Run a fault under a few interleavings and a right kernel under many. A fault that never ends runs once."""
    ptx = PtxCompiler(cache).compile(subject.candidate, subject.task.arch)
    trial = Trial(ptx, subject.candidate, subject.task, subject.sms)
    started, kinds, schedule, message = time.monotonic(), [], "", ""
    for conditions in interleavings(random if subject.fault is None else RANDOM_OF_FAULTS):
        verdict = trial.verdict(conditions)
        kinds.append(verdict.kind if verdict else "")
        if verdict and not message:
            seed = f", seed {conditions.seed}" if conditions.interleaving is Interleaving.RANDOM else ""
            schedule, message = conditions.interleaving.name.lower() + seed, verdict.message
        if verdict and verdict.kind == Detector.ENDLESS:
            break
    return CorpusRow(subject, tuple(kinds), schedule, message, time.monotonic() - started)


def render(rows: Sequence[CorpusRow], head: Mapping[str, str], *, random: int, seconds: float) -> str:
    """The result as Markdown."""
    faulty, right = [row for row in rows if row.subject.fault], [row for row in rows if not row.subject.fault]
    caught, runs = sum(row.as_expected for row in faulty), sum(len(row.kinds) for row in right)
    flagged = sum(not row.as_expected for row in right)
    return "\n".join(
        (
            "# Seeded faults and right kernels on the emulator",
            "",
            f"{head['date']}, commit {head['commit']}, {head['machine']}, {seconds:.0f} s.",
            "",
            f"{caught} of {len(faulty)} faults are named by a detector that the corpus expects. "
            f"{flagged} of {len(right)} right kernels are flagged, in {runs} runs.",
            "",
            "## Faults",
            "",
            "Shown: runs in which something was found, of those under the eager, the latest and random interleavings. "
            "A loop without end is run once.",
            "",
            *table(("fault", "family", "why it is one", "named", "first shown by", "shown"), map(_fault_cells, faulty)),
            "",
            "## Right kernels",
            "",
            f"Each under the eager interleaving, the latest, and {random} random ones.",
            "",
            *table(("kernels", "of them", "runs", "flagged"), _group_cells(right)),
            "",
        )
    )


def _fault_cells(row: CorpusRow) -> tuple[str, ...]:
    fault = row.subject.fault
    assert fault is not None
    shown = f"{sum(map(bool, row.kinds))} of {len(row.kinds)}"
    named = row.named if row.as_expected else f"MISSED ({row.named})"
    return fault.name, row.subject.group, fault.why, named, row.schedule, shown


def _group_cells(rows: Sequence[CorpusRow]) -> Iterator[tuple[object, ...]]:
    kernels, runs, flagged = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        kernels[row.subject.group] += 1
        runs[row.subject.group] += len(row.kinds)
        flagged[row.subject.group] += not row.as_expected
    return ((group, kernels[group], runs[group], flagged[group]) for group in kernels)


if __name__ == "__main__":
    execute(main)
