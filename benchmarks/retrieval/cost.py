"""The cost of the knowledge base: indexing, updating and searching, at one and at several times the corpus.

Run from the repository's root. The trees contain `cute/` and `cutlass/`; `--times 10` adds ten times the tree:
  python -m benchmarks.retrieval.cost --old CUTLASS-4.1.0/include --new CUTLASS-4.2.0/include --out FILE
Every step is the command `cudal2-agent index …` in its own process, with a knowledge base in a temporary folder. Writes JSON
and prints a table: wall-clock seconds, and megabytes of the largest process. Shared machines are noisy.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import execute, script, stamp, write_json
from benchmarks.retrieval.score import read_questions
from cudal2_agent.agent.index.knowledge_base import open_library
from cudal2_agent.contract.records.knowledge import Query
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.knowledge.search import open_search

QUESTIONS = Path(__file__).parent / "questions_dev.jsonl"
SHORT = "how do consumers hand a buffer back to the loader"
COLD_RUNS = 5


def index(home: Path, *arguments: str) -> dict[str, Any]:
    """One command: its seconds, the peak memory of its largest process in MB, and its answer."""
    environment = {**os.environ, "CUDAL2_HOME": str(home)}
    command = [sys.executable, "-m", "cudal2_agent.agent.cli.main", "index", *arguments, "--json"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        begin = time.monotonic()
        child = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
        out.seek(0)
        return {"seconds": round(seconds, 2), "peak_mb": round(usage.ru_maxrss / 1024), "answer": json.load(out)}


def taken_in(done: dict[str, Any]) -> dict[str, Any]:
    """The cost of a command that indexes releases, and the counts of what it indexed."""
    return {"seconds": done["seconds"], "peak_mb": done["peak_mb"], **reports(done["answer"])}


def reports(answer: dict[str, Any]) -> dict[str, int]:
    """Files, pieces and vectors of all releases that a command indexed."""
    return {name: sum(report[name] for report in answer["releases"]) for name in ("files", "split", "pieces", "embedded")}


def searching(home: Path, release: str) -> dict[str, float]:
    """Milliseconds per question in a warm process, and seconds of a whole command."""
    with open_library(load_settings(home=home)) as store:
        retriever = open_search(store)

        def ask(words: str) -> float:
            begin = time.perf_counter()
            retriever.search(Query(words=words, releases=(release,), count=10))
            return 1000 * (time.perf_counter() - begin)

        questions = [question.query for question in read_questions(QUESTIONS)]
        for words in questions[:5]:
            ask(words)
        long, short = [ask(words) for words in questions], [ask(SHORT) for _ in range(20)]
    cold = [index(home, "search", SHORT)["seconds"] for _ in range(COLD_RUNS)]
    return {
        "warm_question_set_ms": round(statistics.median(long), 1),
        "warm_short_question_ms": round(statistics.median(short), 1),
        "cold_search_s": round(statistics.median(cold), 2),
        "cold_search_best_s": min(cold),
    }


def many(tree: Path, times: int, into: Path) -> Path:
    """Several copies of a tree with different files: every identifier of a copy ends in the number of the copy."""
    for copy in range(times):
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                target = into / f"copy{copy}" / path.relative_to(tree)
                target.parent.mkdir(parents=True, exist_ok=True)
                text = path.read_text(encoding="utf-8", errors="replace")
                target.write_text(re.sub(r"\b([A-Za-z_]\w{7,})\b", rf"\1_{copy}", text), encoding="utf-8")
    return into


def measure(old: Path, new: Path, home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Index, update and search one tree, then a second tree beside it."""
    full = index(home, "add", str(new))
    yield "new tree and notes, from nothing", taken_in(full)
    unchanged = index(home, "update")
    yield "update, nothing changed", taken_in(unchanged)
    yield "search", searching(home, "cutlass-4.2.0")
    shutil.rmtree(home / "knowledge")
    index(home, "add", str(old))
    step = index(home, "add", str(new))
    yield "new tree beside the old one", taken_in(step)
    yield "search in both", searching(home, "cutlass-4.2.0")


def grown(new: Path, times: int, home: Path, scratch: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    tree = many(new, times, scratch)
    full = index(home, "add", str(tree), "--name", "many")
    yield f"{times} times the tree, from nothing", taken_in(full)
    yield f"search in {times} times the tree", searching(home, "many")


def line(name: str, step: dict[str, Any]) -> str:
    cost = f", {1000 * step['seconds'] / step['pieces']:.2f} s per 1,000 pieces" if step.get("pieces") else ""
    return f"{name}: {', '.join(f'{key} {value}' for key, value in step.items())}{cost}"


def main() -> None:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--times", type=int, default=0, help="also index this many different copies of the new tree")
    given = parser.parse_args()
    head, steps = stamp(__file__, given.commit), dict[str, Any]()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        found = list(measure(given.old, given.new, home / "home"))
        if given.times:
            found += grown(given.new, given.times, home / "grown", home / "tree")
        for name, step in found:
            steps[name] = step
            print(line(name, step), flush=True)
    write_json(given.out, {**head, "steps": steps})


if __name__ == "__main__":
    execute(main)
