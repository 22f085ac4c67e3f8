"""A folder of results in a program: what reaches the driver, and what PyTorch runs. The CPU takes the place of a GPU."""

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cudal2.launcher.interpreted import InterpretedLauncher
from cudal2.modules.module_service import fits
from cudal2.modules.served_module import serve
from cudal2_agent.agent.report.module_folder import MODULE, problem_at, write_module
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.module_graph import Graph, GraphNode, TensorType
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.contract.records.task import Arch
from tests.doubles.fake_driver import FakeDriver, fake_cubin, fake_driver_file

STREAM = 0x9
PROBLEM = '''import torch

rows = 16
width = 32


class Model(torch.nn.Module):
    """x weight^T, scaled and shifted."""

    def __init__(self, width, scale=2.0):
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)
        self.scale = scale
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x):
        return self.linear(x) * self.scale + self.shift


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
'''
CALL = {"call": "mm", "inputs": [{"tensor": "x"}, {"tensor": "linear_weight", "permute": [1, 0]}], "out": {"tensor": "h"}}
LAUNCH = {
    "entry": "scaled",
    "grid": ["rows", 1, 1],
    "block": [32, 1, 1],
    "args": [{"tensor": "h"}, {"tensor": "shift"}, {"tensor": "out", "access": "write"}, {"scalar": "2.0", "type": "f32"}],
}
F32 = BufferElement.F32


def task_of(**changes: Any) -> ModuleTask:
    result = (TensorType(shape=(16, 32), element=F32),)
    nodes = (
        GraphNode(name="t", op="aten.t.default", args=({"node": "linear_weight"},), results=result),
        GraphNode(name="mm", op="aten.mm.default", args=({"node": "x"}, {"node": "t"}), results=result),
    )
    buffers = (
        Buffer(name="x", shape=(16, 32), element=F32, role=Role.INPUT),
        Buffer(name="linear_weight", shape=(32, 32), element=F32, role=Role.PARAMETER),
        Buffer(name="shift", shape=(32,), element=F32, role=Role.PARAMETER),
        Buffer(name="out", shape=(16, 32), element=F32, role=Role.OUTPUT),
    )
    dims = {"rows": 16, "width": 32}
    graph = Graph(nodes=nodes, outputs={"out": "mm"})
    return ModuleTask(name="scaled", problem=PROBLEM, dims=dims, buffers=buffers, graph=graph).model_copy(update=changes)


