"""How often the diagnosis is right: kernels with a known fault, the findings, and whether the remedy helped.

Run from the repository's root, on a machine with the GPU and ncu:
    python -m benchmarks.diagnosis --commit HASH --out benchmarks/results/NAME.json
Writes JSON and Markdown after every kernel, so that an interrupted run keeps its results.

For every schedule these neighbours are measured, at most three of each kind:
- random ones that relieve the finding with the largest weight, and random ones that relieve the next finding with neighbours
- those among the relieving ones that the prior ranks first
- as controls: random neighbours, and the neighbours that the prior ranks first
Hand-written kernels have a corrected version. Times are compared through the cuBLASLt-AutoTuning that each was paired with.
The faulty kernel is measured again before and after its remedies.
"""

import argparse
import datetime
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnosis.diagnosis_table import DiagnosisResult, DiagnosisRow, Trial, render
from benchmarks.diagnosis.faulty_kernels import FaultyCase, all_cases
from cudal2_agent.agent.wiring.sandbox import open_sandbox_for
from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.diagnosis import Bottleneck, Diagnosis
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.optimiser.steering import Neighbourhood
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built

TRIED = 3  # neighbours of each kind
SEED = 0

Save = Callable[[Sequence[DiagnosisRow]], None]


@dataclass(frozen=True)
class Proposal:
    """A remedied or control candidate that has not been measured yet."""

    kind: str
    bottleneck: Bottleneck | None
    candidate: Candidate
    changes: dict[str, str]


