"""The parser on the compiler's real output for both kernel families."""

import time
from pathlib import Path

import pytest

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.emulator.ptx.module import Module
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from cudal2_agent.sandbox.inspect.code import Code
from tests.sandbox.building.build_kernels import NAIVE, candidate

TASK = GemmTask(m=256, n=512, k=128)
WIDE = WgmmaTmaSchedule(consumers=2, atoms=1, block_n=256, block_k=64, stages=4, cluster_m=2, persistent=True)
PLAIN = {
    "block_m": 64,
    "block_n": 64,
    "block_k": 32,
    "warps_m": 2,
    "warps_n": 2,
    "stages": 2,
    "split_k": 2,
    "reduction": "workspace",
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache"))))


def compiled(compiler: Compiler, written: Candidate) -> str:
    outcome = compiler.compile(written, Arch.SM_90A)
    assert isinstance(outcome, Compiled), outcome
    return Path(outcome.ptx_path).read_text()


def opcodes(module: Module) -> list[str]:
    return [instruction.opcode for function in module.functions.values() for instruction in function.instructions]


@pytest.mark.parametrize("accumulate", list(AccumulatorType))
@pytest.mark.parametrize("family", ["mma_sync", "wgmma_tma"])
def test_both_families_are_read_whole(compiler: Compiler, family: str, accumulate: AccumulatorType) -> None:
    task = TASK.model_copy(update={"accumulate": accumulate})
    sync, tma = MmaSync(), WgmmaTma()
    written = sync.write(sync.parse(PLAIN), task) if family == "mma_sync" else tma.write(WIDE, task)
    text = compiled(compiler, written)
    module = parse(text)
    inspected = Code(module)
    listed = text.partition("\t.file")[0]  # names of headers follow the code
    for word in ("mma.sync.", "wgmma.mma_async.", "ldmatrix.", "ld.global.", "st.global.", "mbarrier.", "cp.async."):
        assert listed.count(word) == sum(opcode.startswith(word) for opcode in opcodes(module)), word
    assert set(inspected.mma) <= set(opcodes(module))
    for name, entry in inspected.entries.items():
        assert entry.parameter_bytes == tuple(variable.size_bytes for variable in module.functions[name].parameters)
        assert entry.max_threads == module.functions[name].directives["maxntid"][0]


@pytest.mark.parametrize("flags", [(), ("-lineinfo",)])
def test_lines_of_the_source_are_known(compiler: Compiler, flags: tuple[str, ...]) -> None:
    module = parse(compiled(compiler, candidate(NAIVE, flags=flags)))
    line = next(number for number, text in enumerate(NAIVE.splitlines(), 1) if "sum +=" in text)
    loads = [one for one in module.functions["gemm"].instructions if one.opcode.startswith("ld.global")]
    assert loads
    assert all(one.place is not None and one.place.line == line for one in loads)


def test_a_kernel_of_2000_lines_reads_in_a_fraction_of_a_second(compiler: Compiler) -> None:
    text = compiled(compiler, WgmmaTma().write(WIDE, TASK))
    seconds = []
    for _ in range(3):
        started = time.process_time()
        parse(text)
        seconds.append(time.process_time() - started)
    assert min(seconds) / text.count("\n") < 1e-4  # 2,000 lines in 0.2 s
