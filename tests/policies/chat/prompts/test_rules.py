"""The prompts describe the sandbox correctly: each rule is tested on the sandbox."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Evaluation, Rejected
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.replies.forms import KernelFile, read_reply
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.building.check import check
from cudal2_agent.sandbox.local import open_sandbox
from tests.doubles import CHIP, TASK
from tests.policies.chat.conversing import candidate, observe, source, written
from tests.policies.chat.prompts.test_composition import EXAMPLES, blocks

SYSTEM = Prompts(24_000, ()).first(observe(), Assignment(0, None, ())).prompt.messages[0].content


def rejection(candidate: Candidate) -> Rejected | None:
    found = check(candidate, TASK, LIMITS[TASK.arch], CHIP.sms)
    return found if isinstance(found, Rejected) else None


def rejected(body: str) -> Rejected | None:
    return rejection(candidate(1, body=body))


def test_every_header_that_is_offered_is_allowed() -> None:
    line = next(line for line in SYSTEM.split("\n") if line.startswith("- Headers:"))
    offered = [name.replace("*.cuh", "mma.cuh").replace("*", "barrier") for name in re.findall(r"`<([^`]+)>`", line)]
    assert len(offered) >= 6
    for name in offered:
        assert rejected(f"#include <{name}>\n") is None, name


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("#include <cstdlib>\n", "include"),
        ("__device__ int kept;\n", "device-state"),
        ("__device__ long now() { return clock64(); }\n", "device-clock"),
        ('__device__ void say() { printf("x"); }\n', "device-call"),
        ("__device__ void stop() { __trap(); }\n", "device-trap"),
        ("#pragma pack(1)\n", "directive"),
        ('__device__ void put() { asm(".global .u32 x;"); }\n', "asm-declaration"),
    ],
)
def test_what_is_forbidden_is_rejected(body: str, rule: str) -> None:
    found = rejected(body)
    assert found is not None
    assert found.rule == rule


@pytest.mark.parametrize(
    "body",
    [
        "__constant__ int table[2] = {1, 2};\n",
        "constexpr int kTile = 64;\n",
        "__device__ void f() {\n#pragma unroll\nfor (;;) {}\n}\n",
    ],
)
def test_what_is_allowed_is_not(body: str) -> None:
    assert rejected(body) is None


def test_a_model_that_obeys_injected_text_gets_nowhere() -> None:
    obeying = written(1, body='#include <cstdlib>\nint main() { return system("id"); }\n')
    read = read_reply(obeying)
    assert isinstance(read, KernelFile)
    found = rejection(Candidate.from_source(read.source, Origin(policy="chat")))
    assert found is not None
    assert found.rule == "include"
    assert source(1).splitlines()[0] in read.source


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile")


def built(one: Candidate, task: GemmTask, cache: Path) -> Iterator[Built | Evaluation]:
    sandbox = open_sandbox(
        arch=task.arch,
        device="none",
        compile_options=CompileOptions(cache_dir=str(cache)),
        verify_options=VerifyOptions(),
        quick=TimeOptions(),
        full=TimeOptions(),
        worker=WorkerOptions(),
        predict=predict,
        emit=ignore,
    )
    try:
        yield from (outcome for _, outcome in sandbox.build([one], task))
    finally:
        sandbox.close()


@pytest.mark.parametrize(
    "task",
    [EXAMPLES[number] for number in (0, 7, 9, 11)],
    ids=lambda task: f"{task.arch}-{task.layout}-{task.element}-{task.accumulate}",
)
def test_the_example_builds(task: GemmTask, cache: Path) -> None:
    observation = observe(task=task, chip=REFERENCE_CHIPS[task.arch])
    text = blocks(Prompts(24_000, ()).first(observation, Assignment(0, None, ())).prompt)[1]
    for outcome in built(Candidate.from_source(text, Origin(policy="chat")), task, cache):
        assert isinstance(outcome, Built), outcome
        assert outcome.inspection.mma
        assert set(outcome.inspection.accumulators) == {task.accumulate}


def multiply_as_the_example_does(task: GemmTask, text: str) -> bool:
    """Whether the example's indices, read from its text, match the owners of the mma fragment's elements.

    Lane l of m16n8k16 holds A at rows l/4 (+8), columns 2(l%4) (+1, +8); B at rows 2(l%4) (+1, +8), column l/4.
    Source: PTX ISA, "Matrix Fragments for mma.m16n8k16".
    """
    a_index = re.search(r"const int r = row \+ (.*), c = k0 \+ (.*);", text)
    b_index = re.search(r"const int r = k0 \+ (.*), c = column \+ (.*);", text)
    assert a_index
    assert b_index
    for lane in range(32):
        for register in range(4):
            names = {"i": register, "lane": lane}
            row, column = (_value(part, names) for part in a_index.groups())
            if (row + lane // 4, column) != (lane // 4 + register % 2 * 8, lane % 4 * 2 + register // 2 * 8):
                return False
        for register in range(2):
            names = {"i": register, "lane": lane}
            row, column = (_value(part, names) for part in b_index.groups())
            if (row, column) != (lane % 4 * 2 + register * 8, lane // 4):
                return False
    of_a = {
        Layout.NN: "at(a, m, k, r, c) | at(a, m, k, r, c + 1) << 16",
        Layout.TN: "at(a, m, k, r, c) | at(a, m, k, r, c + 1) << 16",
        Layout.NT: "at(a, k, m, c, r) | at(a, k, m, c + 1, r) << 16",
    }
    of_b = {
        Layout.NN: "at(b, k, n, r, c) | at(b, k, n, r + 1, c) << 16",
        Layout.TN: "at(b, n, k, c, r) | at(b, n, k, c, r + 1) << 16",
        Layout.NT: "at(b, k, n, r, c) | at(b, k, n, r + 1, c) << 16",
    }
    return of_a[task.layout] in text and of_b[task.layout] in text


def _value(expression: str, names: dict[str, int]) -> int:
    """The value of an expression such as `i / 2 * 8 + lane % 4 * 2` in C's integers."""
    total = 0
    for term in expression.split("+"):
        words = term.split()
        value = names.get(words[0], 0)
        for operator, number in zip(words[1::2], map(int, words[2::2]), strict=True):
            value = {"*": value * number, "/": value // number, "%": value % number}[operator]
        total += value
    return total


@pytest.mark.parametrize("layout", list(Layout))
def test_the_example_feeds_the_tensor_core_as_the_isa_says(layout: Layout) -> None:
    task = GemmTask(m=40, n=24, k=24, layout=layout, element=ElementType.F16, arch=Arch.SM_80)
    text = blocks(Prompts(24_000, ()).first(observe(task=task), Assignment(0, None, ())).prompt)[1]
    assert multiply_as_the_example_does(task, text)
    assert not multiply_as_the_example_does(task, text.replace("i % 2 * 8", "i / 2 * 8", 1))
