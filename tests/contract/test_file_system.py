"""Which file system a path lies on, read from tables of mounts as the kernel writes them."""

from pathlib import Path

import pytest

from cudal2_agent.contract import file_system
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.file_system import mount_of, require_local

ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sets the table of mounts."""

    def mounted(*lines: str) -> None:
        table = tmp_path / "mountinfo"
        table.write_text("\n".join((ROOT, *lines, "")))
        monkeypatch.setattr(file_system, "MOUNTS", table)

    return mounted


def line(kind: str, point: str = "/home", options: str = "rw,relatime", source: str = "server:/home") -> str:
    return f"90 27 0:50 / {point} {options} shared:4 master:1 - {kind} {source} rw,vers=4.2"


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "nfs",
            "nfs4",
            "lustre",
            "gpfs",
            "beegfs",
            "ceph",
            "cifs",
            "smb3",
            "afs",
            "9p",
            "drvfs",
            "virtiofs",
            "ocfs2",
            "wekafs",
        ),
        *("fuse", "fuse.sshfs", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs"),
    ],
)
def test_what_other_machines_may_write_to_is_refused(mounted, kind: str) -> None:
    mounted(line(kind))
    with pytest.raises(
        UsageError, match=rf"^store /home/u/x would lie on .*\({kind} at /home\).*; set CUDAL2_LOCAL to a folder"
    ):
        require_local(Path("/home/u/x"), "store")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.fuse-overlayfs"])
def test_a_local_disk_is_not(mounted, kind: str) -> None:
    mounted(line(kind))
    require_local(Path("/home/u/x"), "store")


def test_the_longest_place_decides_and_of_two_at_one_place_the_later_one(mounted) -> None:
    mounted(
        line("autofs"), line("nfs4", "/home/u"), line("xfs", "/home/u/scratch"), line("tmpfs", "/data"), line("nfs", "/data")
    )
    kinds = {
        place: mount_of(Path(place)).kind for place in ("/home/v", "/home/u", "/home/u/scratch/a", "/home/union", "/data/x")
    }
    assert kinds == {
        "/home/v": "autofs",
        "/home/u": "nfs4",
        "/home/u/scratch/a": "xfs",
        "/home/union": "autofs",
        "/data/x": "nfs",
    }


def test_a_link_counts_as_where_it_leads(mounted, tmp_path: Path) -> None:
    mounted(line("nfs4", "/far"))
    (tmp_path / "home").symlink_to("/far/home")
    with pytest.raises(UsageError, match="at /far"):
        require_local(tmp_path / "home" / "x", "store")


def test_a_place_with_a_space_is_read(mounted) -> None:
    mounted(line("cifs", r"/mnt/my\040share"))
    assert mount_of(Path("/mnt/my share/x")).point == "/mnt/my share"


def test_what_cannot_be_written_from_here_is_not_refused(mounted) -> None:
    mounted(line("nfs4", options="ro,relatime"))
    require_local(Path("/home/u/x"), "store")


def test_a_system_without_a_table_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "MOUNTS", Path("/no/such/file"))
    assert mount_of(Path("/home")) is None
    require_local(Path("/home/u/x"), "store")
