"""Writers that are killed, each at the point that its folder names; one fork each, because the imports take seconds.

Usage: python -m tests.knowledge.store.killed FOLDER...; exit code 0 if all were killed.
"""

import os
import signal
import sys
from pathlib import Path

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.knowledge.store import generations, open_store, staging
from cudal2_agent.knowledge.store.store import KnowledgeBase
from cudal2_agent.knowledge.store.vectors import VectorStore
from tests.knowledge.store.samples import TinyModel, add, filled, split_file


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def added() -> list[SplitFile]:
    return [split_file(f"new/f{n}.hpp", 12) for n in range(4)]


def write(folder: Path) -> None:
    place = folder.name
    filled(folder, files=2)
    staging._BATCH_PIECES = 24  # two files
    with open_store(folder, TinyModel()) as store:
        splits = added()
        if place == "after one batch":
            store.stage(splits, die)
        if place == "between vectors and rows":
            vectors_added = VectorStore.add
            VectorStore.add = lambda *given: (vectors_added(*given), die())  # type: ignore[method-assign]
        if place == "while the lexical index is built":
            generations.build = die
        if place == "between rename and commit":
            renamed = generations.Generations.write
            generations.Generations.write = lambda *given: (renamed(*given), die())  # type: ignore[method-assign]
        if place == "before old generations are deleted":
            generations.Generations.prune = die  # type: ignore[method-assign]
        if place == "while vectors are made anew":
            KnowledgeBase._next_generation = die  # type: ignore[method-assign, assignment]
            store.reembed()
        add(store, "2.0", splits)


def killed(folder: Path) -> bool:
    child = os.fork()
    if child == 0:
        try:
            write(folder)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


if __name__ == "__main__":
    sys.exit(not all(killed(Path(folder)) for folder in sys.argv[1:]))
