"""Runs what the committed rows still lack, on the GPUs at hand. Run from the repository's root:

    python -m benchmarks.gpu_plan list --chip H200 [--gpus 4]
    python -m benchmarks.gpu_plan run --homes FOLDER --out FOLDER --seconds 540 [--only NAME ...]

`run` takes all GPUs of the machine, which must be of one chip. Called again with the same homes, it goes on. OUT gets the rows
of each campaign (NAME.jsonl.gz) and each store (HOME.sqlite.zst). Winners are proved later: `cudal2-agent campaign prove`.
To let searches start from earlier ones, import steps into FOLDER/main before. What came back belongs into
`benchmarks/h200/rows`, of an H100 into `benchmarks/h200/h100_rows`, of gpus-N and budget-72 into `benchmarks/h200/stability`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_plan.plan import H100_ROWS, STABILITY, Stage, gpu_seconds, stages_of
from benchmarks.gpu_plan.running import collect, run_stages
from benchmarks.h200.summary import ROWS
from cudal2_agent.agent.campaign.result_files import SUFFIX, read_results
from cudal2_agent.agent.wiring.gpus import visible_gpus
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult

CHIPS = ("H200", "H100")


def listed(stages: Sequence[Stage], rows: Sequence[ShapeResult]) -> list[str]:
    """A Markdown table of the campaigns."""
    lines = ["| stage | campaign | shapes | GPUs | GPU s, expected |", "|---|---|---|---|---|"]
    for number, stage in enumerate(stages, 1):
        for one in stage:
            gpus = "all" if one.gpus is None else str(one.gpus)
            lines.append(f"| {number} | {one.name} | {len(one.shapes)} | {gpus} | {gpu_seconds(one, rows):,.0f} |")
    return lines


def chip_at_hand() -> tuple[str, list[int]]:
    """The chip of the GPUs here, and their numbers. Raises: UsageError."""
    gpus = visible_gpus()
    chips = {next((chip for chip in CHIPS if chip in gpu.name), gpu.name) for gpu in gpus}
    if len(chips) != 1:
        raise UsageError(f"the plan needs GPUs of one chip; here are: {', '.join(sorted(chips)) or 'none'}")
    return chips.pop(), [gpu.index for gpu in gpus]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    told = verbs.add_parser("list", help="what is left, and what it costs")
    told.add_argument("--chip", choices=CHIPS, default=CHIPS[0])
    told.add_argument("--gpus", type=int, default=4, help="of the machine that will run it")
    done = verbs.add_parser("run", help="run it")
    done.add_argument("--homes", type=Path, required=True, help="folder for the stores")
    done.add_argument("--out", type=Path, required=True, help="folder for the results")
    done.add_argument("--seconds", type=float, required=True, help="of the whole call")
    done.add_argument("--only", nargs="*", default=[], help="names of campaigns; default: all")
    options = parser.parse_args()
    rows = read_results([ROWS, *([H100_ROWS] if H100_ROWS.is_dir() else [])])
    measured = [path.name.removesuffix(SUFFIX) for path in STABILITY.glob(f"*{SUFFIX}")]
    if options.verb == "list":
        print("\n".join(listed(stages_of(options.chip, rows, options.gpus, measured), rows)))
        return 0
    try:
        chip, gpus = chip_at_hand()
    except UsageError as exc:
        parser.error(str(exc))
    every = stages_of(chip, rows, len(gpus), measured)
    chosen = [
        stage for named in every if (stage := tuple(one for one in named if not options.only or one.name in options.only))
    ]
    finished = run_stages(chosen, options.homes, gpus, options.seconds)
    collect(chosen, options.homes, options.out)
    print("everything is finished" if finished else "not finished: run the same command again")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
