"""One guarded run of a module on numpy's memory: what it reports of a kernel's deeds."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role  # noqa: E402
from cudal2_agent.sandbox.cuda.guard.buffers import Guarded  # noqa: E402
from cudal2_agent.sandbox.cuda.modules.cuda_executor import CudaModuleExecutor  # noqa: E402
from cudal2_agent.sandbox.cuda.modules.guarded_values import GuardedValues  # noqa: E402
from cudal2_agent.sandbox.verification.executor import Fill  # noqa: E402

BUFFERS = (
    Buffer(name="x", shape=(3, 5), element=BufferElement.F32, role=Role.INPUT),
    Buffer(name="chosen", shape=(7,), element=BufferElement.BOOL, role=Role.INPUT),
    Buffer(name="weight", shape=(5,), element=BufferElement.F16, role=Role.PARAMETER),
    Buffer(name="mean", shape=(), element=BufferElement.F32, role=Role.STATE),
    Buffer(name="out", shape=(3, 5), element=BufferElement.F32, role=Role.OUTPUT),
)
VALUES = {
    "x": torch.arange(15, dtype=torch.float32).reshape(3, 5),
    "chosen": torch.tensor([True, False] * 3 + [True]),
    "weight": torch.ones(5, dtype=torch.float16),
    "mean": torch.tensor(2.0),
}


def right(arrays, _workspace):
    x, out, mean = (arrays[name].view(np.float32) for name in ("x", "out", "mean"))
    out[:15] = x[:15] * 2
    mean[0] += 1


def contender(kernel, **fields):
    bind = lambda operands: SimpleNamespace(enqueue=lambda _stream: kernel(operands.arrays, operands.workspace))  # noqa: E731
    fixed = {"workspace_bytes": 0, "zero": False, "zero_bytes": 0, "altered": lambda: ()}
    return SimpleNamespace(bind=bind, **fixed | fields)


def executor(kernel, **fields):
    make = lambda *_: lambda _name, size: Guarded(size, np)  # noqa: E731
    device = SimpleNamespace(index=0, stream=SimpleNamespace(ptr=0), synchronize=lambda: None)
    slots = tuple(GuardedValues(BUFFERS, make()) for _ in range(2))
    made = contender(kernel, **fields)
    return CudaModuleExecutor(device, torch.device("cpu"), made, slots, random.Random(1), make)


def test_outputs_and_states_are_read_and_inputs_left_alone():
    run = executor(right).run(VALUES)
    assert run.violations == ()
    assert torch.equal(run.outputs["out"], VALUES["x"] * 2)
    assert run.outputs["mean"] == 3
    assert float(VALUES["mean"]) == 2, "states are copied"


def test_outputs_hold_the_poison_that_is_told_before_the_run():
    seen = []
    run = executor(lambda arrays, _: seen.append(arrays["out"].view(np.uint16).copy())).run(VALUES)
    assert run.poison is not None
    assert set(seen[0][:30].tolist()) == {run.poison}


def test_what_a_run_left_is_there_in_the_next_where_it_is_asked_for():
    seen = []

    def kernel(arrays, workspace):
        seen.append((arrays["out"].view(np.float32)[0], workspace[0], arrays["part"][0]))
        arrays["out"].view(np.float32)[:] = 7
        workspace[0] = arrays["part"][0] = 9

    fields = {"workspace_bytes": 256 + 512, "own_workspace_bytes": 256, "scratch": {"part": 512}}
    runner = executor(kernel, **fields)
    runner.run(VALUES)
    runner.run(VALUES, fill=Fill.STALE, fresh_scratch=False)
    runner.run(VALUES)
    assert seen[1] == (7, 9, 9)
    assert seen[2][1] != 9
    assert np.isnan(seen[2][0])


@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        (lambda arrays, _: arrays["x"].__setitem__(4, 1), "input", "input x was changed in 1 element"),
        (lambda arrays, _: arrays["chosen"].__setitem__(1, 1), "input", "input chosen was changed in 1 element"),
        (lambda arrays, _: arrays["weight"].__setitem__(3, 1), "input", "parameter weight was changed in 1 element"),
        (lambda arrays, _: _beyond(arrays["out"]).__setitem__(60, 1), "canary", "out was written 1 byte"),
        (lambda _, workspace: _beyond(workspace).__setitem__(64, 1), "canary", "the workspace was written 1 byte"),
    ],
)
def test_deeds_beside_the_outputs_are_told_once(deed, kind, words):
    again = []

    def kernel(arrays, workspace):
        right(arrays, workspace)
        if not again:
            deed(arrays, workspace)
        again.append(1)

    runner = executor(kernel, workspace_bytes=64)
    (violation,) = runner.run(VALUES).violations
    assert violation.kind == kind
    assert words in violation.message
    assert runner.run(VALUES).violations == (), "the buffers were repaired"


def _beyond(array):
    """An array's memory with some of what follows."""
    return np.lib.stride_tricks.as_strided(array, (array.size + 64,), (1,))


def test_a_restored_workspace_is_zero_before_and_after():
    seen = []

    def kernel(arrays, workspace):
        right(arrays, workspace)
        seen.append(int(workspace[:8].sum()))
        workspace[2] = len(seen) - 1

    runner = executor(kernel, workspace_bytes=64, zero="restored", zero_bytes=8)
    assert runner.run(VALUES).violations == ()
    (violation,) = runner.run(VALUES).violations
    assert (violation.kind, seen) == ("workspace", [0, 0])
