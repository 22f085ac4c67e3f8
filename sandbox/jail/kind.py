"""Which jail this machine offers: tried once in a child, and described in words."""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import cudal2_agent
from cudal2_agent.contract.base import Record
from cudal2_agent.sandbox.jail import landlock
from cudal2_agent.sandbox.jail.entering import Layers

Kind = Literal["landlock", "mount-namespace", "none"]
REMEDY = (
    "use a kernel with Landlock (5.13 or newer, 'landlock' among its lsm= modules), or allow user namespaces "
    "(sysctl user.max_user_namespaces; in a container, its seccomp profile)"
)
_PROBE = """
import sys
sys.path.append(sys.argv[1])
from cudal2_agent.sandbox.jail.entering import *
jail = Jail(write=(sys.argv[2],), read=(), layers=Layers(mounts=True, calls=True))
for name, layer in ("mounts", lambda: enter_namespace(jail, NEW_NETWORK)), ("calls", lambda: enter(jail, network=False)):
    try:
        layer()
    except OSError:
        continue
    print(name)
"""
_PROBE_S = 10


class Confinement(Record):
    """The layers that confine a child. `landlock_abi`: 0 where the kernel has none. `system_calls`: a filter."""

    landlock_abi: int = 0
    mount_namespace: bool = False
    system_calls: bool = False

    @property
    def kind(self) -> Kind:
        """The layer that decides: Landlock where there is any, as it confines workers too."""
        return "landlock" if self.landlock_abi else "mount-namespace" if self.mount_namespace else "none"

    @property
    def layers(self) -> Layers:
        return Layers(landlock=self.landlock_abi > 0, mounts=self.mount_namespace, calls=self.system_calls)

    @property
    def detail(self) -> str:
        """In words, for `doctor` and notices."""
        have = [f"Landlock (ABI {self.landlock_abi})"] if self.landlock_abi else []
        have += ["mount namespace"] if self.mount_namespace else []
        have += ["system-call filter"] if self.system_calls else []
        open_files = ["none for files: a compiler or worker may open every file of this user"] if self.kind == "none" else []
        return ", ".join(open_files + have)


@functools.cache
def confinement() -> Confinement:
    """What this machine offers."""
    working = _working()
    return Confinement(landlock_abi=landlock.version(), mount_namespace="mounts" in working, system_calls="calls" in working)


def _working() -> list[str]:
    if sys.platform != "linux":
        return []
    root = str(Path(cudal2_agent.__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-I", "-S", "-c", _PROBE, root, scratch]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False, env={"PATH": os.defpath})
        except (OSError, subprocess.SubprocessError):
            return []
    return done.stdout.decode().split()
