"""What the tests keep of compilations and listings is what the product makes anew, and belongs to its source alone."""

from pathlib import Path

import pytest

from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.inspect import sass
from tests.doubles import building
from tests.sandbox.building.build_kernels import NAIVE, TASK, body, candidate


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that NVRTC read."""
    sources: list[str] = []

    def counted(source: str, *rest: object) -> int:
        sources.append(source)
        return compile_source(source, *rest)

    compile_source = building.compile_source
    monkeypatch.setattr(building, "compile_source", counted)
    (tmp_path / "kept").mkdir()
    building.compile_in_this_process(monkeypatch, tmp_path / "kept")
    return sources


def compiled(folder: Path, source: str) -> Compiled | CompileFailed:
    outcome = Compiler(CompileOptions(cache_dir=str(folder))).compile(candidate(source), TASK.arch)
    assert isinstance(outcome, Compiled | CompileFailed)
    return outcome


def test_a_kernel_is_compiled_once_for_all_caches(tmp_path: Path, compilations: list[str]) -> None:
    first, second = compiled(tmp_path / "a", NAIVE), compiled(tmp_path / "b", NAIVE)
    assert isinstance(first, Compiled)
    assert isinstance(second, Compiled)
    assert not second.cached, "the product's own cache was empty"
    assert len(compilations) == 1
    assert Path(first.cubin_path).read_bytes() == Path(second.cubin_path).read_bytes()
    assert Path(first.ptx_path).read_bytes() == Path(second.ptx_path).read_bytes()
    assert first.log == second.log
    compiled(tmp_path / "c", NAIVE + "// other\n")
    assert len(compilations) == 2


def test_what_a_compiler_refused_is_kept_with_its_log(tmp_path: Path, compilations: list[str]) -> None:
    first, second = (compiled(tmp_path / name, body("this is no C++;")) for name in "ab")
    assert isinstance(first, CompileFailed)
    assert first == second
    assert len(compilations) == 1


def test_a_listing_is_the_one_of_nvdisasm(tmp_path: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = compiled(tmp_path / "a", NAIVE)
    assert isinstance(outcome, Compiled)
    expected = sass.disassemble(Path(outcome.cubin_path))
    building.disassemble_once(monkeypatch, tmp_path / "kept")
    assert [sass.disassemble(Path(outcome.cubin_path)) for _ in range(2)] == [expected, expected]
    assert len(compilations) == 1
