"""Verdicts of GPU and emulator on the same kernels: schedules drawn from the whole space, and seeded faults.

Run from the repository's root, once on a machine with the GPU and once anywhere:
    python -m benchmarks.emulator.agreement verdicts --device cuda:0 --commit HASH --out gpu.json
    python -m benchmarks.emulator.agreement verdicts --device emulator --commit HASH --out emulator.json
    python -m benchmarks.emulator.agreement table gpu.json emulator.json --out benchmarks/results/NAME.md
Both runs draw the same kernels from one seed. A fault that passes on the GPU is one that the GPU hides.
"""

import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import execute, result_arguments, script, stamp, table, write_json, write_text
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation, Unmeasured
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.families.registry import families
from tests.sandbox.emulator.corpus import FAULTS

SCHEDULES = 100
LIMIT_S = 12.0  # on a GPU, where a deadlock ends only when its worker is killed
TASKS = tuple(
    GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})
    for (m, n, k), fields in (
        ((256, 256, 256), {"layout": "nn"}),
        ((256, 256, 256), {"layout": "tn"}),
        ((128, 384, 512), {"layout": "nn", "accumulate": "f16"}),
        ((320, 128, 256), {"layout": "tn", "accumulate": "f16"}),
        ((200, 136, 200), {"layout": "tn", "element": "bf16"}),
        ((72, 264, 136), {"layout": "nn", "element": "bf16"}),
        ((64, 64, 2048), {"layout": "nn"}),
        ((37, 51, 45), {"layout": "nn"}),
        ((130, 66, 250), {"layout": "tn"}),
        ((1, 7, 3), {"layout": "nn"}),
        ((256, 256, 256), {"layout": "nt"}),
        ((72, 264, 136), {"layout": "nt", "element": "bf16"}),
    )
)


def kernels(seed: int) -> Iterator[tuple[str, GemmTask, Candidate]]:
    """(name, task, candidate): schedules distributed evenly over tasks and families, then every seeded fault."""
    chip = REFERENCE_CHIPS[Arch.SM_90A]
    pairs = [(task, family) for task in TASKS for family in families(task.arch)]
    spaces = [(task, family, space) for task, family in pairs if (space := list(family.space(task, chip)))]
    rng = random.Random(seed)
    drawn: dict[str, tuple[str, GemmTask, Candidate]] = {}
    for turn in itertools.count():
        if len(drawn) == SCHEDULES:
            break
        task, family, space = spaces[turn % len(spaces)]
        candidate = family.write(rng.choice(space), task)
        drawn.setdefault(candidate.id, (f"schedule {len(drawn)}: {family.name} {task.shape} {task.layout}", task, candidate))
    yield from drawn.values()
    for fault in FAULTS:
        yield f"fault {fault.id}", fault.task, fault.wrong()


def verdict(evaluation: Evaluation) -> dict[str, str]:
    if isinstance(evaluation, Unmeasured):
        return {"verdict": "verified" if evaluation.passed else "not executed", "detail": evaluation.reason}
    return {"verdict": evaluation.status.replace("_", " "), "detail": evaluation.fault}


def verdicts(device: str, seed: int) -> list[dict[str, str]]:
    """The verdict on each kernel on a device, in order."""
    listed = list(kernels(seed))
    with tempfile.TemporaryDirectory() as home:
        limits = {"verify_timeout_s": LIMIT_S} if device != "emulator" else {}
        settings = load_settings(device=device, home=Path(home), **limits)
        with open_sandbox_of(TASKS[0].arch, settings, lambda _event: None) as sandbox:
            outcomes: dict[int, Built | Evaluation] = {}
            for task in dict.fromkeys(task for _, task, _ in listed):
                chosen = [index for index, (_, own, _) in enumerate(listed) if own == task]
                for position, outcome in sandbox.build([listed[index][2] for index in chosen], task):
                    outcomes[chosen[position]] = outcome
            if isinstance(first := outcomes[0], Built):
                sandbox.verify(first, listed[0][1])  # what libraries compile for a GPU when first used is not the kernel's time
            rows = []
            for index, (name, task, candidate) in enumerate(listed):
                outcome = outcomes[index]
                evaluation = sandbox.verify(outcome, task) if isinstance(outcome, Built) else outcome
                rows.append({"name": name, "candidate": candidate.id, **verdict(evaluation)})
                print(f"{name}: {rows[-1]['verdict']} {rows[-1]['detail'][:100]}", flush=True)
    return rows


