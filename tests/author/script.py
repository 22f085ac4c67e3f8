"""The author's script: the order of the replies, and what a prompt must hold before each of them.

`Author` is a script for `ScriptedServer`. It checks each prompt before it answers. If the prompt lacks
what the next reply builds on, the lack is noted in `missing` and the answer has no code.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.chat.replies.forms import KernelFile, read_reply
from tests.doubles.chat_server import Request, Text

FOLDER = Path(__file__).parent
TASK = GemmTask(m=2048, n=2048, k=1024, arch=Arch.SM_90A)

# What the machine reports: `built`, compiler logs; `executed`, also results and times; `profiled`, also counters.
Sight = Literal["built", "emulated", "executed", "profiled"]
_SIGHTS: tuple[Sight, ...] = ("built", "emulated", "executed", "profiled")


@dataclass(frozen=True)
class Need:
    """A text that a prompt must hold if the machine reports at least `sight`; `only`: if it reports exactly that."""

    what: str
    pattern: str
    sight: Sight = "built"
    only: bool = False

    def applies(self, sight: Sight) -> bool:
        return sight == self.sight if self.only else _SIGHTS.index(sight) >= _SIGHTS.index(self.sight)


@dataclass(frozen=True)
class Turn:
    """A reply and the texts that its prompt must hold. `name`: of its file, without the suffix."""

    name: str
    needs: tuple[Need, ...]

    @property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.md").read_text()

    @property
    def draft(self) -> KernelFile:
        draft = read_reply(self.text)
        if not isinstance(draft, KernelFile):
            raise ValueError(f"{self.name}: {draft}")
        return draft


SCRIPT = (
    Turn(
        "01_forbidden_include",
        (
            Need("the task", r"M = 2048, N = 2048, K = 1024"),
            Need("the target", r"sm_90a"),
            Need("the form of the plan", r"cudal2: \{"),
            Need("the form of the reply", r"(?m)^## Code$"),
        ),
    ),
    Turn(
        "02_inline_asm_error",
        (
            Need("the rule that was broken", r"\brule include\b"),
            Need("the header that broke it", r"'cuda_runtime\.h' is not allowed"),
            Need("the rejected source", r"\bhgemm_wmma\("),
        ),
    ),
    Turn(
        "03_compile_error",
        (
            Need("the assembler's error", r"line \d+; error\s*: Illegal blayout '\.row' for instruction 'mma'"),
            Need("the failed source", r"mma\.sync\.aligned\.m16n8k16\.row\.row"),
            Need("the primitive that helps", r"\bmma_m16n8k16\b"),
        ),
    ),
    Turn(
        "04_wrong_result",
        (
            Need("the compiler's error", r"kernel\.cu\(\d+\): error: no instance of function template \"cudal2::cp_async\""),
            Need("the arguments it names", r"argument types are: \(__half \*, const __half \*\)"),
            Need("the failed source", r"cp_async<16>\(&tile_a"),
        ),
    ),
    Turn(
        "05_right",
        (
            Need("the failed test", r"wrong result in test \w+/[\w-]+: ", "emulated"),
            Need(
                "how many outputs are wrong, and where",
                r"\d+ of \d+ outputs (?:are wrong, in rows \d+-\d+|written at full size are wrong)",
                "emulated",
            ),
            Need("the first of them", r"first D\[\d+,\d+\] is \S+, should be ", "emulated"),
            Need("the source that is wrong", r"b\[j\]\[0\], b\[j \+ 1\]\[0\], b\[j\]\[1\]", "emulated"),
        ),
    ),
    Turn(
        "06_profile_guided",
        (
            Need("a finding from the code", r"basis: from the compiled code alone[^`]*\n1\. [\w-]+ ", "built", only=True),
            Need("the right source", r"b\[j\]\[0\], b\[j\]\[1\], b\[j \+ 1\]\[0\]", "emulated"),
            Need("its time", r"measured: \d+\.\d+ us", "executed"),
            Need("a finding", r"basis: from [^`]*\n1\. [\w-]+ ", "executed"),
            Need("a finding from counters", r"basis: from hardware counters[^`]*\n1\. [\w-]+ ", "profiled"),
            Need("the counters themselves", r"counters of hgemm_mma: \w+=\d", "profiled"),
        ),
    ),
    Turn(
        "07_better",
        (
            Need("the faster source", r"\bhgemm_ring\(", "executed"),
            Need("its counters", r"counters of hgemm_ring: \w+=\d", "profiled"),
            Need("what changed", r"of the next fastest profiled kernel ", "profiled"),
        ),
    ),
    Turn(
        "08_cluster",
        (
            Need("the faster source", r"\bhgemm_wgmma\(", "executed"),
            Need("its counters", r"counters of hgemm_wgmma: \w+=\d", "profiled"),
        ),
    ),
)


class Author:
    """Plays the script, one reply per request. `missing`: what prompts lacked, each with the reply that it delayed."""

    def __init__(self, sight: Sight, script: Sequence[Turn] = SCRIPT) -> None:
        self.missing: list[str] = []
        self.given: list[str] = []
        self._sight: Sight = sight
        self._left = list(script)

    def __call__(self, request: Request) -> Text:
        if not self._left:
            return Text("## Analysis\n\nNothing better comes to my mind.")
        turn = self._left[0]
        lacking = [need for need in turn.needs if need.applies(self._sight) and not re.search(need.pattern, request.prompt)]
        if lacking:
            self.missing += [f"{turn.name}: the prompt lacks {need.what} ({need.pattern})" for need in lacking]
            return Text("## Analysis\n\nI would have to guess.")
        self._left.pop(0)
        self.given.append(turn.name)
        return Text(turn.text, usage=(len(request.prompt) // 4, len(turn.text) // 4))
