"""A run in a process of its own, for a test that kills it: `killed_run.py HOME (start|resume)`. Not a test itself.

Every evaluation is written to HOME/evaluated.txt when it has ended, before the graph hears of it.
"""

import sys
from pathlib import Path

from agent.parts import Parts
from agent.run import name_run, new_run, resume_run, start_run
from contract.build import Built
from contract.evaluation import Evaluation
from contract.options import Effort
from contract.settings import Settings
from contract.task import GemmTask
from policies.trajectories.store import open_store
from tests.doubles import TASK, ScriptedPolicy, ScriptedRetriever, ScriptedSandbox, candidate, diagnose, explain, number_of

COUNT, FAILURES = 24, (2, 9, 17)


class LoggingSandbox(ScriptedSandbox):
    def __init__(self, log: Path) -> None:
        super().__init__({number: 40.0 - number for number in range(COUNT)}, failures=FAILURES, evaluate_s=0.05)
        self._log = log

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        evaluation = super().evaluate(built, task, effort)
        with self._log.open("a") as file:
            file.write(f"{number_of(built.candidate)} {effort}\n")
        return evaluation


def main(home: Path, verb: str) -> None:
    settings = Settings(home=home, budget=COUNT, round_size=4, minutes=2.0)
    with open_store(settings.store_url) as store:
        policy = ScriptedPolicy([candidate(number) for number in range(COUNT)])
        sandbox = LoggingSandbox(home / "evaluated.txt")
        parts = Parts(
            sandbox=sandbox, policy=policy, retriever=ScriptedRetriever(), store=store, diagnose=diagnose, explain=explain
        )
        if verb == "start":
            start_run(new_run(name_run(TASK), TASK, settings, parts, None), settings, parts, lambda _: None)
        else:
            [run] = store.runs()
            resume_run(run, settings, parts, lambda _: None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
