"""The author's kernels in the real check, compiler and inspection: each fails or builds as its name says."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation, Rejected
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.builder import Builder
from tests.author.script import SCRIPT, TASK, Author
from tests.doubles.chat_server import Request

TURNS = {turn.name: turn for turn in SCRIPT}
# The instructions that define a kernel.
OPCODES = {
    "04_wrong_result": {"HMMA", "LDSM", "LDGSTS"},
    "05_right": {"HMMA", "LDSM", "LDGSTS"},
    "06_profile_guided": {"HMMA", "LDSM", "LDGSTS"},
    "07_better": {"HGMMA", "UTMALDG", "USETMAXREG"},
    "08_cluster": {"HGMMA", "UTMALDG", "UTMASTG", "STSM", "USETMAXREG", "ACQBULK"},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built | Evaluation]:
    options = CompileOptions(cache_dir=str(tmp_path_factory.mktemp("author")))
    builder = Builder(options, REFERENCE_CHIPS[TASK.arch])
    candidates = [Candidate.from_source(turn.draft.source, Origin(policy="chat")) for turn in SCRIPT]
    return {SCRIPT[position].name: outcome for position, outcome in builder.build(candidates, TASK)}


def test_every_reply_has_all_three_sections() -> None:
    for turn in SCRIPT:
        assert turn.draft.analysis, turn.name
        assert turn.draft.design, turn.name


def test_every_file_is_in_the_script() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("*.md")} - {"README"}
    assert files == set(TURNS)


def test_the_first_is_rejected_for_its_header(outcomes: dict[str, Built | Evaluation]) -> None:
    outcome = outcomes["01_forbidden_include"]
    assert isinstance(outcome, Rejected)
    assert outcome.rule == "include"
    assert "cuda_runtime.h" in outcome.message


def test_the_second_breaks_the_assembler_and_not_the_compiler(outcomes: dict[str, Built | Evaluation]) -> None:
    outcome = outcomes["02_inline_asm_error"]
    assert isinstance(outcome, CompileFailed)
    assert outcome.message.startswith("ptxas")
    assert "Illegal blayout" in outcome.message


def test_the_third_breaks_the_compiler(outcomes: dict[str, Built | Evaluation]) -> None:
    outcome = outcomes["03_compile_error"]
    assert isinstance(outcome, CompileFailed)
    assert "cudal2::cp_async" in outcome.message
    line = int(outcome.message.split("(")[1].split(")")[0])
    assert "cp_async<16>(&tile_a" in TURNS["03_compile_error"].draft.source.splitlines()[line - 1]


@pytest.mark.parametrize("name", OPCODES)
def test_the_others_are_built_as_they_were_meant(outcomes: dict[str, Built | Evaluation], name: str) -> None:
    outcome = outcomes[name]
    assert isinstance(outcome, Built), outcome
    [kernel] = outcome.inspection.kernels
    assert kernel.spill_store_bytes == kernel.spill_load_bytes == kernel.stack_bytes == 0
    assert not outcome.inspection.warnings
    if outcome.inspection.opcode_source == "sass":
        assert {opcode.partition(".")[0] for opcode in outcome.inspection.opcodes} >= OPCODES[name]


def test_the_pipelined_kernel_has_two_ctas_an_sm_and_so_one_wave(outcomes: dict[str, Built | Evaluation]) -> None:
    outcome = outcomes["06_profile_guided"]
    assert isinstance(outcome, Built)
    assert outcome.inspection.kernels[0].ctas_per_sm == 2


def request(prompt: str) -> Request:
    return Request(0, "/v1/chat/completions", {}, {"messages": [{"role": "user", "content": prompt}]})


def test_the_author_does_not_go_on_without_what_it_needs() -> None:
    author = Author("built", [TURNS["02_inline_asm_error"]])
    assert "```" not in author(request("it was rejected, rule include: header 'stdio.h' is not allowed")).text
    assert [said.partition(" (")[0] for said in author.missing] == [
        "02_inline_asm_error: the prompt lacks the header that broke it",
        "02_inline_asm_error: the prompt lacks the rejected source",
    ]
    author.missing.clear()
    good = "rejected, rule include: header 'cuda_runtime.h' is not allowed\nhgemm_wmma(const half* A)"
    assert "```" in author(request(good)).text
    assert not author.missing
    assert "```" not in author(request(good)).text  # the script is used up


def test_what_only_a_gpu_tells_is_asked_for_only_there() -> None:
    wrong = [TURNS["05_right"]]
    assert "```" in Author("built", wrong)(request("nothing ran")).text
    assert "```" not in Author("executed", wrong)(request("nothing ran")).text
