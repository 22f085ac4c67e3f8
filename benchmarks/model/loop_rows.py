"""What runs with a language model in the loop, and the searches beside them, came to: one row a run, read from stores.

    python -m benchmarks.model.loop_rows STORE... --out ROWS.jsonl [--kernels FOLDER]
    python -m benchmarks.model.loop_rows --page ROWS.jsonl...

A store is a home folder. Tasks are those of `tasks.json`; a run of the policy chat or mcp is a model's, any other a search.
GPU seconds are what evaluations, races and counters took, without compilers, proofs and waiting. A search counts as far as it
came within the model's GPU seconds; its race follows. `--kernels` keeps a model's best kernels that are faster than the
library. Ratios are over cuBLASLt-AutoTuning, of a module over PyTorch's fastest.
"""

import argparse
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row, execute, script, table
from benchmarks.model.drawn_tasks import tasks
from benchmarks.modules.rows import add_row, place_of, read_rows
from cudal2_agent.agent.library.paired_programs import over_copies
from cudal2_agent.agent.observe.ranking import leading_step
from cudal2_agent.agent.report.replies import sum_up
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.speedup import median_us, paired_speedup, speedup_that_counts, yardstick_of
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import Store, open_store

GROUPS = ("weak", "unaligned", "modules")
MODELS = ("chat", "mcp")
RACED = ("race", "full")  # how the end of a run measures


class Tries(NamedTuple):
    """Replies that were no repair; those of them whose kernel was right; those that were right or became so by one repair."""

    replies: int
    right: int
    mended: int


def rows_of(store: Store, label: str) -> Iterator[Row]:
    """A row of each finished or stopped run that has steps. `label`: what was left out of the loop, if anything."""
    names = {_key(name): (group, name) for group in GROUPS for name in tasks()[group]}  # type: ignore[attr-defined]
    for run in store.runs():
        steps = store.steps(run.run_id)
        if steps and _key_of(run) in names:
            group, name = names[_key_of(run)]
            yield {"task": name, "group": group, "without": label, **_row(store, run, steps)}


