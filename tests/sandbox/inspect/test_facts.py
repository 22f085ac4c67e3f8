"""Facts of compiled code are read once, and kept as long as nothing that they rest on changes.

What the tests keep of compilations and listings is what the product makes anew, and belongs to its source alone.
"""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.evaluation import CompileFailed, Rejected
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.inspect import sass
from cudal2_agent.sandbox.inspect.inspection import PUT_OFF, inspect
from tests.doubles import building
from tests.sandbox.building.build_kernels import NAIVE, TASK, body, candidate


class CountedDisassembler:
    """Counts the calls of nvdisasm."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._run = sass.disassemble
        monkeypatch.setattr(sass, "disassemble", self)

    def __call__(self, cubin: Path) -> sass.Sass | None:
        self.calls += 1
        return self._run(cubin)


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path)))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CountedDisassembler:
    return CountedDisassembler(monkeypatch)


def inspected(compiler: Compiler, source: str) -> Inspection | Rejected:
    wanted = candidate(source)
    compiled = compiler.compile(wanted, TASK.arch)
    assert isinstance(compiled, Compiled)
    plan = resolve(wanted.plan, TASK, LIMITS[TASK.arch], 132)
    return inspect(compiled, wanted, plan, TASK, LIMITS[TASK.arch], compiler.cache)


def test_the_second_inspection_reads_no_code(compiler: Compiler, counted: CountedDisassembler) -> None:
    first, second = inspected(compiler, NAIVE), inspected(compiler, NAIVE)
    assert isinstance(first, Inspection)
    assert (first, counted.calls) == (second, 1)


def test_a_broken_rule_is_remembered(compiler: Compiler, counted: CountedDisassembler) -> None:
    source = body("d[0] = clock64();")
    first, second = inspected(compiler, source), inspected(compiler, source)
    assert isinstance(first, Rejected)
    assert first.rule == "device-clock"
    assert (first, counted.calls) == (second, 1)


def test_another_disassembler_reads_the_code_again(
    compiler: Compiler, counted: CountedDisassembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected(compiler, NAIVE)
    monkeypatch.setattr(sass, "disassembler", lambda: "a newer one")
    inspected(compiler, NAIVE)
    assert counted.calls == 2


def test_damaged_facts_are_read_again(compiler: Compiler, counted: CountedDisassembler, tmp_path: Path) -> None:
    first = inspected(compiler, NAIVE)
    (facts,) = tmp_path.rglob("facts.json")
    facts.write_text(facts.read_text().replace('"fault":null', '"fault":false'))
    assert inspected(compiler, NAIVE) == first
    assert counted.calls == 2


def test_facts_of_ptx_alone_are_not_kept(compiler: Compiler, counted: CountedDisassembler) -> None:
    wanted = candidate(NAIVE)
    compiled = compiler.compile(wanted, TASK.arch)
    assert isinstance(compiled, Compiled)
    plan = resolve(wanted.plan, TASK, LIMITS[TASK.arch], 132)
    brief = inspect(compiled, wanted, plan, TASK, LIMITS[TASK.arch], compiler.cache, machine_code=False)
    assert isinstance(brief, Inspection)
    assert (brief.opcode_source, brief.warnings, counted.calls) == ("ptx", (PUT_OFF,), 0)
    whole = inspected(compiler, NAIVE)
    assert isinstance(whole, Inspection)
    assert (whole.opcode_source, counted.calls) == ("sass", 1)
    assert inspect(compiled, wanted, plan, TASK, LIMITS[TASK.arch], compiler.cache, machine_code=False) == whole


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
