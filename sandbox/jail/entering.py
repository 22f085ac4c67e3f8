"""Enters a jail: the files that a child may read and write, by the layers that work on this machine. Standard library only."""

from dataclasses import asdict, dataclass
from typing import Any

from cudal2_agent.sandbox.jail import landlock, mounts, syscalls

NEW_NETWORK = 0x40000000
JAILED = "SANDBOX_JAILED"  # in the environment of a command that was started in a jail
NOT_JAILED = 119  # exit code where a layer was refused; no other program of this project uses it
KERNEL_LOG = "/dev/kmsg"
KERNEL_LOG_FD = 9  # where a child that was allowed the log has it open: a user namespace would refuse to open it
_EVERYTHING = (1 << 16) - 1


@dataclass(frozen=True)
class Layers:
    """Which layers are used. A requested layer that fails is an error and is never skipped."""

    landlock: bool = False
    mounts: bool = False
    calls: bool = False


@dataclass(frozen=True)
class Jail:
    """What a child may use, with everything below it. `read`: also to execute; None for every file that its user may read.

    `write`: its scratch first; where `read` is given, nothing in these folders is executed. `processes`, `sockets`: whether
    it may create new ones. `devices`: files that it reads and writes but neither creates nor removes. `programs`: the only
    files that it may execute, by Landlock; without Landlock it executes what it reads. None is all that it reads.
    """

    write: tuple[str, ...]
    read: tuple[str, ...] | None = None
    devices: tuple[str, ...] = ()
    processes: bool = True
    sockets: bool = False
    programs: tuple[str, ...] | None = None
    layers: Layers = Layers()

    def as_request(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_request(cls, values: dict[str, Any]) -> "Jail":
        given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**given | {"layers": Layers(**values["layers"])})


def enter_namespace(jail: Jail, namespaces: int = 0) -> bool:
    """Make the jail's paths the only ones, where the mount layer is used; False where it is not. Raises: OSError."""
    if not jail.layers.mounts or jail.read is None:
        return False
    mounts.enter_root((*jail.read, *(jail.programs or ())), (*jail.write, *jail.devices), also=namespaces)
    return True


def enter(jail: Jail, *, network: bool, programs: bool = True) -> None:
    """Apply the other layers: Landlock and the system-call filter. They cannot be removed afterwards.

    `programs`: whether the filter leaves `execve` to Landlock, for a launcher that has yet to become its command. Raises:
    OSError where a layer is refused.
    """
    if jail.layers.landlock:
        handled = _EVERYTHING if jail.read is not None else landlock.WRITE
        executed = landlock.EXECUTE if jail.programs is None else 0
        read = [(path, landlock.READ | executed) for path in jail.read or ()]
        read += [(path, landlock.READ | landlock.EXECUTE) for path in jail.programs or ()]
        write = [(path, landlock.READ | landlock.WRITE) for path in jail.write]
        devices = [(path, landlock.READ | landlock.DEVICE) for path in jail.devices]
        landlock.restrict([*read, *write, *devices], handled=handled, network=network)
    if jail.layers.calls:
        syscalls.forbid(processes=jail.processes, programs=programs, sockets=jail.sockets)
