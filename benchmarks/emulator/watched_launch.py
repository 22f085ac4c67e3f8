"""One launch of a kernel in a minimal process that compute-sanitizer watches.

Run: python -m benchmarks.emulator.watched_launch FOLDER, where FOLDER holds what `put` wrote. No other kernel runs.
Each operand is a separate allocation of exactly its size, so that memcheck knows its end. Memory that the plan does not zero
is left as allocated, so that initcheck knows what was written.
The process prints how the launch ended: `ENDED`, or `FAULT` with CUDA's error, or `HUNG` from Python's watchdog.
"""

import faulthandler
import sys
from pathlib import Path

import cupy
import numpy as np

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.plan import ResolvedPlan, TensorName, operand_shape
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.contender import Operands
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import Fault
from cudal2_agent.sandbox.cuda.launcher import Kernel
from cudal2_agent.sandbox.verification.elements import encode

ENDED, FAULT, HUNG = "launch ended", "launch failed: ", "Timeout ("
HANG_S = 15.0  # a launch takes microseconds, and milliseconds under a tool
_CUBIN, _LAUNCH = "kernel.cubin", "launch.json"


class Launchable(Record):
    """A resolved plan, and the task whose operands it takes."""

    plan: ResolvedPlan
    task: GemmTask


def put(folder: Path, launchable: Launchable, cubin: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / _CUBIN).write_bytes(cubin)
    (folder / _LAUNCH).write_text(launchable.model_dump_json())


def launch(launchable: Launchable, cubin: bytes) -> None:
    """Run the kernel once on random inputs and read D back. Raises: Fault."""
    plan, task = launchable.plan, launchable.task
    cupy.cuda.set_allocator(None)  # its pool would return parts of one large allocation
    device, rng = Device(0), np.random.default_rng(0)
    a, b = (_random(name, task, rng) for name in ("A", "B"))
    d = cupy.empty(operand_shape(task, "D"), cupy.uint16)
    workspace = cupy.empty(plan.workspace_bytes, cupy.uint8) if plan.workspace_bytes else None
    if workspace is not None and plan.zero == "restored":
        workspace.data.memset_async(0, plan.zero_bytes)
    bound = Kernel("kernel", cubin, plan, task).bind(Operands.in_layout(task.layout, a, b, d, workspace))
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    bound.enqueue(device.stream.ptr)
    device.synchronize()
    cupy.asnumpy(d)
    faulthandler.cancel_dump_traceback_later()


def _random(name: TensorName, task: GemmTask, rng: np.random.Generator) -> cupy.ndarray:
    return cupy.asarray(encode(np, rng.standard_normal(operand_shape(task, name)), task.element))


def main() -> int:
    folder = Path(sys.argv[1])
    launchable = Launchable.model_validate_json((folder / _LAUNCH).read_text())
    try:
        launch(launchable, (folder / _CUBIN).read_bytes())
    except (Fault, cupy.cuda.runtime.CUDARuntimeError) as exc:
        print(f"{FAULT}{exc}", flush=True)
        return 1
    print(ENDED, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
