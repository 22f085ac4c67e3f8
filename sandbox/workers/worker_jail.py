"""The files that a worker's process may use: its programs and libraries, the caches it is given, and its scratch.

Landlock and the system-call filter confine a worker; a mount namespace would hide files that a driver looks for. `/proc`
stays readable, because the driver and the C library use it. Landlock hides in it what belongs to other processes
(environment, memory, open files).
Not covered: a worker that runs without a jail, because it did not start in one (`pool.py` warns).
"""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cudal2_agent.contract.settings.options import WorkerOptions
from cudal2_agent.sandbox.jail.entering import Jail
from cudal2_agent.sandbox.jail.kind import confinement
from cudal2_agent.sandbox.workers.process import child_environment, module_path

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/sys", "/proc", "/dev"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/nvidia"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "nvidia*", "dri")
_TOOLKIT = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
_CACHES = ("CUPY_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def gpu_jail(options: WorkerOptions, scratch: Path, environment: Mapping[str, str]) -> Jail:
    """Files of a GPU's worker. It may write to its scratch, the caches of cupy and torch, the GPU's devices and /proc.

    On an H200 (driver 580) CUDA starts only where it may change files of /proc. Writing or truncating those of its own
    process does not suffice.
    """
    write = [scratch, *(Path(environment[name]) for name in _CACHES if name in environment)]
    for folder in write:
        folder.mkdir(parents=True, exist_ok=True)
    return Jail(
        write=(*(str(folder.resolve()) for folder in write), "/proc"),
        read=readable(options),
        devices=tuple(_devices()),
        sockets=True,
        layers=replace(confinement().layers, mounts=False),
    )


def emulator_jail(options: WorkerOptions) -> Jail:
    """Files of the emulator's worker: it writes none, opens no socket and starts no process."""
    layers = replace(confinement().layers, mounts=False)
    return Jail(write=(), read=readable(options), devices=("/dev/null",), processes=False, layers=layers)


def _devices() -> list[str]:
    return sorted(str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern))


def readable(options: WorkerOptions) -> tuple[str, ...] | None:
    """Programs, libraries and caches; None, for every file, where the options name no caches."""
    if options.readable is None:
        return None
    for folder in options.readable:  # what is absent now could not be allowed later
        with contextlib.suppress(OSError):  # the first write there reports what is wrong
            Path(folder).mkdir(parents=True, exist_ok=True)
    python = Path(options.python or sys.executable)
    prefixes = [python.parents[1], python.resolve().parents[1]]
    if options.python is None:
        prefixes += [Path(sys.prefix), Path(sys.base_prefix)]
    inherited = child_environment(Path.cwd())  # a toolkit may lie anywhere
    named = [folder for name in _TOOLKIT for folder in inherited.get(name, "").split(os.pathsep) if os.path.isabs(folder)]
    root, *entries = module_path()
    packages = [entry for entry in entries if _holds_packages(Path(entry))]
    return tuple(dict.fromkeys([*_SYSTEM, *map(str, prefixes), *named, root, *packages, *_linked(packages), *options.readable]))


def _holds_packages(folder: Path) -> bool:
    """Whether packages are installed in a folder of the import path, as `pip install --target` does under any name.

    Other folders of it may hold a user's own files.
    """
    return folder.name in ("site-packages", "dist-packages") or any(folder.glob("*.dist-info"))


def _linked(packages: Sequence[str]) -> list[str]:
    """The targets of packages that are installed as links."""
    entries = (entry for folder in packages if Path(folder).is_dir() for entry in Path(folder).iterdir())
    return sorted(str(entry.resolve()) for entry in entries if entry.is_symlink())
