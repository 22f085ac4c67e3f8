"""For each class of a module's operations, what a round asks finds the right note among the first three."""

import pytest

from cudal2_agent.agent.observe.retrieval import DOCUMENT_KINDS, questions_of
from cudal2_agent.contract.records.knowledge import Query, Retriever
from cudal2_agent.contract.records.module_graph import Graph
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch
from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.graphs import node, value

X = (8, 8)


def of(op: str, *args: object) -> ModuleTask:
    """A module of one operation; only its name and arguments matter here."""
    made = node("made", op, value("x"), *args, shape=X)
    return graphs.module("one", {}, [graphs.buffer("x", X), graphs.buffer("out", X, "output")], [made], {"out": "made"})


CASES = [
    (of("lstm.input"), "scans_and_recurrences.md"),
    (of("gru.input"), "scans_and_recurrences.md"),
    (of("scaled_dot_product_attention.default"), "online_softmax.md"),
    (of("convolution.default", value("x"), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), "implicit_gemm_convolution.md"),
    (of("convolution.default", value("x"), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 8), "depthwise_convolution.md"),
    (of("addmm.default"), "epilogue_algebra.md"),
    (of("cumsum.default", 1), "scans_and_recurrences.md"),
    (of("_softmax.default", -1, False), "online_softmax.md"),
    (of("logsumexp.default", [1]), "online_softmax.md"),
    (of("native_layer_norm.default", [8]), "norms_and_welford.md"),
    (of("native_group_norm.default"), "norms_and_welford.md"),
    (of("max_pool2d_with_indices.default", [2, 2]), "pooling.md"),
    (of("mean.dim", [1]), "reductions.md"),
    (of("argmax.default", 1), "reductions.md"),
    (of("permute.default", [1, 0]), "transposes.md"),
    (of("cat.default"), "transposes.md"),
    (of("relu.default"), "memory_bandwidth.md"),
]


@pytest.mark.parametrize("arch", [Arch.SM_80, Arch.SM_90A])
@pytest.mark.parametrize(("task", "note"), CASES, ids=[task.graph.nodes[0].op + " " + note for task, note in CASES])
def test_the_first_question_finds_the_note_of_the_operation(notes: Retriever, task: ModuleTask, note: str, arch: Arch) -> None:
    words = questions_of(task, None, None)[0]
    hits = notes.search(Query(words=words, arch=arch, kinds=DOCUMENT_KINDS, count=3))
    assert note in [hit.chunk.path for hit in hits]


def test_an_f32_product_asks_what_its_arithmetic_allows(notes: Retriever) -> None:
    questions = questions_of(of("mm.default", value("x")), None, None)
    hits = [hit.chunk.path for words in questions for hit in notes.search(Query(words=words, kinds=DOCUMENT_KINDS, count=3))]
    assert "f32_and_tf32.md" in hits


def test_a_module_without_work_asks_nothing() -> None:
    empty = of("view.default")
    assert questions_of(empty.model_copy(update={"graph": Graph(nodes=(), outputs={"out": "x"})}), None, None) == []
