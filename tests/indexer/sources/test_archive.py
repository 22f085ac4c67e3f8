"""Archives of every kind, valid and hostile. Each hostile one is refused and leaves nothing behind."""

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import ignore
from cudal2_agent.indexer.sources.archive import ArchiveLimits, unpack
from cudal2_agent.indexer.sources.opening import open_source

COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
}
SUFFIXES = [*COMPRESSED, ".zip", ".whl"]


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def tarred(path: Path, *members: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    path.write_bytes(COMPRESSED[path.name[path.name.index(".tar") :]](sink.getvalue()) if ".tar" in path.name else b"")
    return path


def packed(path: Path, *members: tuple[str, bytes]) -> Path:
    if path.suffix in (".zip", ".whl"):
        return zipped(path, *members)
    return tarred(path, *members) if ".tar" in path.name else _tgz(path, *members)


def _tgz(path: Path, *members: tuple[str, bytes]) -> Path:
    return tarred(path.with_name("x.tar.gz"), *members).rename(path)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def paths(archive: Path, work_dir: Path) -> tuple[str, ...]:
    with open_source(str(archive), name=None, work_dir=work_dir, emit=ignore) as tree:
        return tree.files


def refused(archive: Path, tmp_path: Path, match: str) -> None:
    work = tmp_path / "work"
    with pytest.raises(SourceError, match=match) as caught:
        paths(archive, work)
    assert "\n" not in str(caught.value)
    assert str(archive) in str(caught.value)
    assert list(work.iterdir()) == []
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_is_read_and_cleaned_up(tmp_path: Path, suffix: str) -> None:
    name = "lib-1.2-py3-none-any.whl" if suffix == ".whl" else f"lib-1.2{suffix}"
    archive = packed(tmp_path / name, ("lib/a.hpp", b"int a;\n"), ("lib/b.md", b"# b\n"), ("lib/c.so", b"\0"))
    work = tmp_path / "work"
    with open_source(str(archive), name=None, work_dir=work, emit=ignore) as tree:
        assert tree.files == ("lib/a.hpp", "lib/b.md")
        assert (tree.root / "lib/a.hpp").read_bytes() == b"int a;\n"
        assert (tree.name, tree.version, tree.origin) == ("lib-1.2", "1.2", str(archive))
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
@pytest.mark.parametrize(
    "name", ["../evil.hpp", "a/../../evil.hpp", "/tmp/evil.hpp", "..\\evil.hpp", "C:\\evil.hpp", "\\evil.hpp", "../evil.bin"]
)
def test_a_member_outside_the_tree_is_refused(tmp_path: Path, suffix: str, name: str) -> None:
    archive = packed(tmp_path / f"x{suffix}", ("a.hpp", b"int a;\n"), (name, b"evil"))
    refused(archive, tmp_path, "would be written outside its folder")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["../evil.hpp", "/etc/passwd", "../../x"])
def test_a_link_that_leaves_the_tree_is_refused(tmp_path: Path, kind: bytes, target: str) -> None:
    archive = tarred(tmp_path / "x.tar", ("a.hpp", b"int a;\n"), special("link.hpp", kind, target))
    refused(archive, tmp_path, "leaves its folder|outside its folder")


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    members = (special("out", tarfile.SYMTYPE, "inner"), ("out/evil.hpp", b"evil"))
    assert paths(tarred(tmp_path / "x.tar", *members), tmp_path / "work") == ("out/evil.hpp",)


def test_links_within_the_tree_are_no_harm(tmp_path: Path) -> None:
    members = (
        ("a/a.hpp", b"int a;\n"),
        special("b/link.hpp", tarfile.SYMTYPE, "../a/a.hpp"),
        special("b/hard.hpp", tarfile.LNKTYPE, "a/a.hpp"),
        special("a/a.hpp", tarfile.LNKTYPE, "a/a.hpp"),
        special("b/none.hpp", tarfile.LNKTYPE, "a/none.hpp"),
    )
    assert paths(tarred(tmp_path / "x.tar", *members), tmp_path / "work") == ("a/a.hpp", "b/hard.hpp")


@pytest.mark.parametrize("target", ["../evil.hpp", "/etc/passwd"])
def test_a_link_in_a_zip_that_leaves_the_tree_is_refused(tmp_path: Path, target: str) -> None:
    info = zipfile.ZipInfo("link.hpp")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(info, target)
    refused(tmp_path / "x.zip", tmp_path, "leaves its folder")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_refused(tmp_path: Path, kind: bytes) -> None:
    refused(tarred(tmp_path / "x.tar", special("dev.hpp", kind)), tmp_path, "device or a pipe")


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_a_bomb_is_refused(tmp_path: Path, suffix: str) -> None:
    archive = packed(tmp_path / f"x{suffix}", ("bomb.hpp", bytes(80 << 20)))
    assert archive.stat().st_size < 200_000
    refused(archive, tmp_path, "more than 200 times its size")


@pytest.mark.parametrize(
    ("suffix", "name"),
    [(".zip", "x.hpp"), *[(suffix, name) for suffix in (".tar.gz", ".tar.bz2", ".tar.xz") for name in ("x.hpp", "x.bin")]],
)
def test_a_bomb_is_stopped_while_it_unfolds_wanted_or_not(tmp_path: Path, suffix: str, name: str) -> None:
    archive = packed(tmp_path / f"x{suffix}", (name, bytes(8 << 20)))
    out = tmp_path / "out"
    with pytest.raises(SourceError, match="more than 200 times its size"):
        unpack(archive, out, ArchiveLimits(free_bytes=1 << 20))
    assert sum(file.stat().st_size for file in out.rglob("*")) < 4 << 20


