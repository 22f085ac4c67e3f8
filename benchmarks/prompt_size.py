"""Characters of a run's first prompt by section, as a model behind a chat server gets it.

Run from the repository's root: `python -m benchmarks.prompt_size --shape 256x512x1024 [--json]`. Notes and code come from the
index of the settings, which is built where it is absent. Prints a table of sections, or one JSON object of characters.
"""

import argparse
import json
import re

from cudal2_agent.agent.index.default_index import open_retriever
from cudal2_agent.agent.observe.retrieval import look_up, questions_of
from cudal2_agent.agent.wiring.policy import primitives
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.chat.prompts.schedules import PromptedReplies


def opening(task: GemmTask) -> tuple[str, str]:
    """The system and the user message of the first prompt."""
    settings = load_settings()
    with open_retriever(settings, ignore) as retriever:
        hits = look_up(retriever, questions_of(task, None, None), task)
    observation = Observation(task=task, chip=REFERENCE_CHIPS[task.arch], round=1, seed=0, hits=tuple(hits))
    replies = PromptedReplies(settings.chat.replies, settings.chat.schedules)
    composed = Prompts(settings.chat.prompt_tokens, primitives(), replies).first(observation, Assignment(0, None, ()))
    system, user = composed.prompt.messages
    return system.content, user.content


def sections(system: str, user: str) -> dict[str, int]:
    """Characters by section: a heading of the first level outside of fences opens one."""
    sizes, name, fence = {"system message": len(system)}, "", ""
    for line in user.splitlines(keepends=True):
        ticks = re.match(r" {0,3}(`{3,})", line)
        if ticks and not fence:
            fence = ticks[1]
        elif ticks and line.strip() == fence:
            fence = ""
        elif not fence and line.startswith("# "):
            name = line.removeprefix("# ").strip()
        sizes[name] = sizes.get(name, 0) + len(line)
    return {**sizes, "all": len(system) + len(user)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="256x512x1024")
    parser.add_argument("--arch", default=Arch.SM_90A, type=Arch)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    m, n, k = map(int, asked.shape.split("x"))
    sizes = sections(*opening(GemmTask(m=m, n=n, k=k, arch=asked.arch)))
    if asked.json:
        print(json.dumps(sizes))
    else:
        print("\n".join(["| section | characters |", "|---|---|", *(f"| {name} | {size:,} |" for name, size in sizes.items())]))


if __name__ == "__main__":
    main()
