"""The file system that a path lies on, and whether other machines may write to it too.

SQLite's write-ahead log is shared memory, which two machines do not share, and locks of files are not kept everywhere: NFS
needs a lock server, Lustre the mount option `flock`, sshfs and 9p keep them per machine. So nothing that locks lies there.

Covered: Linux, with bind mounts, symbolic links and folders that are mounted when they are looked at.
Not covered: a disk image on a network file system; systems without /proc/self/mountinfo, where every path counts as local.
Source: proc(5), mountinfo; https://www.sqlite.org/wal.html.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from cudal2_agent.contract.errors import UsageError

MOUNTS = Path("/proc/self/mountinfo")
REMEDY = "set CUDAL2_LOCAL to a folder on a local disk"
# Types as the kernel names them. Those of FUSE count as shared unless they are known to be local.
_SHARED = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "drvfs", "virtiofs", "vboxsf"),
        *("vmhgfs", "prl_fs", "lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs", "gfs", "gfs2", "ocfs2", "acfs"),
        *("orangefs", "pvfs2", "panfs", "wekafs", "dvs", "fuse"),
    )
)
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.exfat"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """`kind`: the type of the file system. `root`: the part of it that is mounted at `point`."""

    kind: str
    root: str
    point: str
    options: frozenset[str]

    @property
    def read_only(self) -> bool:
        return "ro" in self.options

    @property
    def executes(self) -> bool:
        """Whether programs and libraries that lie there can be loaded."""
        return "noexec" not in self.options

    @property
    def shared(self) -> bool:
        """Whether other machines may write to it."""
        return self.kind in _SHARED or (self.kind.startswith("fuse.") and self.kind not in _LOCAL_FUSE)


def mounts() -> list[Mount]:
    """All mounts that this process sees, later ones last; none where the system does not tell."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [mount for line in lines if (mount := _parsed(line))]


def mount_of(path: Path) -> Mount | None:
    """The mount of a path, which need not exist; None where the system does not tell."""
    place = os.path.realpath(path)  # looking at it makes an automatic mount
    found = [mount for mount in mounts() if _holds(mount.point, place)]
    # Of two mounts at one place the later one hides the earlier.
    return max(reversed(found), key=lambda mount: len(mount.point), default=None)


def require_local(path: Path, what: str, remedy: str = REMEDY) -> None:
    """Raises: UsageError where other machines may write to the path's file system, and so may this one."""
    mount = mount_of(path)
    if mount and mount.shared and not mount.read_only:
        raise UsageError(
            f"{what} {path} would lie on a network file system ({mount.kind} at {mount.point}), where databases and locks of "
            f"several machines are not safe; {remedy}"
        )


def _parsed(line: str) -> Mount | None:
    """A line of mountinfo: id, parent, device, root, place, options, optional fields, `-`, type, source, options."""
    own, _, rest = line.partition(" - ")
    fields, kinds = own.split(" "), rest.split(" ")
    if len(fields) < 6 or len(kinds) < 3:
        return None
    root, point = (_ESCAPE.sub(lambda code: chr(int(code[1], 8)), field) for field in fields[3:5])
    return Mount(kinds[0], root, point, frozenset({*fields[5].split(","), *kinds[2].split(",")}))


def _holds(point: str, place: str) -> bool:
    return point == "/" or place == point or place.startswith(f"{point}/")