def compared(gpu: dict[str, Any], emulator: dict[str, Any]) -> str:
    """Both sides in Markdown: their agreement on schedules, and every fault."""
    pairs = list(zip(gpu["rows"], emulator["rows"], strict=True))
    if any(one["candidate"] != other["candidate"] for one, other in pairs):
        raise SystemExit("the two files contain verdicts on different kernels; run both with the same seed and commit")
    drawn = [pair for pair in pairs if pair[0]["name"].startswith("schedule")]
    faults = [pair for pair in pairs if pair[0]["name"].startswith("fault")]
    agreeing = [pair for pair in drawn if pair[0]["verdict"] == pair[1]["verdict"]]
    lines = [
        "# GPU and emulator, verdict by verdict",
        "",
        f"`{gpu['command']}`, commit {gpu['commit']}; on the emulator, commit {emulator['commit']}; {gpu['date']}.",
        "",
        "## Schedules drawn from the whole space",
        "",
        f"{len(agreeing)} of {len(drawn)} verdicts agree.",
        "",
        *table(("family", "kernels", "verified by both", "GPU only", "emulator only", "neither"), _family_rows(drawn)),
        *(
            f"- {one['name']}: GPU {_told(one)}; emulator {_told(other)}"
            for one, other in drawn
            if one["verdict"] != other["verdict"]
        ),
        "",
        "## Seeded faults",
        "",
        f"Of {len(faults)} faults the GPU's verification finds {_found(faults, 0)}, the emulator {_found(faults, 1)}.",
        "",
        *table(
            ("fault", "GPU", "emulator"),
            ((one["name"].removeprefix("fault "), _told(one), _told(other)) for one, other in faults),
        ),
    ]
    return "\n".join(lines) + "\n"


def _family_rows(drawn: Sequence[tuple[dict[str, str], dict[str, str]]]) -> Iterator[tuple[object, ...]]:
    counts: dict[str, Counter[tuple[bool, bool]]] = {}
    for one, other in drawn:
        family = one["name"].split()[2]
        counts.setdefault(family, Counter())[one["verdict"] == "verified", other["verdict"] == "verified"] += 1
    for family, count in sorted(counts.items()):
        cells = [count[key] for key in ((True, True), (True, False), (False, True), (False, False))]
        yield family, sum(cells), *cells


def _found(faults: Sequence[tuple[dict[str, str], dict[str, str]]], side: int) -> int:
    return sum(pair[side]["verdict"] not in ("verified", "not executed") for pair in faults)


def _told(row: dict[str, str]) -> str:
    detail = row["detail"].split(":")[0][:60].replace("|", "/")
    return f"{row['verdict']} ({detail})" if detail else row["verdict"]


def main() -> None:
    parser = script(__file__, __doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    device = commands.add_parser("verdicts")
    result_arguments(device)
    device.add_argument("--device", required=True)
    device.add_argument("--seed", type=int, default=0)
    both = commands.add_parser("table")
    both.add_argument("gpu", type=Path)
    both.add_argument("emulator", type=Path)
    both.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "table":
        made = compared(json.loads(options.gpu.read_text()), json.loads(options.emulator.read_text()))
        write_text(options.out, made)
        print(made)
        return
    head = stamp(__file__, options.commit)
    write_json(options.out, {**head, "rows": verdicts(options.device, options.seed)})


if __name__ == "__main__":
    execute(main)