def kernels_of(store: Store, folder: Path) -> None:
    """The source of each model's best kernel that was found faster than the library, named by its task."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in store.runs():
        steps = store.steps(run.run_id)
        best = leading_step(steps, run.task, run.chip) if run.policy in MODELS and steps else None
        if best is not None and not best.candidate.origin.schedule and (speedup_that_counts(best.evaluation) or 0.0) > 1:
            name = _key_of(run).replace("/", "_").replace(" ", "_")
            (folder / f"{name}.cu").write_text(best.candidate.source, encoding="utf-8")


def _key(name: str) -> str:
    return name if " " in name else "{}/{}".format(*place_of(name))


def _key_of(run: RunRecord) -> str:
    task = run.task
    return f"{task.shape} {task.layout.value}" if isinstance(task, GemmTask) else "{}/{}".format(*place_of(task.name))


def _row(store: Store, run: RunRecord, steps: Sequence[Step]) -> Row:
    exchanges = store.exchanges(run.run_id)
    seen = {exchange.observation_id: store.observation(exchange.observation_id) for exchange in exchanges}
    said, tries = sum_up(exchanges, seen), tries_of(exchanges, steps)
    best = leading_step(steps, run.task, run.chip)
    spent = _spent(steps)
    return {
        "run": run.run_id,
        "policy": run.policy,
        "chip": run.chip.name,
        "rounds": max(step.round for step in steps),
        "candidates": len({step.candidate.id for step in steps}),
        "gpu_s": round(spent[-1], 1),
        "proof_s": round(sum(step.seconds.get("witness", 0.0) for step in steps), 1),
        "profiled": sum(step.profile is not None for step in steps),
        "path": [[step.round, round(spent_s, 1), *_ratio(step)] for spent_s, step in zip(spent, steps, strict=True)],
        **({} if best is None else _best(best)),
        **({} if said is None else {"tokens": [said.prompt_tokens, said.reply_tokens], "shown": said.shown, "used": said.used}),
        **({} if said is None else {"replies": tries.replies, "right": tries.right, "mended": tries.mended}),
    }


def _best(step: Step) -> Row:
    evaluation, origin = step.evaluation, step.candidate.origin
    found: Row = {"best": step.candidate.id, "idea": origin.note, "by": "schedule" if origin.schedule else "source"}
    if isinstance(evaluation, Measured) and (yardstick := yardstick_of(evaluation)) is not None:
        speedup = paired_speedup(evaluation.timing, yardstick)
        ratios = [round(value, 4) for value in (speedup.ratio, speedup.low, speedup.high)]
        found |= {"time_us": median_us(evaluation.timing), "baseline": yardstick.name, "speedup": ratios}
        found |= {"baseline_us": median_us(yardstick)}
    return found


def _ratio(step: Step) -> list[float | str]:
    """[ratio, effort] of a right kernel, else [0, how it ended]."""
    evaluation = step.evaluation
    if not isinstance(evaluation, Measured) or (yardstick := yardstick_of(evaluation)) is None:
        return [0.0, evaluation.status]
    return [round(paired_speedup(evaluation.timing, yardstick).ratio, 4), evaluation.effort or ""]


def _spent(steps: Sequence[Step]) -> list[float]:
    """GPU seconds until the end of each step."""
    spent, total_s = [], 0.0
    for step in steps:
        total_s += step.seconds.get("evaluate", 0.0) + step.seconds.get("profile", 0.0)
        spent.append(total_s)
    return spent


def tries_of(exchanges: Sequence[Exchange], steps: Sequence[Step]) -> Tries:
    """A reply counts as right if a candidate of it passed all tests in its last evaluation."""
    last = {step.candidate.id: step for step in steps}
    replies = [exchange for exchange in exchanges if exchange.turn == 0]
    failed_of = {id_: _failed_parents(last[id_], last) for id_ in last}
    right = mended = firsts = 0
    for exchange in replies:
        known = [id_ for id_ in exchange.candidate_ids if id_ in last]
        if any(failed_of[id_] for id_ in known) or (exchange.candidate_ids and not known):
            continue  # a repair, or a candidate that was not evaluated any more
        firsts += 1
        passed = any(last[id_].evaluation.passed for id_ in known)
        children = [step for step in last.values() if failed_of[step.candidate.id] & set(known)]
        right += passed
        mended += passed or any(child.evaluation.passed for child in children)
    return Tries(firsts, right, mended)


def _failed_parents(step: Step, last: dict[str, Step]) -> set[str]:
    return {id_ for id_ in step.candidate.origin.parents[:1] if id_ in last and not last[id_].evaluation.passed}


# ---- page ------------------------------------------------------------------------------------------------------------------
def page(rows: Sequence[Row]) -> str:
    """Markdown tables: each task, the groups, what was left out, the replies."""
    model = {(row["task"], row["without"]): row for row in rows if row["policy"] in MODELS}
    search = {row["task"]: row for row in rows if row["policy"] not in MODELS}
    whole = [row for (_, without), row in model.items() if not without]
    head = ("task", "rounds", "GPU s", "model", "search, as long", "search, whole", "model's kernel")
    shown = [_line(row, search.get(row["task"])) for row in whole]
    parts = [_table(head, shown), _table(("group", "tasks", "ahead", "model", "model / search"), _groups(whole, search))]
    left_out = sorted({without for _, without in model if without})
    if left_out:
        ablated = ("without", "tasks", "over the whole loop", "95 % interval", "of each task")
        parts.append(_table(ablated, [_ablation(model, one) for one in left_out]))
    parts.append(_replies(list(model.values())))
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(table(head, rows))


def _line(row: Row, beside: Row | None) -> Sequence[str]:
    def text(value: float | None) -> str:
        return "–" if not value else f"{value:.3f}"

    within = None if beside is None else within_of(beside, row["gpu_s"])
    whole = None if beside is None or "speedup" not in beside else beside["speedup"][0]
    ratio = text(row["speedup"][0] if "speedup" in row else None)
    return row["task"], str(row["rounds"]), f"{row['gpu_s']:.0f}", ratio, text(within), text(whole), row.get("by", "none right")


def within_of(search: Row, gpu_s: float) -> float:
    """The search's answer after so many GPU seconds: its race's ratio if all of it was within, else the best screen's."""
    tried = [(spent_s, ratio) for _, spent_s, ratio, effort in search["path"] if effort not in RACED]
    screened = [ratio for spent_s, ratio in tried if spent_s <= gpu_s]
    tried_s = max((spent_s for spent_s, _ in tried), default=0.0)
    return float(search["speedup"][0]) if tried_s <= gpu_s and "speedup" in search else max(screened, default=0.0)


