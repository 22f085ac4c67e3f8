"""Seeded faults of the corpus as a model's kernels: does the feedback name the instruction, barrier, tile or k at fault?

Run from the repository's root, anywhere:
    python -m benchmarks.repair_feedback --commit HASH --out benchmarks/results/NAME.json
Each fault is built and proved by the emulator for the number of SMs at which it shows. Judged is the section of a repair's
prompt that says what became of the kernel; the failed source and differences to a proven kernel are not part of it.
"""

import argparse
import datetime
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.repair_feedback.rules import POOL, RULES, SEED, drawn, rest
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import TimedOut, Wrong
from cudal2_agent.contract.settings.options import CompileOptions, VerifyOptions
from cudal2_agent.policies.chat.prompts.failures import failure_text
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.emulator.evaluator import Evaluator
from cudal2_agent.sandbox.workers.messages import Done, Evaluate
from tests.sandbox.emulator.corpus import FAULTS
from tests.sandbox.emulator.corpus.fault import Fault

VERIFY_SEED, TIMEOUT_S = 2, 60.0
TOKENS = 4000  # for the feedback
_YES = {True: "yes", False: "**no**"}


class FeedbackRow(Record):
    """One fault. `drawn`: by the seed, not one of the rest of the pool. `named`: whether it names what is `wanted`."""

    fault: str
    drawn: bool
    why: str
    outcome: str
    wanted: str
    named: bool
    characters: int
    seconds: float
    feedback: str


class FeedbackResult(Record):
    """A run over the faults of the pool."""

    command: str
    commit: str
    date: str
    pool: int
    seed: int
    rows: tuple[FeedbackRow, ...]


def feedback(fault: Fault, builder: Builder, timeout_s: float = TIMEOUT_S) -> tuple[str, str]:
    """The outcome in short, and the text that a model is shown. Raises: SystemExit where the fault is not found."""
    chip = REFERENCE_CHIPS[fault.task.arch].model_copy(update={"sms": fault.sms})
    wrong = fault.wrong()
    built = builder.build_one(wrong, fault.task)
    if not isinstance(built, Built):
        raise SystemExit(f"{fault.id} was not built: {built}")
    options = VerifyOptions(seed=VERIFY_SEED, timeout_s=timeout_s)
    answer = Evaluator(chip, lambda _: None).evaluate(Evaluate(built=built, task=fault.task, verify=options))
    if not isinstance(answer, Done) or not isinstance(answer.evaluation, Wrong | TimedOut):
        raise SystemExit(f"{fault.id} was not found: {answer}")
    evaluation = answer.evaluation
    outcome = f"{evaluation.test.tier}/{evaluation.test.name}" if isinstance(evaluation, Wrong) else evaluation.status
    return outcome, failure_text(evaluation, wrong.source, TOKENS)


def rows(names: Sequence[str], cache: Path) -> Iterator[FeedbackRow]:
    by_name = {fault.id: fault for fault in FAULTS}
    for name in names:
        fault, rule, started = by_name[name], RULES[name], time.monotonic()
        builder = Builder(CompileOptions(cache_dir=str(cache)), REFERENCE_CHIPS[fault.task.arch])
        outcome, text = feedback(fault, builder)
        yield FeedbackRow(
            fault=name,
            drawn=name in drawn(),
            why=fault.why,
            outcome=outcome,
            wanted=rule.names,
            named=rule.holds(text),
            characters=len(text),
            seconds=round(time.monotonic() - started, 1),
            feedback=text,
        )


def render(result: FeedbackResult) -> str:
    groups = {True: "The faults drawn", False: "The rest of the pool"}
    lines = [
        "# What the feedback names of seeded faults",
        "",
        f"`{result.command}`, commit {result.commit}, {result.date}. {result.pool} faults of the corpus that give a wrong "
        f"result or hang, {len(drawn())} of them drawn with seed {result.seed}. Rules: `benchmarks/repair_feedback/rules.py`.",
    ]
    for group, heading in groups.items():
        rows = [row for row in result.rows if row.drawn == group]
        named = sum(row.named for row in rows)
        lines += [
            "",
            f"## {heading}: {named} of {len(rows)} named",
            "",
            "| fault | why it is one | found as | the feedback must name | named |",
            "|---|---|---|---|---|",
            *(f"| {row.fault} | {row.why} | {row.outcome} | {row.wanted} | {_YES[row.named]} |" for row in rows),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--commit", required=True, help="the tested commit")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        judged = tuple(rows([*drawn(), *rest()], Path(cache)))
    result = FeedbackResult(
        command="python -m benchmarks.repair_feedback",
        commit=arguments.commit,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        pool=len(POOL),
        seed=SEED,
        rows=judged,
    )
    arguments.out.write_text(result.model_dump_json(indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(render(result))
    for group, name in ((True, "drawn"), (False, "rest")):
        named = [row.named for row in judged if row.drawn == group]
        print(f"{name}: {sum(named)} of {len(named)} feedbacks name what is at fault")


if __name__ == "__main__":
    main()
