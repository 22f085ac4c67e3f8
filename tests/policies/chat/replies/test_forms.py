"""What a reply must contain to become a candidate, and which forms are tolerated."""

import random
import time

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.policies.chat.replies.candidates import ReplyContext, candidates_of
from cudal2_agent.policies.chat.replies.fenced_blocks import NOTE_CHARS, FencedBlock, Malformed
from cudal2_agent.policies.chat.replies.forms import KernelFile, read_reply
from cudal2_agent.policies.chat.replies.schedule_json import names_family
from tests.doubles import TASK

PLAN = (
    '/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1], '
    '"args": [{"tensor": "D", "access": "write"}]}]} */'
)
KERNEL = PLAN + '\nextern "C" __global__ void gemm(__half* d) {}\n'


def reply(code: str = f"```cuda\n{KERNEL}```") -> str:
    return f"## Analysis\nIt waits.\n\n## Design\nDeeper pipeline. Six stages.\n\n## Code\n{code}\n"


def draft(text: str, *, cut: bool = False) -> KernelFile:
    read = read_reply(text, cut=cut)
    assert isinstance(read, KernelFile), read
    return read


def problem(text: str, *, cut: bool = False) -> str:
    read = read_reply(text, cut=cut)
    assert isinstance(read, Malformed)
    return read.problem


def test_a_reply_in_the_form_asked_for() -> None:
    read = draft(reply())
    assert (read.analysis, read.design, read.source) == ("It waits.", "Deeper pipeline. Six stages.", KERNEL)
    assert read.note == "Deeper pipeline."


@pytest.mark.parametrize("language", ["", "cuda", "cpp", "c++", "c", "CUDA", " cuda title=kernel.cu"])
@pytest.mark.parametrize("fence", ["```", "````", "~~~", "~~~~~~"])
def test_any_fence_and_language(fence: str, language: str) -> None:
    assert draft(reply(f"{fence}{language}\n{KERNEL}{fence}")).source == KERNEL


@pytest.mark.parametrize(
    "headings",
    [
        ("# Analysis", "# Design", "# Code"),
        ("### ANALYSIS", "###design", "### Code ###"),
        ("**Analysis**", "**Design**", "**Code**"),
        ("**Performance analysis:**", "**Design:**", "**Code:**"),
        ("## 1. Analysis", "## 2. Design", "## 3. Code"),
        ("Analysis:", "Design:", "Code:"),
    ],
)
def test_headings_of_any_look(headings: tuple[str, str, str]) -> None:
    analysis, design, code = headings
    read = draft(f"{analysis}\nslow\n{design}\nfast\n{code}\n```\n{KERNEL}```")
    assert (read.analysis, read.design) == ("slow", "fast")


def test_missing_sections_are_empty() -> None:
    read = draft(f"Here you are:\n```cuda\n{KERNEL}```")
    assert (read.analysis, read.design, read.note) == ("", "", "")


def test_snippets_without_a_plan_are_allowed_anywhere() -> None:
    snippet = "```cuda\n__global__ void old() {}\n```\n"
    assert draft(f"{snippet}## Design\n{snippet}## Code\n```\n{KERNEL}```\n{snippet}").source == KERNEL


def test_a_heading_inside_the_code_is_code() -> None:
    code = KERNEL.replace("{}", "{\n## Design\n}")
    read = draft(reply(f"```cuda\n{code}```"))
    assert "## Design" in read.source
    assert read.design == "Deeper pipeline. Six stages."


def test_a_longer_fence_holds_a_shorter_one() -> None:
    code = KERNEL + "/*\n```\n*/\n"
    assert draft(reply(f"````cuda\n{code}````")).source == code


def test_a_reply_wrapped_whole_in_markdown() -> None:
    assert draft(f"```markdown\n{reply()}```").source == KERNEL
    assert draft(f"```md\n{reply()}").source == KERNEL


def test_line_ends_and_marks_of_other_systems() -> None:
    assert draft("\ufeff" + reply().replace("\n", "\r\n")).source == KERNEL