class DiagnosisBench:
    """Builds, measures, profiles and diagnoses."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._has_counters = True

    def build(self, case: FaultyCase, candidates: Sequence[Candidate]) -> dict[str, Built | Evaluation]:
        return {candidates[at].id: outcome for at, outcome in self._sandbox.build(candidates, case.task)}

    def measure(self, case: FaultyCase, built: Built | Evaluation) -> Evaluation:
        return self._sandbox.evaluate(built, case.task, "quick") if isinstance(built, Built) else built

    def examine(self, case: FaultyCase) -> DiagnosisRow:
        """Measure, profile and diagnose a faulty kernel."""
        started = time.monotonic()
        built = self.build(case, [case.candidate])[case.candidate.id]
        evaluation = self.measure(case, built)
        row = _row(case, evaluation)
        if not isinstance(built, Built):
            return row
        profile = self._profile(case, built) if evaluation.time_us is not None else None
        diagnosis = diagnose_built(built, case.task, self._sandbox.chip, evaluation, profile)
        return row.model_copy(
            update={
                "basis": diagnosis.basis,
                "findings": diagnosis.findings,
                "rank": _rank(case, diagnosis),
                "profile": profile,
                "seconds": time.monotonic() - started,
            }
        )

    def remedy(self, case: FaultyCase, row: DiagnosisRow) -> DiagnosisRow:
        """Measure remedies and controls, between two measurements of the faulty kernel."""
        proposals = list(_proposals(case, row, self._sandbox.chip))
        candidates = {one.id: one for one in (case.candidate, *(proposal.candidate for proposal in proposals))}
        built = self.build(case, list(candidates.values()))
        before = _relative(self.measure(case, built[case.candidate.id]))
        outcomes = {name: self.measure(case, built[name]) for name in candidates if name != case.candidate.id}
        after = _relative(self.measure(case, built[case.candidate.id]))
        own = math.sqrt(before * after) if before and after else None
        trials = tuple(_trial(proposal, outcomes[proposal.candidate.id], own) for proposal in proposals)
        return row.model_copy(update={"trials": trials, "repeat": after / before if before and after else None})

    def _profile(self, case: FaultyCase, built: Built) -> Profile | None:
        if not self._has_counters:
            return None
        try:
            return self._sandbox.profile(built, case.task)
        except ProfilerUnavailable as exc:
            self._has_counters = False
            print(f"no counters: {exc}")
        except ProfileFailed as exc:
            print(f"{case.name}: {exc}")
        return None


def run(sandbox: Sandbox, cases: Sequence[FaultyCase], deadline: float, save: Save) -> list[DiagnosisRow]:
    """All diagnoses, then the remedies, so that an interrupted run still has every diagnosis."""
    bench = DiagnosisBench(sandbox)
    rows: list[DiagnosisRow] = []
    for case in cases:
        if time.monotonic() < deadline:
            rows.append(bench.examine(case))
            save(rows)
    for number, row in enumerate(rows):
        if row.status == "measured" and time.monotonic() < deadline:
            rows[number] = bench.remedy(cases[number], row)
            save(rows)
    return rows


def _row(case: FaultyCase, evaluation: Evaluation) -> DiagnosisRow:
    return DiagnosisRow(
        name=case.name,
        fault=case.fault,
        shape=case.task.shape,
        by_hand=case.fixed is not None,
        expected=case.expected,
        also=case.also,
        status=evaluation.status,
        message=evaluation.fault,
        time_us=evaluation.time_us,
        speedup=ratio_over(evaluation, AUTOTUNED),
    )


def _rank(case: FaultyCase, diagnosis: Diagnosis) -> int | None:
    """Place of the first finding that fits the fault. Findings in `also` are not counted."""
    names = [finding.bottleneck for finding in diagnosis.findings if finding.bottleneck not in case.also]
    return next((place for place, name in enumerate(names, 1) if name in case.expected), None)


def _proposals(case: FaultyCase, row: DiagnosisRow, chip: Chip) -> Iterator[Proposal]:
    if case.fixed is not None:
        yield Proposal("by hand", case.expected[0], case.fixed, {})
        return
    pool = SchedulePool(families(case.task.arch), case.task, chip, SEED)
    parent = pool.entry(case.candidate.origin.schedule or {})
    if parent is None:
        raise ValueError(f"{case.name}: no family can write {case.candidate.origin.schedule}")
    around, rng = Neighbourhood(parent, pool), random.Random(f"{SEED} {case.name}")
    steered = [(finding.bottleneck, around.relieving(finding.bottleneck)) for finding in row.findings]
    moving = [(name, entries) for name, entries in steered if entries]
    chosen: list[tuple[str, Bottleneck | None, list[PoolEntry]]] = [
        (kind, name, _some(entries, rng)) for kind, (name, entries) in zip(("heaviest", "next"), moving, strict=False)
    ]
    chosen += [("heaviest, by prior", name, _likeliest(entries, pool)) for name, entries in moving[:1]]
    chosen += [("control", None, _some(around.entries(), rng)), ("control, by prior", None, _likeliest(around.entries(), pool))]
    for kind, name, entries in chosen:
        for entry in entries:
            changes = {axis: str(value) for axis, value in entry.values.items() if parent.values[axis] != value}
            yield Proposal(kind, name, entry.family.write(entry.schedule, case.task), changes)


def _some(entries: Sequence[PoolEntry], rng: random.Random) -> list[PoolEntry]:
    return rng.sample(list(entries), min(TRIED, len(entries)))


def _likeliest(entries: Sequence[PoolEntry], pool: SchedulePool) -> list[PoolEntry]:
    predicted_us = pool.predict_us(entries)
    return [entries[int(at)] for at in predicted_us.argsort(kind="stable")[:TRIED]]


def _relative(evaluation: Evaluation) -> float | None:
    """Speed relative to the AutoTuning that it was paired with."""
    return ratio_over(evaluation, AUTOTUNED)


def _trial(proposal: Proposal, evaluation: Evaluation, own: float | None) -> Trial:
    speed = _relative(evaluation)
    return Trial(
        kind=proposal.kind,
        bottleneck=proposal.bottleneck,
        changes=proposal.changes,
        status=evaluation.status,
        message=evaluation.fault,
        ratio=speed / own if speed and own else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--commit", required=True, help="the measured commit")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--cases", nargs="+", help="only cases whose name contains one of these words")
    arguments = parser.parse_args()
    cases = [case for case in all_cases() if not arguments.cases or any(word in case.name for word in arguments.cases)]
    started = time.monotonic()

    def emit(event: Event) -> None:
        if isinstance(event, Notice):
            print(event.message)

    with open_sandbox_for(cases[0].task, load_settings(), emit) as sandbox:
        if not sandbox.can_measure:
            raise SystemExit("this benchmark measures times and needs an sm_90a GPU")

        def save(rows: Sequence[DiagnosisRow]) -> None:
            result = DiagnosisResult(
                commit=arguments.commit,
                date=datetime.datetime.now(datetime.UTC).date().isoformat(),
                environment=sandbox.environment,
                seconds=time.monotonic() - started,
                rows=tuple(rows),
            )
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
            arguments.out.with_suffix(".md").write_text(render(result), encoding="utf-8")

        run(sandbox, cases, started + 60 * arguments.minutes, save)
    print(arguments.out.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
