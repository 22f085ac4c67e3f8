"""A GPU of numpy and torch's CPU for the timer of modules: memory, trusted kernels, graphs and events are doubles.

`timed`: a fixture's work; it returns a function that measures a kernel of (arrays by name, workspace) on a task.
"""

from types import SimpleNamespace

import numpy as np
import torch

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.modules import module_track, torch_baselines, value_pools
from cudal2_agent.sandbox.cuda.timing import aftermath, operand_pools, sampling, track
from cudal2_agent.sandbox.cuda.timing.timer import Timer
from tests.doubles import ENVIRONMENT
from tests.sandbox.cuda.timing.test_operand_pools import Mapping, Trusted

F32 = BufferElement.F32
ROWS, COLUMNS, SETS = 6, 40, 6


def node(name, op, *args, shape=(ROWS, COLUMNS)):
    return GraphNode(name=name, op=op, args=args, results=(TensorType(shape=shape, element=F32),))


def of(name):
    return {"node": name}


# relu(x @ weight.T + bias), and a state that counts.
TASK = ModuleTask(
    name="linear and relu",
    problem="",
    buffers=(
        Buffer(name="x", shape=(ROWS, 8), element=F32, role=Role.INPUT),
        Buffer(name="weight", shape=(COLUMNS, 8), element=F32, role=Role.PARAMETER),
        Buffer(name="bias", shape=(COLUMNS,), element=F32, role=Role.PARAMETER),
        Buffer(name="calls", shape=(1,), element=F32, role=Role.STATE),
        Buffer(name="out", shape=(ROWS, COLUMNS), element=F32, role=Role.OUTPUT),
    ),
    graph=Graph(
        nodes=(
            node("turned", "aten.permute.default", of("weight"), [1, 0], shape=(8, COLUMNS)),
            node("sums", "aten.addmm.default", of("bias"), of("x"), of("turned")),
            node("positive", "aten.relu.default", of("sums")),
            node("counted", "aten.add.Tensor", of("calls"), 1, shape=(1,)),
        ),
        outputs={"out": "positive", "calls": "counted"},
    ),
    arch=Arch.SM_90A,
)
OPTIONS = TimeOptions(rounds=3, side=False, secret=11)


def right(arrays, _workspace):
    x, weight, bias = (arrays[name].view(np.float32) for name in ("x", "weight", "bias"))
    sums = x.reshape(ROWS, 8) @ weight.reshape(COLUMNS, 8).T + bias
    arrays["out"].view(np.float32)[:] = np.maximum(sums, 0).reshape(-1)
    arrays["calls"].view(np.float32)[0] += 1


class GraphDouble:
    """Runs its launches; each takes the time that its contender says."""

    def __init__(self, _device, bounds, **_):
        self._bounds = bounds

    def run_us(self):
        for bound in self._bounds:
            bound.enqueue(0)
        return 10.0 * max(len(self._bounds), 1)

    def launch_us(self):
        return self.run_us() / max(len(self._bounds), 1)


class Event:
    def record(self, _stream):
        pass


class TrustedDouble(Trusted):
    def __init__(self, *_):
        pass

    def scrub_local(self, *_):
        pass

    scrub_chip = sweep = demote = scrub_local


def doubles(monkeypatch, memory=1 << 30):
    """A GPU's doubles in place; returns its device."""

    class Sums(np.ndarray):
        def get(self):
            return self

    numpy = SimpleNamespace(
        **{name: getattr(np, name) for name in ("zeros", "empty", "uint8", "uint64", "asarray", "empty_like")},
        concatenate=lambda sums: np.concatenate(sums).view(Sums),
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(memGetInfo=lambda: (memory, memory)),
            Event=Event,
            get_elapsed_time=lambda *_: 0.02,
            get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
        ),
    )
    for module in (aftermath, operand_pools, sampling, track, module_track, value_pools):
        monkeypatch.setattr(module, "cupy", numpy, raising=False)
    for module in (operand_pools, track, value_pools):
        monkeypatch.setattr(module, "Mapping", Mapping)
    monkeypatch.setattr(module_track, "TrustedTiming", TrustedDouble)
    monkeypatch.setattr(module_track, "MAX_SETS", SETS)
    monkeypatch.setattr(track, "call", lambda *_: None)
    monkeypatch.setattr(module_track, "use_stream", lambda _: torch.device("cpu"))
    monkeypatch.setattr(torch_baselines, "place_of", lambda _: torch.device("cpu"))
    monkeypatch.setattr(sampling, "TimedGraph", GraphDouble)
    monkeypatch.setattr(torch, "compile", lambda program, **_: program)
    return SimpleNamespace(
        index=0,
        pci_bus_id="0",
        chip=REFERENCE_CHIPS[Arch.SM_90A].model_copy(update={"l2_bytes": 4096}),
        environment=ENVIRONMENT,
        stream=SimpleNamespace(ptr=0),
        pool=SimpleNamespace(free_bytes=lambda: 0),
        synchronize=lambda: None,
    )


def timed(monkeypatch, memory=1 << 30):
    device = doubles(monkeypatch, memory)

    def measure(kernel, task=TASK, options=OPTIONS, **fields):
        bind = lambda operands: SimpleNamespace(  # noqa: E731
            enqueue=lambda _stream, **_: kernel(operands.arrays, operands.workspace)
        )
        fixed = {"workspace_bytes": 0, "zero": False, "zero_bytes": 0, "programmatic": False, "local_bytes": 0}
        contender = SimpleNamespace(name="k", bind=bind, altered=lambda: (), atomics=False, **fixed | fields)
        opened = Timer(task, device)
        try:
            return opened.measure(contender, options)
        finally:
            opened.close()

    return measure
