"""A workbench for tests: answers by script and records its calls. It is no emulator and no compiler."""

import time
from typing import Any

from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation, Prediction, TestResult, Wrong
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from tests.doubles import INSPECTION, unmeasured

PREDICTION = Prediction(predicted_us=7.25, model="scripted", floor_us=2.0, terms={"dram": 2.5, "issue": 6.5})


def hit(text: str, name: str = "x.md") -> Hit:
    chunk = Chunk(release="notes", path=name, start_line=1, end_line=2, symbol="x", kind="section", text=text)
    return Hit(chunk=chunk, score=1.0)


class ScriptedWorkbench:
    """Kernels whose source says `// broken`, `// wrong`, `// endless` or `// lost` fail in that way."""

    def __init__(self, hits: tuple[Hit, ...] = (), prediction: Prediction = PREDICTION) -> None:
        self.used: list[tuple[str, str]] = []
        self.seconds: list[float] = []
        self._hits, self._prediction = hits, prediction

    def compile(self, candidate: Candidate, seconds: float) -> Built | Evaluation:
        return self._note("compile", candidate, seconds) or self._built(candidate)

    def verify(self, candidate: Candidate, seconds: float) -> Evaluation:
        failed = self._note("verify", candidate, seconds)
        if failed is None and "// wrong" in candidate.source:
            test = TestResult(tier="exact", name="zero-one", passed=False, worst=3.0, message="12 of 64 outputs are wrong")
            return Wrong(test=test, tests=(test,), inspection=INSPECTION)
        return failed or unmeasured(7.0, "emulator")

    def predict(self, candidate: Candidate, seconds: float) -> Prediction | Evaluation:
        return self._note("predict", candidate, seconds) or self._prediction

    def search(self, words: str, seconds: float) -> list[Hit]:
        self.used.append(("search", words))
        self.seconds.append(seconds)
        return list(self._hits)

    def _note(self, tool: str, candidate: Candidate, seconds: float) -> Any:
        self.used.append((tool, candidate.source))
        self.seconds.append(seconds)
        if "// endless" in candidate.source:
            time.sleep(0.01)
            raise TimeoutError
        if "// lost" in candidate.source:
            raise WorkerError("two workers in a row were lost")
        return CompileFailed(message="error", log="k.cu(3): error: no") if "// broken" in candidate.source else None

    def _built(self, candidate: Candidate) -> Built:
        return Built(candidate=candidate, inspection=INSPECTION, artifact_path="", cached=False, seconds=0.1)