def test_the_size_that_a_zip_claims_is_not_believed(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", ("bomb.hpp", bytes(3 << 20)))
    data = archive.read_bytes().replace((3 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    archive.write_bytes(data)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(SourceError):
        unpack(archive, out)
    assert sum(file.stat().st_size for file in out.iterdir()) <= 1 << 20


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_the_limits_on_bytes_and_members_hold(tmp_path: Path, suffix: str) -> None:
    many = packed(tmp_path / f"many{suffix}", *[(f"{index}.bin", b"") for index in range(11)])
    with pytest.raises(SourceError, match="more than 10 members"):
        unpack(many, tmp_path, ArchiveLimits(members=10))
    big = packed(tmp_path / f"big{suffix}", ("a.hpp", bytes(2 << 20)), ("b.hpp", bytes(2 << 20)))
    with pytest.raises(SourceError, match="more than 3 MB"):
        unpack(big, tmp_path, ArchiveLimits(bytes=3 << 20))


def test_a_sparse_member_counts_by_what_it_unfolds_to(tmp_path: Path) -> None:
    info = tarfile.TarInfo("bomb.hpp")
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": str(90 << 20),
        "GNU.sparse.map": "0,0",
    }
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    (tmp_path / "x.tar").write_bytes(sink.getvalue())
    refused(tmp_path / "x.tar", tmp_path, "more than 200 times its size")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"not an archive at all", bytes(5000)], ids=["empty", "text", "zeros"])
def test_what_is_no_archive_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    archive = tmp_path / f"x-1.0{suffix}"
    archive.write_bytes(content)
    refused(archive, tmp_path, "cannot be unpacked|no C")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    data = bytes(index * 7919 % 251 for index in range(40_000))
    archive = packed(tmp_path / f"x-1.0{suffix}", ("a.hpp", data), ("b.hpp", data))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    refused(archive, tmp_path, "cannot be unpacked")


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", ("a.hpp", b"int a;\n"))
    data = bytearray(archive.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(bytes(data))
    refused(archive, tmp_path, "encrypted")


def test_an_archive_without_sources_is_refused(tmp_path: Path) -> None:
    refused(zipped(tmp_path / "x.zip", ("a.bin", b"x")), tmp_path, "document file in it")


def test_a_member_that_is_file_and_folder_is_refused(tmp_path: Path) -> None:
    refused(zipped(tmp_path / "x.zip", ("a.hpp", b"x"), ("a.hpp/b.hpp", b"y")), tmp_path, "cannot be unpacked")


def test_a_member_without_a_name_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", ("q", b"int a;\n"))
    data = archive.read_bytes()
    start = data.index(b"PK\x01\x02")
    archive.write_bytes(data[: start + 28] + b"\0\0" + data[start + 30 : start + 46] + data[start + 47 :])
    refused(archive, tmp_path, "cannot be unpacked")


@settings(max_examples=150, deadline=None)
@given(
    suffix=st.sampled_from([".zip", ".tar", ".tar.gz", ".tar.xz"]),
    damage=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=5)), min_size=1),
)
def test_damage_of_any_kind_is_a_source_error_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, damage: list[tuple[float, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    archive = packed(folder / f"x{suffix}", ("a.hpp", b"int a;\n" * 50), ("in/b.hpp", bytes(range(256))), ("in/é.md", b"# b"))
    data = bytearray(archive.read_bytes())
    for where, with_what in damage:
        at = int(where * (len(data) - 1))
        data[at : at + len(with_what)] = with_what
    archive.write_bytes(bytes(data))
    with contextlib.suppress(SourceError):
        unpack(archive, folder / "out", ArchiveLimits(bytes=1 << 20))


def test_an_xz_stream_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    content = bytearray(lzma.compress(b"x"))
    flags = content.index(b"\x21\x01")  # the filter's id and the size of its properties; the next byte is the dictionary's size
    content[flags + 2] = 38  # 2 GiB
    header = content[12 : 12 + 4 * (content[12] + 1)]
    content[12 + len(header) - 4 : 12 + len(header)] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    (tmp_path / "a.tar.xz").write_bytes(content)
    with pytest.raises(SourceError, match="cannot be unpacked: Memory usage limit exceeded"):
        unpack(tmp_path / "a.tar.xz", tmp_path / "out")


def test_a_tar_header_of_many_bytes_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("a.hpp")
        info.pax_headers = {"comment": "x" * (2 << 20)}
        tar.addfile(info)
    with pytest.raises(SourceError, match=r"cannot be unpacked: a header of [\d,]+ bytes"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_an_xz_file_of_several_streams_is_read_whole(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo("a.hpp")
        info.size = 300_000
        tar.addfile(info, io.BytesIO(b"int a;" * 50_000))
    whole = made.getvalue()
    (tmp_path / "a.tar.xz").write_bytes(b"".join(lzma.compress(whole[at : at + 70_000]) for at in range(0, len(whole), 70_000)))
    unpack(tmp_path / "a.tar.xz", tmp_path / "out")
    assert (tmp_path / "out/a.hpp").read_bytes() == b"int a;" * 50_000
    (tmp_path / "cut.tar.xz").write_bytes(lzma.compress(whole)[:100])
    with pytest.raises(SourceError, match="cannot be unpacked"):
        unpack(tmp_path / "cut.tar.xz", tmp_path / "out2")
