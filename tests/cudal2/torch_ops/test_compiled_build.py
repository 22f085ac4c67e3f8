"""The C++ kernels as files: for which PyTorch they are, what is refused, and what is said where they cannot be built."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

import cudal2
from cudal2.torch import aten_override, compiled_build, torch_session
from cudal2.torch.compiled_build import CompiledFile, build, compiled_file, find
from cudal2_agent.contract.errors import LibraryError
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.host_products import HostProducts

Serving = Callable[..., HostProducts]
SMALL = 'extern "C" int small() { return 1; }'


@pytest.fixture
def built(compiled_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the compiled file, in a folder that `enable` looks into."""
    file = find(compiled_folder, "CPU")
    assert file is not None
    folder = tmp_path / "cache"
    folder.mkdir()
    for one in (file, file.with_suffix(".json")):
        shutil.copy(one, folder)
    aten_override.unregister()
    yield folder / file.name
    aten_override.unregister()


@pytest.fixture
def small_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that compiles in a moment."""
    monkeypatch.setattr(compiled_build, "_source", lambda: SMALL)


def test_a_change_of_what_it_depends_on_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {compiled_file(tmp_path, "CPU"), compiled_file(tmp_path, "CUDA")}
    with monkeypatch.context() as changed:
        changed.setattr(compiled_build, "_source", lambda: SMALL)
        files.add(compiled_file(tmp_path, "CPU"))
    for name, value in (("__version__", "2.99.0"), ("version.cuda", "99.9"), ("compiled_with_cxx11_abi", lambda: 2)):
        with monkeypatch.context() as changed:
            changed.setattr(f"torch.{name}", value)
            files.add(compiled_file(tmp_path, "CPU"))
    assert len(files) == 6
    assert compiled_file(tmp_path, "CPU") in files


@pytest.mark.usefixtures("small_source")
def test_what_was_built_is_found_and_built_over(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    assert find(folder, "CPU") is None
    file = build(folder, "CPU")
    assert find(folder, "CPU") == file
    record = CompiledFile.model_validate_json(file.with_suffix(".json").read_bytes())
    assert record.torch == torch.__version__
    file.write_bytes(b"damaged")
    assert build(folder, "CPU") == file
    assert find(folder, "CPU") == file
    assert {one.suffix for one in folder.iterdir()} == {".so", ".json"}


@pytest.mark.parametrize("part", [".so", ".json"])
def test_half_of_a_build_is_none(built: Path, part: str) -> None:
    built.with_suffix(part).unlink()
    assert find(built.parent, "CPU") is None


def test_what_was_built_is_used(built: Path, serving: Serving) -> None:
    products = serving(TASK)
    with cudal2.enable():
        torch.mm(*operands())
        assert cudal2.status().languages == ("C++",)
    assert products.platform.launches == 1
    assert built in torch_session._SESSION.compiled


def falls_back_to_python(products: HostProducts) -> str:
    """What is noted where `enable` cannot use the file; products are served nevertheless."""
    with cudal2.enable():
        assert_product(torch.mm(*operands()), *operands())
        assert cudal2.status().languages == ("Python",)
    assert products.platform.launches == 1
    (note,) = products.service.notices.texts()
    return note


@pytest.mark.parametrize("kept", [0, 4096])
def test_a_damaged_file_is_never_loaded(built: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    built.write_bytes(built.read_bytes()[:kept])

    def refuse(*_: object) -> None:
        raise AssertionError("it was loaded")

    monkeypatch.setattr("cudal2.torch.compiled_kernels.ctypes.CDLL", refuse)
    assert "is damaged: its content is not what was built; `cudal2-agent library prepare`" in falls_back_to_python(
        serving(TASK)
    )


def test_a_damaged_record_is_said(built: Path, serving: Serving) -> None:
    built.with_suffix(".json").write_text("{}")
    assert "or its record is damaged (ValidationError)" in falls_back_to_python(serving(TASK))


def replace_content(built: Path, content: bytes) -> None:
    record = CompiledFile.model_validate_json(built.with_suffix(".json").read_bytes())
    built.write_bytes(content)
    changed = record.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
    built.with_suffix(".json").write_text(changed.model_dump_json())


def test_a_file_that_is_no_library_is_said(built: Path, serving: Serving) -> None:
    replace_content(built, b"no code")
    assert "cannot be loaded" in falls_back_to_python(serving(TASK))


def test_another_library_is_said(built: Path, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(compiled_build, "_source", lambda: SMALL)
        foreign = build(tmp_path / "foreign", "CPU").read_bytes()
    replace_content(built, foreign)
    assert "undefined symbol: cudal2_tally" in falls_back_to_python(serving(TASK))


def test_kernels_that_torch_refuses_are_said(built: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    assert built.is_file()

    def refuse(self: Any, operator: str) -> None:  # noqa: ARG001
        raise LibraryError("PyTorch refuses it")

    monkeypatch.setattr("cudal2.torch.compiled_kernels.CompiledKernels.register", refuse)
    assert "the part in C++ cannot be used: PyTorch refuses it" in falls_back_to_python(serving(TASK))


def test_a_missing_compiler_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_build, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(LibraryError, match=r"there is no C\+\+ compiler: none of no-such-compiler is in the path"):
        build(tmp_path, "CPU")


def test_missing_headers_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    with pytest.raises(LibraryError, match=r"has no C\+\+ headers in"):
        build(tmp_path, "CPU")


@pytest.mark.slow
def test_the_part_for_cuda_compiles_without_cuda(request: pytest.FixtureRequest) -> None:
    """Its headers are in every wheel of PyTorch. Checked once for each source and PyTorch."""
    assert request.config.cache is not None
    checked = Path(request.config.cache.mkdir("aten-kernels")) / compiled_file(Path(), "CUDA").with_suffix(".checked").name
    compiler = next((found for name in compiled_build.COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    if not checked.exists():
        source = files("cudal2.torch").joinpath("native", "aten_kernels.cpp")
        arguments = compiled_build._arguments("CUDA", Path(torch.__file__).parent)
        assert "-DCUDAL2_CUDA" in arguments
        command = [compiler, *arguments, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        checked.touch()


@pytest.mark.parametrize(
    ("source", "said"), [("int broken = ;", "error: "), ("int missing(); int f() { return missing(); }", "missing()")]
)
def test_what_does_not_compile_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.setattr(compiled_build, "_source", lambda: source)
    with pytest.raises(LibraryError, match="cannot compile against PyTorch") as raised:
        build(tmp_path, "CPU")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert said in raised.value.log
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_source")
def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(LibraryError, match=r"cannot be written .* set CUDAL2_HOME"):
        build(tmp_path / "cache", "CPU")


def _build_small(folder: Path, start: Any) -> None:
    compiled_build._source = lambda: SMALL
    start.wait()
    build(folder, "CPU")


@pytest.mark.slow
@pytest.mark.usefixtures("small_source")
def test_processes_that_build_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    processes = [context.Process(target=_build_small, args=(tmp_path, start)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
        assert process.exitcode == 0
    assert find(tmp_path, "CPU") is not None
    assert len(list(tmp_path.iterdir())) == 2
