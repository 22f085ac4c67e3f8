"""References made piece by piece along the batch say what the whole says."""

import pytest

torch = pytest.importorskip("torch")

from cudal2_agent.contract.records.named_buffer import Role  # noqa: E402
from cudal2_agent.sandbox.modules import batch_parts  # noqa: E402
from cudal2_agent.sandbox.modules.batch_parts import PartJudge, batch_of, judge_of  # noqa: E402
from cudal2_agent.sandbox.modules.bounds import Judge  # noqa: E402
from cudal2_agent.sandbox.modules.cases import NORMAL, draw  # noqa: E402
from cudal2_agent.sandbox.modules.executor import Run  # noqa: E402
from tests.sandbox.modules.small_tasks import layer_norm, linear_relu, node, of, softmax, task  # noqa: E402

BATCH = 8
CPU = torch.device("cpu")


def folded():
    """Sizes of the batch stand in the graph, alone and in a product."""
    return task(
        [
            node("flat", "aten.view.default", [of("x"), [BATCH * 3, 4]], (BATCH * 3, 4)),
            node("turned", "aten.permute.default", [of("weight"), [1, 0]], (4, 5)),
            node("product", "aten.mm.default", [of("flat"), of("turned")], (BATCH * 3, 5)),
            node("back", "aten.view.default", [of("product"), [BATCH, 3, 5]], (BATCH, 3, 5)),
        ],
        {"x": (BATCH, 3, 4)},
        {"weight": (5, 4)},
    )


def by_rows(made, values, count=3):
    return PartJudge(made, values, 1, batch_of(made), count, nan_is_free=False)


@pytest.mark.parametrize("made", [softmax(rows=BATCH), layer_norm(rows=BATCH), linear_relu(rows=BATCH), folded()])
def test_pieces_say_what_the_whole_says(made):
    values = draw(made, NORMAL, 1, CPU)
    whole, pieces = Judge(made, values, 1), by_rows(made, values)
    right = {name: each.clone() for name, each in whole.eager.items()}
    wrong = {name: each.clone() for name, each in right.items()}
    wrong["out"].reshape(-1)[-2] += 1
    assert pieces.accepts(right)
    assert not pieces.accepts(wrong)
    verdict = pieces.judge(Run(wrong))
    assert (verdict.wrong, verdict.elements) == (1, right["out"].numel())
    assert "counted from row 6" in verdict.first
    assert torch.equal(pieces.eager["out"], right["out"])


def test_rows_that_meet_are_no_reference_that_passes():
    """A softmax over the batch: PyTorch's own result is refused, which leaves out its baselines and says so."""
    made = task([node("softmax", "aten._softmax.default", [of("x"), 0, False], (BATCH, 6))], {"x": (BATCH, 6)})
    values = draw(made, NORMAL, 1, CPU)
    assert not by_rows(made, values).accepts(Judge(made, values, 1).eager)


def test_what_has_no_batch_is_judged_whole():
    reduced = task([node("sum", "aten.sum.default", [of("x")], ())], {"x": (BATCH, 4)})
    assert batch_of(reduced) is None
    state = softmax(rows=BATCH)
    buffers = (state.buffers[0].model_copy(update={"name": "kept", "role": Role.STATE}), *state.buffers)
    graph = state.graph.model_copy(update={"outputs": {**state.graph.outputs, "kept": "softmax"}})
    assert batch_of(state.model_copy(update={"buffers": buffers, "graph": graph})) is None
    assert isinstance(judge_of(reduced, draw(reduced, NORMAL, 1, CPU), 1), Judge)


def test_a_large_task_is_judged_in_pieces_that_fit(monkeypatch):
    made = softmax(rows=BATCH)
    values = draw(made, NORMAL, 1, CPU)
    needed = batch_parts.reference_bytes(made)
    monkeypatch.setattr(batch_parts, "free_bytes", lambda _device: int(needed / 4 / batch_parts.ROOM))
    judge = judge_of(made, values, 1)
    assert [part.count for part, _ in judge.parts()] == [2, 2, 2, 2]
