"""Packages by name and version, with a scripted pip; one test runs the real pip on a folder of wheels."""

import io
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import ignore
from cudal2_agent.indexer.sources.checkout import remote
from cudal2_agent.indexer.sources.command import CommandResult, RunCommand, run_command
from cudal2_agent.indexer.sources.opening import open_source
from tests.indexer.doubles import Heard

VERSION_HEADER = "#define CUTLASS_MAJOR 9\n#define CUTLASS_MINOR 1\n#define CUTLASS_PATCH 0\n"
Answer = Callable[[Path], CommandResult]


def wheel(folder: Path, title: str = "nvidia_cutlass-9.1.0.0", **files: str) -> Path:
    path = folder / f"{title}-py3-none-any.whl"
    name, version = title.split("-")
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file.replace("__", "/").replace("_dot_", "."), text)
        archive.writestr("lib/source/include/cutlass/version.h", VERSION_HEADER)
        archive.writestr("lib/source/include/cute/a.hpp", "int a;\n")
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


class Pip:
    """A `RunCommand` that answers from a script and records its calls."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[list[str]] = []
        self._answers = list(answers)

    def __call__(self, arguments: Sequence[str], folder: Path, timeout_s: float) -> CommandResult:
        assert timeout_s > 0
        self.asked.append(list(arguments))
        return self._answers.pop(0)(folder)


def fetched(folder: Path) -> CommandResult:
    wheel(folder)
    return CommandResult(0, "", "")


def failed(stderr: str) -> Answer:
    return lambda _: CommandResult(1, "", stderr)


def refusal(spec: str, tmp_path: Path, *answers: Answer) -> SourceError:
    with (
        pytest.raises(SourceError) as caught,
        open_source(spec, name=None, work_dir=tmp_path / "work", emit=ignore, run=Pip(*answers)),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "work").iterdir()) == []
    return caught.value


@pytest.mark.parametrize(("spec", "asked"), [("9.1.0", "nvidia-cutlass==9.1.0.*"), ("v9.1", "nvidia-cutlass==9.1.*")])
def test_a_release_of_cutlass_is_asked_of_pip(tmp_path: Path, spec: str, asked: str) -> None:
    pip = Pip(fetched)
    with open_source(spec, name=None, work_dir=tmp_path, emit=ignore, run=pip) as tree:
        assert tree.files == ("cute/a.hpp", "cutlass/version.h")
        assert (tree.name, tree.version, tree.origin) == ("cutlass-9.1.0", "9.1.0", spec.lstrip("v"))
    command = pip.asked[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(command)
    assert command[-1] == asked
    assert list(tmp_path.iterdir()) == []


def test_any_package_is_asked_of_pip_by_name_and_version(tmp_path: Path) -> None:
    def fetch(folder: Path) -> CommandResult:
        with zipfile.ZipFile(folder / "some_lib-2.5-py3-none-any.whl", "w") as archive:
            archive.writestr("some_lib/a.py", "a = 1\n")
        return CommandResult(0, "", "")

    with open_source("Some_Lib==2.5", name=None, work_dir=tmp_path, emit=ignore, run=Pip(fetch)) as tree:
        assert (tree.name, tree.version, tree.files, tree.origin) == (
            "some-lib-2.5",
            "2.5",
            ("some_lib/a.py",),
            "Some_Lib==2.5",
        )


def test_a_release_that_does_not_exist_names_those_that_do(tmp_path: Path) -> None:
    said = "ERROR: Could not find a version (from versions: 3.8.0.0, 4.2.0.0)\nERROR: No matching distribution"
    error = refusal("lib==9.9.9", tmp_path, failed(said))
    assert str(error) == "lib 9.9.9 is not available for this Python; available: 3.8.0.0, 4.2.0.0"
    assert error.log.strip() == said


@pytest.mark.parametrize(
    ("spec", "version", "tag"),
    [
        ("4.2.1", "4.2.1", "v4.2.1"),
        ("4.7.0", "4.7.0", "v4.7.0"),
        ("v4.7", "4.7", "v4.7.0"),
        ("2.11.0", "2.11.0", "v2.11.0"),
        ("nvidia-cutlass==4.7.0.0", "4.7.0.0", "v4.7.0"),
    ],
)
def test_a_cutlass_that_the_registry_lacks_is_in_its_repository(tmp_path: Path, spec: str, version: str, tag: str) -> None:
    """The list of pip need not be in order."""
    said = "ERROR: Could not find a version (from versions: 3.8.0.0, 4.2.0.0, 4.1.0.0)\nERROR: No matching distribution"
    told = str(refusal(spec, tmp_path, failed(said)))
    assert told == (
        f"nvidia-cutlass {version} is not available for this Python; available: 3.8.0.0, 4.2.0.0, 4.1.0.0. "
        "The registry ends at 4.2.0; every release is in its repository: "
        f"cudal2-agent index add git+https://github.com/NVIDIA/cutlass@{tag}, or name a checkout or an archive of it"
    )
    assert remote(told.partition("index add ")[2].partition(",")[0]) is not None


def test_without_a_network_the_remedy_is_said(tmp_path: Path) -> None:
    said = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
        "ERROR: Could not find a version (from versions: none)\nERROR: No matching distribution"
    )
    assert "registry cannot be reached; check the network" in str(refusal("4.1.0", tmp_path, failed(said)))
    assert "registry cannot be reached" in str(refusal("lib==1.0", tmp_path, failed(said)))


def test_without_pip_the_remedy_is_said(tmp_path: Path) -> None:
    assert "-m ensurepip" in str(refusal("4.1.0", tmp_path, failed(f"{sys.executable}: No module named pip")))


def test_an_unknown_package_is_said(tmp_path: Path) -> None:
    said = "ERROR: Could not find a version (from versions: none)\nERROR: No matching distribution found"
    assert "has no lib for this Python" in str(refusal("lib==1.0", tmp_path, failed(said), failed(said)))


def test_anything_else_that_pip_says_is_passed_on(tmp_path: Path) -> None:
    assert "pip says: ERROR: odd" in str(refusal("4.1.0", tmp_path, failed("ERROR: odd\n\n")))
    assert "no file came" in str(refusal("4.1.0", tmp_path, lambda _: CommandResult(0, "", "")))
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    assert "the disk is full" in str(refusal("4.1.0", tmp_path, failed(full)))


def test_a_package_without_a_wheel_comes_as_source_with_a_notice(tmp_path: Path) -> None:
    def fetch(folder: Path) -> CommandResult:
        with tarfile.open(folder / "lib-1.0.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("lib-1.0/lib/a.py")
            archive.addfile(info, io.BytesIO())
        return CommandResult(0, "", "")

    heard, pip = (
        Heard(),
        Pip(failed("ERROR: Could not find a version (from versions: none)\nERROR: No matching distribution"), fetch),
    )
    with open_source("lib==1.0", name=None, work_dir=tmp_path, emit=heard, run=pip) as tree:
        assert (tree.name, tree.files) == ("lib-1.0", ("lib-1.0/lib/a.py",))
    assert "--no-binary=lib" in pip.asked[1]
    assert "build script" in heard.notices[0]


@pytest.mark.parametrize("spec", ["lib==one", "lib==1.0;", "lib==1.0==2", "lib==1.*.2"])
def test_a_version_that_is_none_is_refused_before_pip_is_asked(tmp_path: Path, spec: str) -> None:
    with pytest.raises(SourceError), open_source(spec, name=None, work_dir=tmp_path, emit=ignore, run=Pip()):
        pass


def install(site: Path, title: str = "nvidia_cutlass-9.1.0.0", record: str = "") -> None:
    with zipfile.ZipFile(wheel(site.parent, title)) as archive:
        archive.extractall(site)
        names = [f"{name},," for name in archive.namelist()]
    (site / f"{title}.dist-info/RECORD").write_text(record or "\n".join([*names, "lib/gone.py,,"]) + "\n")


def test_an_installed_package_of_that_version_is_used_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    install(site)
    (site / "other.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    with open_source("9.1.0", name=None, work_dir=tmp_path / "work", emit=ignore, run=Pip()) as tree:
        assert tree.root == site / "lib/source/include"
        assert tree.files == ("cute/a.hpp", "cutlass/version.h")
        assert tree.name == "cutlass-9.1.0"


def test_an_installed_package_lists_nothing_outside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "lib-1.0.dist-info").mkdir(parents=True)
    (site / "lib-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n")
    (site / "lib-1.0.dist-info/RECORD").write_text(f"lib.py,,\n../up.py,,\n{tmp_path}/absolute.py,,\nlink.py,,\n")
    for file in (site / "lib.py", site / "unlisted.py", tmp_path / "up.py", tmp_path / "absolute.py"):
        file.write_text("a = 1\n")
    (site / "link.py").symlink_to("../up.py")
    monkeypatch.syspath_prepend(str(site))
    heard = Heard()
    with open_source("lib==1.0.0", name=None, work_dir=tmp_path / "work", emit=heard, run=Pip()) as tree:
        assert (tree.files, tree.name) == (("lib.py",), "lib-1.0")
    assert "(2): " in heard.notices[0]


@pytest.mark.parametrize(
    ("title", "record"), [("nvidia_cutlass-9.2.0.0", ""), ("nvidia_cutlass-9.1.0.0", "__editable__.pth,,\n")]
)
def test_another_version_or_an_editable_install_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, record: str
) -> None:
    install(tmp_path / "site", title, record)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    pip = Pip(fetched)
    with open_source("9.1.0", name=None, work_dir=tmp_path / "work", emit=ignore, run=pip) as tree:
        assert tree.root.is_relative_to(tmp_path / "work")
    assert len(pip.asked) == 1


def offline(folder: Path) -> RunCommand:
    """The real pip, restricted to one folder."""
    return lambda arguments, where, timeout_s: run_command(
        [*arguments[:4], "--isolated", "--no-index", f"--find-links={folder}", *arguments[4:]], where, timeout_s
    )


def test_the_real_pip_understands_what_it_is_asked(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    wheel(shop)
    with open_source("9.1.0", name=None, work_dir=tmp_path / "work", emit=ignore, run=offline(shop)) as tree:
        assert tree.name == "cutlass-9.1.0"
    with (
        pytest.raises(SourceError, match=r"nvidia-cutlass 9\.9\.9 is not available for this Python; available: 9\.1\.0\.0"),
        open_source("9.9.9", name=None, work_dir=tmp_path / "work", emit=ignore, run=offline(shop)),
    ):
        pass
