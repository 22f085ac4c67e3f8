"""What this machine can do: one check per part, with a remedy where the part is missing."""

import importlib.util
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from cudal2_agent.agent.run.versions import installed_version
from cudal2_agent.agent.wiring.gpus import by_chip, processes_on, visible_gpus
from cudal2_agent.agent.wiring.remote import is_remote, remote_checks
from cudal2_agent.contract.errors import Cudal2Error, UsageError
from cudal2_agent.contract.file_system import mount_of, require_local
from cudal2_agent.contract.host_limits import memory_limit, processes_left, usable_processors
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.headers import cutlass_roots
from cudal2_agent.sandbox.building.toolchain import CUTLASS_REMEDY, find_nvcc, find_nvdisasm
from cudal2_agent.sandbox.jail.kind import REMEDY as JAIL_REMEDY
from cudal2_agent.sandbox.jail.kind import confinement
from cudal2_agent.sandbox.profiling.ncu import PERMISSION_REMEDY, counters_allowed, find_ncu, ncu_version
from cudal2_agent.sandbox.remote.far_answers import MachineCheck
from cudal2_agent.store.filters import ALL_STEPS
from cudal2_agent.store.statistics import run_count
from cudal2_agent.store.store import open_store

# Each by its names: those of CUDA 13's packages and of CUDA 12's.
PACKAGES = (
    ("cupy-cuda13x", "cupy-cuda12x"),
    ("cuda-bindings",),
    ("langgraph",),
    ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    ("pydantic",),
    ("sqlalchemy",),
)
MEMORY = 1 << 30  # bytes that a small run takes with all its processes, and some to spare
PROCESSES = 32  # with threads, of a small run on two processors, and some to spare
PROBE = """// cudal2: {"arch": "sm_80", "launches": [{"entry": "probe", "grid": [1, 1, 1], "block": [32, 1, 1],
// "args": [{"tensor": "D", "access": "write"}]}]}
#include <cuda_fp16.h>
extern "C" __global__ void probe(__half* d) { d[threadIdx.x] = __float2half(1.0f); }
"""


def examine(settings: Settings) -> list[MachineCheck]:
    """All checks, in the order in which a run needs the parts. Of a device elsewhere its machine is asked."""
    elsewhere = is_remote(settings.device)
    return [
        _python(),
        _host(settings),
        *_packages(),
        *(remote_checks(settings) if elsewhere else _sandbox(settings)),
        _local(settings),
        _store(settings),
        _knowledge(settings),
        _folder("cache", Path(settings.compile_options().cache_dir)),
        _folder("runs", settings.runs_dir),
    ]


def _sandbox(settings: Settings) -> list[MachineCheck]:
    """What builds, proves and times kernels."""
    return [
        _compiler(settings),
        jail(),
        _disassembler(),
        _nvcc(settings),
        *_gpus(),
        emulator(),
        _nvml(),
        _baselines(),
        _torch(),
        _ncu(settings),
    ]


def _python() -> MachineCheck:
    return MachineCheck(
        name="python", ok=sys.version_info >= (3, 11), needed=True, detail=platform.python_version(), remedy="use 3.11"
    )


def _host(settings: Settings) -> MachineCheck:
    """What this process may use of the machine, where control groups limit it."""
    memory, processes = memory_limit(), processes_left()
    detail = f"{usable_processors()} processors, {settings.compile_jobs} compilers at a time"
    detail += f"; {memory / 2**20:,.0f} MiB of memory" if memory else ""
    detail += f"; {processes} more processes and threads" if processes is not None else ""
    ok = (memory or MEMORY) >= MEMORY and (PROCESSES if processes is None else processes) >= PROCESSES
    remedy = f"allow {MEMORY >> 20} MiB of memory (memory.max) and {PROCESSES} processes and threads (pids.max)"
    return MachineCheck(name="host", ok=ok, needed=False, detail=detail, remedy=remedy)


def _packages() -> Iterator[MachineCheck]:
    for names in PACKAGES:
        package = next((name for name in names if installed_version(name)), names[0])
        found = installed_version(package)
        remedy = f"pip install {package}"
        yield MachineCheck(name=package, ok=found is not None, needed=True, detail=found or "not installed", remedy=remedy)


