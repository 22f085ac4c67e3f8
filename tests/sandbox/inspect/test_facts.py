"""Facts of compiled code are read once, and kept as long as nothing that they rest on changes."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import resolve
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.inspect import sass
from cudal2_agent.sandbox.inspect.inspection import PUT_OFF, inspect
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
