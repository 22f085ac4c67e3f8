"""A run in its own process, started by a test that kills it: `killed_run.py HOME (start|resume) [written]`. Not a test.

Every evaluation is written to HOME/evaluated.txt when it ends, before the graph receives it. With `written` the candidates
are a model's and the emulator proves each; HOME/witness.txt records when each proof began and ended.
"""

import sys
import time
from pathlib import Path

from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import name_run, resume_run, start_run
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import open_store
from tests.doubles import TASK, ScriptedPolicy, ScriptedRetriever, ScriptedSandbox, candidate, diagnose, explain, number_of

COUNT, FAILURES = 24, (2, 9, 17)
PROOF_S = 0.2


class LoggingSandbox(ScriptedSandbox):
    def __init__(self, log: Path) -> None:
        super().__init__({number: 40.0 - number for number in range(COUNT)}, failures=FAILURES, evaluate_s=0.05)
        self._log = log
        self._proofs = log.with_name("witness.txt")

    def witness(self, built: Built, task: GemmTask) -> Evaluation:
        number = number_of(built.candidate)
        _append(self._proofs, f"begin {number}")
        time.sleep(PROOF_S)
        evaluation = super().witness(built, task)
        _append(self._proofs, f"end {number}")
        return evaluation

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        evaluation = super().evaluate(built, task, effort)
        _append(self._log, f"{number_of(built.candidate)} {effort}")
        return evaluation


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def main(home: Path, verb: str, author: str = "") -> None:
    settings = Settings(home=home, budget=COUNT, round_size=4, minutes=2.0, finalists=3)
    with open_store(settings.store_url) as store:
        script = [candidate(number) for number in range(COUNT)]
        if author == "written":
            script = [one.model_copy(update={"origin": Origin(policy="chat")}) for one in script]
        policy = ScriptedPolicy(script)
        sandbox = LoggingSandbox(home / "evaluated.txt")
        parts = Dependencies(
            sandbox=sandbox, policy=policy, retriever=ScriptedRetriever(), store=store, diagnose=diagnose, explain=explain
        )
        if verb == "start":
            start_run(name_run(TASK), TASK, settings, parts, lambda _: None)
        else:
            [run] = store.runs()
            resume_run(run, settings, parts, lambda _: None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
