"""One word, one idea: class and module names that occur twice outside tests are listed here, each with its reason.

A class with a leading underscore counts under its name without it. A module that is named like its package is that package's
main file and counts once. Benchmarks are scripts that the product does not import: their modules are named after the part that
they measure, and only their classes count.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("agent", "benchmarks", "contract", "cudal2", "indexer", "knowledge", "policies", "processes", "sandbox")

BACKENDS = "the same role in both backends, sandbox/cuda and sandbox/emulator"
RECORD = "contract holds the record or the plan, the other part produces it"
FAMILY = "every kernel family has a file of this name"
COMMAND = "agent/cli has one file per verb, named like the verb"
WIRING = "agent/wiring has one file per part, named like what it opens"

KINDS = "the same role for both kinds of task, sandbox/verification for products and sandbox/modules for modules"

SHARED_CLASSES = {
    "BoundKernel": BACKENDS,
    "Evaluator": BACKENDS,
    "Case": KINDS,
    "Expected": "what a run should give: samples of a product on the emulator, an output of a module",
    "Judge": "what orders entries of a search, and what judges the outputs of a module",
    "Run": KINDS,
    "Verdict": "what counters decide about bottlenecks, and what a comparison of outputs found",
}
SHARED_MODULES = {
    "bounds": KINDS,
    "cases": KINDS,
    "fusion": "policies/fusion fuses operations into kernels, knowledge/search fuses rankings",
    "advise": "agent/library/advise works out what a model gains, `advise` is its verb",
    "bench": "agent/bench is the engine of benches, `bench` the verb that times files",
    "campaign": "contract holds the record, agent/campaign makes it, agent/cli/campaign has the verbs",
    "child": "processes starts and ends children, sandbox/profiling has the program of one",
    "diagnosis": RECORD,
    "doctor": COMMAND,
    "environment": "agent/learning has one of reinforcement learning, sandbox/cuda reads a GPU's record of this name",
    "evaluator": BACKENDS,
    "executor": "the protocol that verification asks for, and the emulator's implementation of it",
    "failures": "agent/observe chooses which failures are left to repair, policies/chat/prompts renders one",
    "family": FAMILY,
    "history": "the steps of a run in memory, and what of them a prompt shows",
    "index": COMMAND,
    "inspection": RECORD,
    "knowledge": RECORD,
    "launcher": "the launcher of the sandbox, and the package of the one that programs use",
    "library": "contract holds the records, agent/library builds libraries, cudal2/library reads them",
    "library_check": COMMAND,
    "lm": COMMAND,
    "modules": "sandbox/modules is about PyTorch modules as tasks, sandbox/cuda/modules about them on a GPU",
    "policy": "the main file of each policy, and the wiring that opens them",
    "prior": "policies/schedule predicts times of schedules, the verb `prior` chooses what does",
    "profile": COMMAND,
    "remote": WIRING,
    "replies": "what a reply of a model holds, and their sums in the report of a run",
    "report": "the page of a run, and the verb that writes the page of a campaign",
    "run": "agent/run is one run, `campaign run` a verb",
    "sandbox": WIRING,
    "schedule": FAMILY,
    "space": FAMILY,
    "tasks": "agent/tasks finds and checks problem files, agent/cli/tasks has the verbs",
    "worker": BACKENDS,
    "workers": "worker processes of the sandbox, and those of the indexer",
    "writer": FAMILY,
}


def sources() -> list[Path]:
    return sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def classes_of(source: str) -> Iterator[str]:
    yield from (node.name.lstrip("_") for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))


def module_of(path: Path) -> str | None:
    """The last part of the module's dotted name; None for a package's main file and for a benchmark."""
    if path.parts[0] == "benchmarks":
        return None
    if path.name == "__init__.py":
        return path.parent.name
    return None if path.stem == path.parent.name else path.stem


def twice(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def test_class_names_that_occur_twice_are_justified() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for name in classes_of(path.read_text("utf-8")):
            places[name].append(path.relative_to(ROOT).as_posix())
    found = twice(places)
    assert {name: where for name, where in found.items() if name not in SHARED_CLASSES} == {}
    assert SHARED_CLASSES.keys() - found.keys() == set(), "these are unique now: take them out of the table"


def test_module_names_that_occur_twice_are_justified() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        if (name := module_of(path.relative_to(ROOT))) is not None:
            places[name].append(path.relative_to(ROOT).as_posix())
    found = twice(places)
    assert {name: where for name, where in found.items() if name not in SHARED_MODULES} == {}
    assert SHARED_MODULES.keys() - found.keys() == set(), "these are unique now: take them out of the table"


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/b.py", "b"), ("a/b/__init__.py", "b"), ("a/b/b.py", None), ("benchmarks/b.py", None)],
)
def test_the_name_of_a_module(path: str, name: str | None) -> None:
    assert module_of(Path(path)) == name


def test_a_private_class_counts_under_its_public_name() -> None:
    assert list(classes_of("class _Entry: ...\nclass Entry:\n  class Inner: ...\n")) == ["Entry", "Entry", "Inner"]