def _compiler(settings: Settings) -> MachineCheck:
    """Compiles a probe kernel for the default target, without the cache."""
    name, task = "compiler (NVRTC)", GemmTask(m=64, n=64, k=64, arch=Arch.SM_90A)
    with TemporaryDirectory() as cache:
        options = settings.compile_options().model_copy(update={"cache_dir": cache})
        try:
            candidate = Candidate.from_source(PROBE, Origin(policy="doctor"))
            begin_s = time.monotonic()
            [(_, outcome)] = Builder(options, REFERENCE_CHIPS[task.arch]).build([candidate], task)
        except Cudal2Error as exc:
            return MachineCheck(name=name, ok=False, needed=True, detail="does not work", remedy=str(exc))
    seconds = time.monotonic() - begin_s
    if isinstance(outcome, Built):
        return MachineCheck(
            name=name, ok=True, needed=True, detail=f"compiled a probe kernel for {task.arch} in {seconds:.1f} s"
        )
    detail = f"probe kernel: {outcome.status}"
    return MachineCheck(
        name=name, ok=False, needed=True, detail=detail, remedy=getattr(outcome, "message", "raise compile_timeout_s")
    )


def jail() -> MachineCheck:
    """The confinement of the compiler and the workers."""
    found = confinement()
    remedy = "" if found.kind != "none" else JAIL_REMEDY
    return MachineCheck(name="jail", ok=found.kind != "none", needed=False, detail=found.detail, remedy=remedy)


def _disassembler() -> MachineCheck:
    found = find_nvdisasm()
    detail = str(found or "opcodes are counted in PTX instead of SASS")
    return MachineCheck(
        name="nvdisasm", ok=found is not None, needed=False, detail=detail, remedy="pip install nvidia-cuda-nvdisasm"
    )


def _nvcc(settings: Settings) -> MachineCheck:
    try:
        nvcc = find_nvcc(settings.nvcc)
    except Cudal2Error as exc:
        detail = "neither kernels with CuTe or CUTLASS nor host candidates can be built"
        return MachineCheck(name="nvcc", ok=False, needed=False, detail=detail, remedy=str(exc))
    detail = nvcc if cutlass_roots() else f"{nvcc}; CuTe's and CUTLASS's headers are missing"
    return MachineCheck(name="nvcc", ok=bool(cutlass_roots()), needed=False, detail=detail, remedy=CUTLASS_REMEDY)


def _gpus() -> Iterator[MachineCheck]:
    try:
        from cudal2_agent.sandbox.cuda.driver import no_gpu
    except ImportError:
        return  # the packages of CUDA are reported by themselves
    found = visible_gpus()
    if reason := no_gpu():
        detail = "kernels are not timed, but ranked by predicted times"
        yield MachineCheck(name="GPU", ok=False, needed=False, detail=detail, remedy=reason)
    for gpu in found:
        detail = f"{gpu.name}, {gpu.sms} SMs, target {gpu.arch or 'unknown'}"
        if others := processes_on(gpu):
            detail += f"; {others} processes use it now, so that times would be unsteady"
        if gpu.exclusive:
            detail += "; exclusive-process mode: one process at a time, and no hardware counters beside it"
        yield MachineCheck(
            name=f"GPU cuda:{gpu.index}",
            ok=gpu.arch is not None,
            needed=False,
            detail=detail,
            remedy="use a GPU of sm_80 or newer",
        )
    if len(chips := by_chip(found)) > 1:
        listed = ", ".join(f"{chip} (cuda:{', cuda:'.join(map(str, numbers))})" for chip, numbers in chips.items())
        detail = f"{listed}; their times are never mixed: a campaign takes GPUs of one chip (--gpus)"
        yield MachineCheck(name="different chips", ok=True, needed=False, detail=detail)


def emulator() -> MachineCheck:
    """Whether kernels can be executed without a GPU."""
    try:
        import cudal2_agent.sandbox.emulator.core_module  # noqa: F401 (that it can be imported is the answer)
    except Cudal2Error as exc:
        return MachineCheck(
            name="emulator", ok=False, needed=False, detail="without a GPU nothing is executed", remedy=str(exc)
        )
    return MachineCheck(name="emulator", ok=True, needed=False, detail="proves kernels where there is no GPU for them")


