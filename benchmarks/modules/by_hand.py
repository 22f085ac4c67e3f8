"""Modules whose kernels are written by hand, measured on this GPU beside every baseline of PyTorch.

    python -m benchmarks.modules.by_hand --out FILE [--seconds 300]

One row a task, as of `kernelbench`; failures too.
"""

import json
import time
from pathlib import Path

from benchmarks.harness import cache_argument, execute, script
from benchmarks.modules.measuring import Measurer, Measuring, Stages
from benchmarks.modules.rows import add_row
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.cuda.batch_evaluator import BatchEvaluator
from cudal2_agent.sandbox.cuda.device import Device
from tests.gpu.modules_by_hand import EXAMPLES


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(EXAMPLES), help="names of the tasks")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no further task begins")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--without-autotune", action="store_true")
    cache_argument(parser, "modules-cache")
    given = parser.parse_args()
    device, stages, begin = Device(0), Stages(lambda _: None), time.monotonic()
    examples = [make() for name, make in EXAMPLES.items() if name in given.only]
    autotuned = () if given.without_autotune else tuple(example.task.name for example in examples)
    options = Measuring(turns="", cache=str(given.cache), rounds=given.rounds, autotuned=autotuned)
    builder = Builder(CompileOptions(cache_dir=options.cache, jobs=4), device.chip)
    measurer = Measurer(options, device.chip, builder, BatchEvaluator(device, stages), stages)
    for example in examples:
        if time.monotonic() - begin > given.seconds:
            break
        row = measurer.row(example.task, [example.right])
        print(json.dumps(row), flush=True)
        add_row(given.out, row)
    builder.close()


if __name__ == "__main__":
    execute(main)
