"""How often the diagnosis is right: kernels with a known fault, the findings, and whether the fix by hand helps.

Run from the repository's root, on a machine with the GPU and ncu:
    python -m benchmarks.diagnosis --out benchmarks/results/NAME.json
Writes JSON and Markdown after every kernel, so that an interrupted run keeps its results.

Hand-written kernels have a corrected version. Times are compared through the cuBLASLt-AutoTuning that each was paired with.
The faulty kernel is measured again before and after its fixed version.
"""

import math
import time
from collections.abc import Callable, Sequence

from benchmarks.diagnosis.diagnosis_table import DiagnosisResult, DiagnosisRow, Trial, render
from benchmarks.diagnosis.faulty_kernels import FaultyCase, all_cases
from benchmarks.harness import execute, script, stamp, write_text
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built

Save = Callable[[Sequence[DiagnosisRow]], None]


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
        """Measure the fixed kernel, between two measurements of the faulty one."""
        if case.fixed is None:
            return row
        built = self.build(case, [case.candidate, case.fixed])
        before, fixed, after = (self.measure(case, built[one.id]) for one in (case.candidate, case.fixed, case.candidate))
        speeds = [ratio_over(one, AUTOTUNED) for one in (before, after)]
        own = math.sqrt(speeds[0] * speeds[1]) if speeds[0] and speeds[1] else None
        speed = ratio_over(fixed, AUTOTUNED)
        trial = Trial(status=fixed.status, message=fixed.fault, ratio=speed / own if speed and own else None)
        repeat = speeds[1] / speeds[0] if speeds[0] and speeds[1] else None
        return row.model_copy(update={"fixed": trial, "repeat": repeat})

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


def measure_all(sandbox: Sandbox, cases: Sequence[FaultyCase], deadline: float, save: Save) -> list[DiagnosisRow]:
    """All diagnoses, then the fixes, so that an interrupted run still has every diagnosis."""
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


def main() -> None:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--cases", nargs="+", help="only cases whose name contains one of these words")
    options = parser.parse_args()
    cases = [case for case in all_cases() if not options.cases or any(word in case.name for word in options.cases)]
    started, made = time.monotonic(), stamp(__file__, options.commit)

    def emit(event: Event) -> None:
        if isinstance(event, Notice):
            print(event.message)

    with open_sandbox_of(cases[0].task.arch, load_settings(), emit) as sandbox:
        if not sandbox.can_measure:
            raise SystemExit("this benchmark measures times and needs an sm_90a GPU")

        def save(rows: Sequence[DiagnosisRow]) -> None:
            seconds = time.monotonic() - started
            head = {"commit": made["commit"], "date": made["date"], "environment": sandbox.environment, "seconds": seconds}
            result = DiagnosisResult.model_validate({**head, "rows": tuple(rows)})
            write_text(options.out, result.model_dump_json(indent=1) + "\n")
            write_text(options.out.with_suffix(".md"), render(result))

        measure_all(sandbox, cases, started + 60 * options.minutes, save)
    print(options.out.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    execute(main)