def _nvml() -> MachineCheck:
    """Clocks, temperature and throttling come from the driver's management library."""
    name, remedy = "NVML", "pip install nvidia-ml-py; the library itself comes with the driver"
    absent = MachineCheck(name=name, ok=False, needed=False, detail="no clocks or temperatures are recorded", remedy=remedy)
    if importlib.util.find_spec("pynvml") is None:
        return absent
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return absent
    driver = str(pynvml.nvmlSystemGetDriverVersion())
    pynvml.nvmlShutdown()
    return MachineCheck(name=name, ok=True, needed=False, detail=f"driver {driver}")


def _baselines() -> MachineCheck:
    found = installed_version("nvmath-python")
    detail = f"nvmath-python {found}" if found else "the cuBLASLt baselines are left out"
    return MachineCheck(
        name="cuBLASLt baselines", ok=found is not None, needed=False, detail=detail, remedy="pip install nvmath-python"
    )


def _torch() -> MachineCheck:
    found = installed_version("torch")
    detail = f"torch {found}" if found else "the torch.matmul baseline is left out"
    return MachineCheck(name="torch baseline", ok=found is not None, needed=False, detail=detail, remedy="pip install torch")


def _ncu(settings: Settings) -> MachineCheck:
    """Nsight Compute, and whether the driver allows this process to read counters, where the driver reports it."""
    name = "Nsight Compute (ncu)"
    try:
        path = find_ncu(settings.profiler.ncu)
        detail = f"{ncu_version(path)} at {path}"
    except Cudal2Error as exc:
        absent = "no hardware counters; diagnoses rest on inspection and times"
        return MachineCheck(name=name, ok=False, needed=False, detail=absent, remedy=str(exc))
    allowed = counters_allowed()
    if allowed is False:
        detail += ", but the driver allows only administrators to read counters"
        return MachineCheck(name=name, ok=False, needed=False, detail=detail, remedy=PERMISSION_REMEDY)
    told = "counters may be read" if allowed else "whether counters may be read shows when a kernel is profiled"
    return MachineCheck(name=name, ok=True, needed=False, detail=f"{detail}; {told}")


def _local(settings: Settings) -> MachineCheck:
    """The disk of what is locked; other machines must not write to it."""
    name, folder = "databases and locks", settings.local_dir
    mount = mount_of(folder)
    kind = f"{folder} ({mount.kind})" if mount else str(folder)
    try:
        require_local(folder, "databases and locks in")
    except UsageError as exc:
        return MachineCheck(name=name, ok=False, needed=True, detail=f"{kind}, a network file system", remedy=str(exc))
    return MachineCheck(name=name, ok=True, needed=True, detail=kind)


def _store(settings: Settings) -> MachineCheck:
    try:
        store = open_store(settings.store_url)
    except Cudal2Error as exc:
        return MachineCheck(name="store", ok=False, needed=True, detail="cannot be used", remedy=str(exc))
    with store:
        count = run_count(store, ALL_STEPS, empty=True)
    return MachineCheck(name="store", ok=True, needed=True, detail=f"{count:,} runs")


def _knowledge(settings: Settings) -> MachineCheck:
    """The knowledge base. Where it is absent, the first run builds it and waits for it."""
    from cudal2_agent.agent.index.knowledge_base import contents, lacking

    name, build = "knowledge base", f"cudal2-agent index add {settings.cutlass}"
    try:
        found = contents(settings)
    except Cudal2Error as exc:
        return MachineCheck(name=name, ok=False, needed=False, detail="nothing can be looked up yet", remedy=str(exc))
    names = ", ".join(release.name for release in found.releases) or "no release"
    missing = lacking(found.releases, settings)
    detail = f"{names}; {found.pieces:,} pieces, {found.model}"
    return MachineCheck(name=name, ok=not missing, needed=False, detail=detail, remedy=build if missing else "")


def _folder(name: str, path: Path) -> MachineCheck:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path):
            return MachineCheck(name=f"{name} folder", ok=True, needed=True, detail=str(path))
    except OSError as exc:
        remedy = "make it writable or set CUDAL2_HOME to another folder"
        return MachineCheck(name=f"{name} folder", ok=False, needed=True, detail=f"{path}: {exc.strerror}", remedy=remedy)
