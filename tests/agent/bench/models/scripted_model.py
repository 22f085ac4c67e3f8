"""The scripted model of the bench's recording, and the program that makes it.

    python -m tests.agent.bench.models.scripted_model    # writes recorded_bench.json.gz beside this file

Its kernels are the prompt's own example and sources of the schedule families. It is right at first on six tasks (on one of
them after a wrong kernel that it verifies with a tool), on three after a repair, and never on one.
"""

import gzip
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

from cudal2_agent.agent.bench.models.bench_tasks import BenchTask, bench_tasks
from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.store.store import open_store
from tests.doubles.chat_server import Behaviour, Calls, Request, ScriptedServer, Text

RECORDING = Path(__file__).with_name("recorded_bench.json.gz")
FIRST = ("tiny", "tiny-f16", "longer-k", "one-wave", "output-bound", "many-waves")
REPAIRED = {"odd": 2, "part-of-a-wave": 2, "ampere": 2}  # with the replies that they took
NEVER = "long-k"
_SHAPE = re.compile(r"M = (\d+), N = (\d+), K = (\d+)")


def observation(task: GemmTask) -> Observation:
    return Observation(task=task, chip=REFERENCE_CHIPS[task.arch], round=1, seed=0)


def example(task: GemmTask) -> str:
    """The small example of first prompts: right for every shape, and slow. Shapes whose rows TMA can load have another one."""
    odd = task.model_copy(update={"m": 9, "n": 9, "k": 9})
    prompt = Prompts(24_000, ()).first(observation(odd), Assignment(0, None, ())).prompt
    blocks = re.findall(r"```cuda\n(.*?)```", prompt.messages[1].content, flags=re.DOTALL)
    return next(block for block in blocks if "__global__" in block)


def scheduled(task: GemmTask) -> str:
    """The schedule that the prior puts first."""
    return SchedulePolicy(families(task.arch), seed=0).propose(observation(task), 1)[0].source


def shifted(source: str) -> str:
    """A kernel that takes B from the next row."""
    wrong = source.replace("r = k0 + i * 8", "r = k0 + 1 + i * 8")
    assert wrong != source
    return wrong


def reply(source: str, idea: str = "Plain") -> Text:
    text = f"## Analysis\nA new task.\n\n## Design\n{idea}. No more.\n\n## Code\n```cuda\n{source}```\n"
    return Text(text, usage=(7000, len(text) // 3))


def script(one: BenchTask) -> list[Behaviour]:
    """The replies to the requests of a task."""
    task, name = one.task, one.name
    if name == "tiny-f16":
        wrong = Calls(("verify_kernel", {"kernel": shifted(example(task))}))
        right = Calls(("verify_kernel", {"kernel": example(task)}), ("predict_time", {"kernel": "k2"}))
        return [wrong, right, Text("## Design\nChecked. No more.\n\n## Code\nCOMMIT k2\n", usage=(9000, 20))]
    if name == "odd":
        return [reply(shifted(example(task))), reply(example(task), "Mended")]
    if name == "part-of-a-wave":
        return [Text("I would use many tiles.", usage=(7000, 9)), reply(example(task))]
    if name == "ampere":
        return [reply(example(task).replace("float sums[4]", "flote sums[4]")), reply(example(task), "Mended")]
    if name == NEVER:
        return [reply(example(task).replace("const int lane", f"int x{n} = y; const int lane")) for n in range(3)]
    return [reply(example(task) if name == "tiny" else scheduled(task))]


class ScriptedModel:
    """A script for `ScriptedServer`: finds the task in the prompt. A request past a task's script is answered without code."""

    def __init__(self) -> None:
        self._scripts = {(one.task.m, one.task.n, one.task.k): script(one) for one in bench_tasks().tasks}
        self.asked: Counter[tuple[int, ...]] = Counter()

    def __call__(self, request: Request) -> Behaviour:
        shape = tuple(map(int, _SHAPE.search(request.prompt).groups()))  # type: ignore[union-attr]
        place, self.asked[shape] = self.asked[shape], self.asked[shape] + 1
        replies = self._scripts[shape]
        return replies[place] if place < len(replies) else Text("Nothing more.")


def record(home: Path) -> None:
    """Run the bench against the scripted model and keep its exchanges by task."""
    with ScriptedServer(ScriptedModel()) as server:
        words = ["--model", "scripted", "--base-url", server.base_url, "--device", "emulator", "--no-knowledge"]
        assert main(["model-bench", *words]) == 0
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        exchanges = {
            run.run_id.split("-", 3)[3]: [exchange.model_dump(mode="json") for exchange in store.exchanges(run.run_id)]
            for run in store.runs()
        }
    RECORDING.write_bytes(gzip.compress(json.dumps(exchanges).encode(), mtime=0))


if __name__ == "__main__":
    import os

    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUDAL2_HOME"] = folder
        record(Path(folder))