class CpuGpus:
    """The CPU as a GPU of 132 SMs, on the fake driver."""

    device_type, alignment = "cpu", 16

    def __init__(self, fake: FakeDriver, capability: int = 90) -> None:
        self._fake, self._capability = fake, capability

    def capability(self, _: torch.device) -> int:
        return self._capability

    def gpu(self, _: torch.device) -> InterpretedLauncher:
        return InterpretedLauncher(0, self._fake.file)

    def stream(self, _: torch.device) -> int:
        return STREAM


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    driver = FakeDriver(fake_driver_file())
    yield driver
    driver.reset()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose plan calls a library, then launches a kernel."""
    plan = plan_from_json(
        {
            "arch": "sm_90a",
            "launches": [CALL, LAUNCH],
            "scratch": [{"name": "h", "shape": ["rows", "width"], "element": "f32"}],
        }
    )
    resolved = resolve(plan, task_of(), LIMITS[Arch.SM_90A], sms=132)
    (tmp_path / "problem.py").write_text(problem_at(task_of()))
    write_module(tmp_path, task_of(), resolved, lambda path, text: path.write_text(text) and None)
    (tmp_path / "kernel.cubin").write_bytes(fake_cubin({"scaled": [8, 8, 8, 4]}))
    return tmp_path


@pytest.fixture
def model(folder: Path, fake: FakeDriver) -> torch.nn.Module:
    made = serve(folder, module_of(folder).run_call, CpuGpus(fake))(32)
    fake.events()
    return made.eval()


def module_of(folder: Path) -> ModuleType:
    """The folder's `module.py`, imported as a program does."""
    spec = importlib.util.spec_from_file_location("a_module", folder / MODULE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def original() -> torch.nn.Module:
    space: dict[str, Any] = {}
    exec(PROBLEM, space)
    made: torch.nn.Module = space["Model"](32)
    return made.eval()


def test_a_call_reaches_the_driver_with_the_modules_own_memory(model: Any, fake: FakeDriver) -> None:
    x = torch.randn(16, 32)
    with torch.no_grad():
        out = model(x)
    [event] = fake.events("launch")
    scratch, shift, written = (struct.unpack("<Q", bytes.fromhex(each))[0] for each in event["arguments"][:3])
    assert (shift, written) == (model.shift.data_ptr(), out.data_ptr())
    assert struct.unpack("<f", bytes.fromhex(event["arguments"][3])) == (2.0,)
    assert (event["stream"], event["grid"]) == (STREAM, [16, 1, 1])
    assert scratch not in (shift, written, 0)
    assert (out.shape, out.dtype) == ((16, 32), torch.float32)
    assert (model.cudal2.served, dict(model.cudal2.fallbacks)) == (1, {})


def test_library_operations_run_before_the_launches_that_follow_them(folder: Path, fake: FakeDriver) -> None:
    seen: list[Any] = []

    def run_call(operation: Any, tensors: Any, task: Any) -> None:
        module_of(folder).run_call(operation, tensors, task)
        seen.append((tensors["h"].clone(), len(fake.events("launch"))))

    made = serve(folder, run_call, CpuGpus(fake))(32).eval()
    x = torch.randn(16, 32)
    with torch.no_grad():
        made(x)
    [(h, launched)] = seen
    assert launched == 0
    torch.testing.assert_close(h, x @ made.linear.weight.T)


def test_it_is_the_original_where_the_kernels_do_not_serve(folder: Path) -> None:
    made, first = module_of(folder).Model(32).eval(), original()
    assert list(made.state_dict()) == list(first.state_dict())
    made.load_state_dict(first.state_dict())
    x = torch.randn(16, 32)
    with torch.no_grad():
        torch.testing.assert_close(made(x), first(x))
    assert dict(made.cudal2.fallbacks) == {"the inputs are not on cuda": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model, x: (model, x[:8]), "x has the shape"),
        (lambda model, x: (model.double(), x.double()), "x is float64, not f32"),
        (
            lambda model, x: (model, x.T.contiguous().T[:, :32] if x.shape[0] == 32 else x.t().contiguous().t()),
            "not contiguous",
        ),
        (lambda model, x: (model.train(), x), "in training mode"),
        (lambda model, x: (model, torch.cat([x.flatten(), x[0, :1]])[1:].view(16, 32)), "x is not aligned"),
        (lambda model, x: (model, torch.nn.Parameter(x)), ""),
    ],
    ids=["shape", "type", "strides", "training", "alignment", "parameter"],
)
def test_what_differs_falls_back_with_its_reason(model: Any, change: Any, reason: str) -> None:
    model, x = change(model, torch.randn(16, 32))
    with torch.no_grad():
        found = model(x)
        expected = torch.nn.functional.linear(x, model.linear.weight) * model.scale + model.shift
    assert bool(model.cudal2.fallbacks) is bool(reason)
    if reason:
        torch.testing.assert_close(found, expected)
        assert any(reason in said for said in model.cudal2.fallbacks)


def test_gradients_autocast_and_keywords(model: Any) -> None:
    x = torch.randn(16, 32)
    model(x).sum().backward()
    assert model.linear.weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(x)
    assert [said.split(" ", 1)[0] for said in model.cudal2.fallbacks] == ["gradients", "autocast"]
    with torch.no_grad():
        model(x=x)
    assert model.cudal2.served == 1


def test_other_arguments_of_the_constructor_fall_back(folder: Path, fake: FakeDriver) -> None:
    served = serve(folder, module_of(folder).run_call, CpuGpus(fake))
    x = torch.randn(16, 32)
    for made, same in ((served(32, 2.0), True), (served(width=32), True), (served(32, 3.0), False)):
        with torch.no_grad():
            made.eval()(x)
        assert made.cudal2.served == int(same)
    assert fake.events("launch")[2:] == []


def test_another_gpu_and_a_refused_cubin_fall_back(folder: Path, fake: FakeDriver) -> None:
    x = torch.randn(16, 32)
    with torch.no_grad():
        other = serve(folder, module_of(folder).run_call, CpuGpus(fake, capability=80))(32).eval()
        other(x)
        assert list(other.cudal2.fallbacks) == ["the kernels are for sm_90a; cpu is sm_80"]
        fake.machine(1, sms=114)
        fewer = serve(folder, module_of(folder).run_call, CpuGpus(fake))(32).eval()
        fewer(x)
    assert "planned for a GPU of 132 SMs" in next(iter(fewer.cudal2.fallbacks))
    assert fake.events("launch") == []


def test_code_runs_on_later_gpus_of_its_generation() -> None:
    assert [fits(Arch.SM_80, each) for each in (75, 80, 86, 90)] == [False, True, True, False]
    assert [fits(Arch.SM_90A, each) for each in (89, 90, 100)] == [False, True, False]


def test_a_damaged_folder_is_refused(folder: Path) -> None:
    (folder / "module.json").write_text('{"form": 2}')
    with pytest.raises(LibraryError, match="damaged, or of another version"):
        serve(folder)


def test_the_problem_has_the_sizes_of_the_task() -> None:
    assert problem_at(task_of()) == PROBLEM
    changed = problem_at(task_of(dims={"rows": 8, "width": 32}))
    assert "rows = 8" in changed
    assert "width = 32" in changed
