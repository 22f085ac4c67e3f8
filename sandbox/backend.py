"""What executes candidates of an arch on this machine: a GPU, else the emulator, else nothing, with a notice that says why."""

import ctypes
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError, WorkerError
from cudal2_agent.contract.events import Emit, Notice, StageStarted, WorkerRestarted
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions, WorkerOptions
from cudal2_agent.sandbox.emulator import worker as emulator_worker
from cudal2_agent.sandbox.workers.messages import Ready, Stage
from cudal2_agent.sandbox.workers.pool import WorkerPool

DRIVER_LIBRARIES = ("libcuda.so.1", "libcuda.so") if sys.platform != "win32" else ("nvcuda.dll",)
EMULATED = "kernels are proved by the emulator and ranked by predicted times"
NOT_EXECUTED = "kernels are built and ranked by prediction, not executed"


@dataclass(frozen=True)
class Backend:
    """A pool whose first worker is ready. `emulates`: whether its workers are the emulator's."""

    pool: WorkerPool
    ready: Ready
    emulates: bool


class Backends:
    """Opens the backends of one arch. Every method raises DeviceUnavailable, MachineError or WorkerError where it fails."""

    def __init__(self, arch: Arch, worker: WorkerOptions, compile_options: CompileOptions, emit: Emit) -> None:
        self._arch, self._worker, self._emit = arch, worker, emit
        self.gpu_environment = compile_caches(compile_options)

    def open(self, device: str) -> Backend | None:
        """The backend for `auto`, `none`, `emulator` or `cuda:N`; None where nothing executes candidates."""
        if device == "none":
            return None
        if device == "emulator":
            return self.emulator()
        gpu = self._gpu(device)
        if isinstance(gpu, Backend):
            return gpu
        try:
            emulator = self.emulator()
        except (MachineError, WorkerError) as exc:
            self._emit(Notice(message=f"{gpu}, and {exc}; {NOT_EXECUTED}"))
            return None
        self._emit(Notice(message=f"{gpu}; {EMULATED}"))
        return emulator

    def emulator(self, role: str = "") -> Backend:
        """`role`: a prefix of the stages in events."""
        command = emulator_worker.command(self._arch, self._worker.python)
        with ExitStack() as unless_kept:  # an interrupt leaves no worker behind
            pool = self._pool(
                role,
                command=command,
                memory_bytes=emulator_worker.MEMORY_BYTES,
                environment=emulator_worker.ENVIRONMENT,
            )
            unless_kept.enter_context(closing(pool))
            ready = pool.ready()
            unless_kept.pop_all()
            return Backend(pool, ready, emulates=True)

    def _gpu(self, device: str) -> Backend | str:
        """The GPU, or why `auto` has none. Only `cuda:N` raises."""
        if not driver_present():
            if device != "auto":
                raise DeviceUnavailable(
                    f"{device} was asked for, but there is no NVIDIA driver here; install it or use --device emulator"
                )
            return "no NVIDIA driver on this machine"
        with ExitStack() as unless_kept:
            pool = unless_kept.enter_context(closing(self._pool(environment=self.gpu_environment)))
            try:
                ready = pool.ready()
            except (MachineError, WorkerError) as exc:
                if device != "auto":
                    raise
                return f"the GPU cannot be used: {exc}"
            if ready.chip.arch is self._arch:
                unless_kept.pop_all()
                return Backend(pool, ready, emulates=False)
        return f"{ready.chip.name} runs {ready.chip.arch}, the task is for {self._arch}"

    def _pool(self, role: str = "", **workers: Any) -> WorkerPool:
        def on_stage(built: Built, stage: Stage) -> None:
            self._emit(StageStarted(candidate_id=built.candidate.id, stage=f"{role}{stage}"))

        def on_restart(reason: str) -> None:
            self._emit(WorkerRestarted(reason=reason))

        return WorkerPool([self._worker], on_stage=on_stage, on_restart=on_restart, **workers)


def driver_present() -> bool:
    """Whether the driver's library can be loaded; loading it creates no CUDA context."""
    for library in DRIVER_LIBRARIES:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False


def compile_caches(options: CompileOptions) -> dict[str, str]:
    """Folders beside the compile cache, so that a new worker compiles neither cupy's kernels nor torch's programs again."""
    names = {"CUPY_CACHE_DIR": "cupy", "TORCHINDUCTOR_CACHE_DIR": "torchinductor"}
    return {variable: str(Path(options.cache_dir).resolve().with_name(name)) for variable, name in names.items()}