@pytest.mark.parametrize("text", [f"```cuda\n\ufeff{KERNEL}```", f"```\n\ufeff\ufeff{KERNEL}```"])
def test_a_byte_order_mark_in_a_block_is_no_part_of_the_candidate(text: str) -> None:
    context = ReplyContext(TASK, REFERENCE_CHIPS[TASK.arch], "any", 1, {}, Origin(policy="chat"), frozenset())
    [made] = candidates_of(read_reply(reply(text)), context).candidates
    assert made.source == KERNEL


def test_other_scripts_survive() -> None:
    code = KERNEL + "// Über größere Kacheln — 核\n"
    assert draft(reply(f"```\n{code}```")).source == code


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no code block"),
        ("I cannot help with that.", "no code block"),
        (reply(f"```\n{KERNEL}```\n```\n{KERNEL}```"), "2 code blocks"),
        (reply(f"```\n{KERNEL}```\n~~~\n{KERNEL}~~~"), "2 code blocks"),
        (reply("```cuda\n__global__ void f() {}\n```"), "launch plan"),
        (reply(f"```\n{PLAN}\n```\n```\n__global__ void gemm() {{}}\n```"), "__global__"),
        (reply(f"```\n{KERNEL}"), "not closed"),
        (reply(f"````\n{KERNEL}```"), "not closed"),
        (reply(f"```\n{KERNEL}\0```".replace("\0```", "\0\n```")), "NUL"),
    ],
)
def test_what_is_no_kernel_file(text: str, said: str) -> None:
    assert said in problem(text)


def test_a_cut_reply_says_so() -> None:
    assert "cut off inside" in problem(reply(f"```\n{KERNEL}"), cut=True)
    assert "cut off before" in problem("## Analysis\nIt", cut=True)


def test_a_reply_cut_after_its_code_is_whole_enough() -> None:
    assert draft(reply() + "By the way, I also", cut=True).source == KERNEL


def test_nothing_of_a_reply_is_run() -> None:
    read = draft(reply(f"```python\n__import__('os')._exit(1)\n```\n```cuda\n{KERNEL}```") + "{{ 7 * 7 }} ${HOME} $(exit 1)")
    assert Candidate.from_source(read.source, Origin(policy="chat")).plan.launches[0].entry == "gemm"


HOSTILE = {
    "ticks": "`" * 2_000_000,
    "tick lines": "```\n" * 500_000,
    "open fences of growing length": "\n".join("`" * n for n in range(3, 2000)),
    "spaces after the plan's slashes": "```\n//" + " " * 2_000_000 + "\n```",
    "slashes": "```\n" + "/" * 2_000_000 + "\n```",
    "plans": "```\n" + "// cudal2: {" * 150_000 + "\n```",
    "headings": "## Design\n" * 200_000,
    "one heading": "#" * 2_000_000,
    "stars": "**" * 1_000_000,
    "one sentence": f"## Design\n{'. ' * 900_000}\n```\n{KERNEL}```",
    "kernel": reply("```\n" + KERNEL + "x = 1;\n" * 280_000 + "```"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_two_megabytes_of_anything_take_no_time(name: str) -> None:
    begin_s = time.process_time()
    read = read_reply(HOSTILE[name])
    assert time.process_time() - begin_s < 20  # 1 s by itself, more where a large process collects garbage; squares take hours
    if isinstance(read, KernelFile):
        assert len(read.note) <= NOTE_CHARS


def test_random_bits_of_replies_never_raise() -> None:
    rng = random.Random(0)
    bits = [
        "```",
        "~~~",
        "\n",
        "## Code\n",
        KERNEL,
        PLAN,
        "\0",
        "\r",
        "\ud800",
        "cuda",
        " ",
        "**",
        "// cudal2: {",
        "`",
        "\u2028",
    ]
    for _ in range(2000):
        read = read_reply("".join(rng.choice(bits) for _ in range(rng.randrange(30))), cut=rng.random() < 0.5)
        assert isinstance(read, KernelFile) or read.problem


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"family": "latency"}', True),
        (' [{"family": "x"}]', True),
        ("{ int x; }", False),
        ('// "family" of tiles\nint x;', False),
    ],
)
def test_schedules_are_json_that_names_a_family(text: str, named: bool) -> None:
    assert names_family(FencedBlock("", text, closed=True)) is named