def _groups(rows: Sequence[Row], search: dict[str, Row]) -> Iterator[Sequence[str]]:
    for group in GROUPS:
        of = [row for row in rows if row["group"] == group and "speedup" in row]
        pairs = [(row["speedup"][0], within_of(search[row["task"]], row["gpu_s"])) for row in of if row["task"] in search]
        ahead = sum(mine > theirs for mine, theirs in pairs)
        against = _mean(mine / theirs for mine, theirs in pairs if theirs)
        yield group, str(len(of)), f"{ahead} of {len(pairs)}", _mean(row["speedup"][0] for row in of), against


def _ablation(model: dict[tuple[str, str], Row], without: str) -> Sequence[str]:
    """Best kernels after as many rounds as both had, compared; the interval is over tasks, by Student's t of logarithms."""
    ratios = []
    for (task, left), row in model.items():
        whole = model.get((task, "")) if left == without else None
        rounds = min(row["rounds"], whole["rounds"]) if whole else 0
        if whole and upto(row, rounds) and upto(whole, rounds):
            ratios.append(upto(row, rounds) / upto(whole, rounds))
    listed = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    if len(ratios) < 2:
        return without, str(len(ratios)), _mean(ratios), "–", listed
    mean, low, high = over_copies(ratios)
    return without, str(len(ratios)), f"{mean:.3f}", f"{low:.3f} to {high:.3f}", listed


def upto(row: Row, rounds: int) -> float:
    """The best ratio of a short measurement in the first rounds."""
    return max((ratio for number, _, ratio, effort in row["path"] if number <= rounds and effort not in RACED), default=0.0)


def _replies(rows: Sequence[Row]) -> str:
    def total(key: str) -> int:
        return sum(row.get(key, 0) for row in rows)

    replies, gpu_s = total("replies"), sum(row["gpu_s"] for row in rows)
    tokens = [sum(row["tokens"][kind] for row in rows) for kind in (0, 1)]
    return (
        f"{replies} replies that were no repair: {total('right')} right at the first try, {total('mended')} after one repair. "
        f"{total('shown')} pieces of knowledge were shown, {total('used')} used. Tokens: {tokens[0]:,} of prompts, "
        f"{tokens[1]:,} of replies. {total('profiled')} kernels with counters; {gpu_s:.0f} GPU seconds."
    )


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{statistics.geometric_mean(found):.3f}" if found and min(found) > 0 else "–"


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("stores", nargs="*", type=Path, help="home folders; NAME=FOLDER for runs without the part NAME")
    parser.add_argument("--out", type=Path, help="file of the rows, replaced")
    parser.add_argument("--kernels", type=Path, metavar="FOLDER", help="keep the kernels that are faster than the library")
    parser.add_argument("--page", type=Path, nargs="+", default=[], help="print the page of these rows")
    asked: argparse.Namespace = parser.parse_args()
    if asked.out is not None:
        asked.out.unlink(missing_ok=True)
        for named in asked.stores:
            label, _, folder = str(named).rpartition("=")
            store = open_store(load_settings(home=Path(folder)).store_url)
            for row in rows_of(store, label):
                add_row(asked.out, row)
            if asked.kernels is not None:
                kernels_of(store, asked.kernels)
    if asked.page:
        print(page([row for path in asked.page for row in read_rows(path)]))


if __name__ == "__main__":
    execute(main)
