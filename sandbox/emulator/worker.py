"""A worker process that emulates: `python -m sandbox.emulator.worker --arch sm_90a`, driven as a GPU's (`workers/worker.py`).

Its parent limits its address space: `MEMORY_BYTES` holds the operands of the largest tasks that can be sampled.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.workers.messages import Ready, StageEntered
from cudal2_agent.sandbox.workers.worker import Evaluates, Say, serve

MEMORY_BYTES = 16 * 1024**3
# It starts no program; what torch imports would look for libraries with a compiler, by way of a file.
ENVIRONMENT = {"PATH": ""}


def command(arch: Arch, python: str | None = None) -> list[str]:
    """The command line of a worker for one architecture."""
    return [python or sys.executable, "-P", "-m", "cudal2_agent.sandbox.emulator.worker", "--arch", arch.value]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stdin ends. The exit code is 0, or 1 where the worker cannot go on."""
    parser = argparse.ArgumentParser(prog="python -m cudal2_agent.sandbox.emulator.worker", description=__doc__)
    parser.add_argument("--arch", type=Arch, choices=list(Arch), required=True, help="whose reference chip is emulated")
    parser.add_argument("--device", type=int, default=0, help="which of several workers; they are all alike")
    arch: Arch = parser.parse_args(arguments).arch
    return serve(partial(open_emulator, arch))


def open_emulator(arch: Arch, say: Say) -> tuple[Evaluates, Ready]:
    """The emulator's evaluator, and what to announce. Raises: DeviceUnavailable where the core was not built."""
    from cudal2_agent.sandbox.emulator.evaluator import Evaluator
    from cudal2_agent.sandbox.timing_model.model import predict

    chip = REFERENCE_CHIPS[arch]
    evaluator = Evaluator(chip, lambda stage: say(StageEntered(stage=stage)), predict)
    return evaluator, Ready(environment=None, chip=chip)


if __name__ == "__main__":
    sys.exit(main())
