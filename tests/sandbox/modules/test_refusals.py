"""Files that are no tasks, and files that attack: each refused in one line that names what was wrong."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.jail.kind import Confinement, confinement
from cudal2_agent.sandbox.modules.tracing.tracer import TraceOptions, Tracer, open_tracer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="traces run in a jail")
JAILED = confinement().kind == "landlock"

FILE = """
import os, socket, subprocess, sys, time, ctypes
import torch
from torch import nn
{top}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        {forward}
rows = 4
def get_inputs():
    {inputs}
def get_init_inputs():
    return []
"""


def problem(top: str = "", init: str = "pass", forward: str = "return x", inputs: str = "return [torch.rand(rows, 3)]") -> str:
    return FILE.format(top=top, init=init, forward=forward, inputs=inputs)


def test_without_a_jail_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.modules.tracing.tracer.confinement", lambda: Confinement(mount_namespace=True))
    with open_tracer() as tracer, pytest.raises(MachineError, match="only in a jail, which this machine lacks"):
        tracer.trace(problem(), "free")


DEEDS = [
    ("open /etc/passwd", problem(top="open('/etc/passwd')")),
    ("open /etc/passwd", problem(forward="return x * len(open('/etc/passwd').read())")),
    ("open mine.txt", problem(init="open('mine.txt', 'w').write('1')")),
    ("open /etc/hostname", problem(top="try:\n    open('/etc/hostname')\nexcept BaseException:\n    pass")),
    ("start a process", problem(top="os.fork()")),
    ("start a process", problem(init="subprocess.run(['true'])")),
    ("start a process", problem(forward="os.system('true'); return x")),
    ("open a connection", problem(init="socket.create_connection(('127.0.0.1', 1))")),
    ("open a connection", problem(top="import urllib.request\nurllib.request.urlopen('http://example.org')")),
    ("send a signal", problem(top="os.kill(os.getppid(), 9)")),
    ("list the folder", problem(top="os.listdir('/')")),
    ("make the folder", problem(top="os.mkdir('mine')")),
]
REFUSED = [
    ("line 3 is no Python", "import torch\n\ndef def"),
    ("defines no Model", "import torch\n"),
    ("defines no get_inputs", "import torch\nclass Model(torch.nn.Module): pass\n"),
    ("is no torch.nn.Module", "class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []"),
    ("No module named 'nothing_like_it'; install the package", problem(top="import nothing_like_it")),
    ("which forward does not take", problem(inputs="return [torch.rand(3), torch.rand(3)]")),
    ("must return a list", problem(inputs="return torch.rand(3)")),
    ("returns no tensor but int", problem(forward="return 3")),
    ("returns a str", problem(forward="return x, 'word'")),
    ("changes its input x", problem(forward="x.relu_(); return x * 2")),
    ("changes its input x", problem(forward="x[0] = 1; return x * 2")),
    ("draws random numbers", problem(forward="return x + torch.rand_like(x)")),
    ("line 11: what the module computes depends on values", problem(forward="return x if x.sum() > 0 else -x")),
    ("depends on values", problem(forward="return x[x > 0]")),
    ("computes another out", problem(forward="sys.calls = getattr(sys, 'calls', 0) + 1; return x * sys.calls")),
    ("line 11: ZeroDivisionError", problem(forward="return x / (1 // 0)")),
    ("aten._fft_r2c.default, which is not among the operators", problem(forward="return torch.fft.fft(x)")),
    ("must be dense", problem(inputs="return [torch.rand(3, 3).to_sparse()]")),
    ("sys.exit", problem(top="sys.exit(3)")),
    ("ended its process", problem(top="os.abort()")),
    ("ended its process", problem(top="ctypes.string_at(8)")),
    ("of memory|more memory", problem(top="held = bytearray(1 << 40)")),
    ("more memory than a trace may use", problem(top="held = torch.ones(25 << 30)")),
    ("ended its process", problem(forward="os._exit(0)")),
    ("changes its input x", problem(forward="y = x.view(-1); y += 1; return y")),
    ("draws random numbers", problem(forward="return nn.functional.dropout(x, 0.5, True)")),
    ("line 11: .*Tensor subclass", problem(top="class Mine(torch.Tensor): pass", forward="return x.relu().as_subclass(Mine)")),
    ("returns no tensor but NoneType", problem(forward="return None")),
    ("no internet connection", problem(init="self.m = torch.hub.load('pytorch/vision', 'resnet18')")),
    ("computes another out", problem(top="nn.Module.__call__ = lambda self, *a: torch.zeros(4, 3)", forward="return x.relu()")),
    ("line 11: RecursionError", problem(forward="return self.forward(x)")),
]


# Files that change PyTorch for themselves: what their module then computes is the task, or they are refused.
PATCHED = [
    ("aten.mul.Tensor", problem(top="torch.relu = lambda x: x * 0", forward="return torch.relu(x)")),
    ("aten.relu.default", problem(top="torch.rand = torch.zeros", forward="return x.relu()")),
    ("", problem(top="torch.Tensor.relu = lambda self: self", forward="return x.relu()")),
]
ACCEPTED = [
    ("aten.slice.Tensor", "x[:, 1:]", [(4, 2)]),  # a view of an input
    ("aten.permute.default", "x.T", [(3, 4)]),
    ("", "x", [(4, 3)]),
    ("aten.mul.Tensor aten.add.Tensor", "(x * 2).add_(1)", [(4, 3)]),  # in place, on a value of its own
    ("aten.max.dim getitem getitem aten.relu.default", "(x.max(1), [x.relu()])", [(4,), (4,), (4, 3)]),
]
INPUTS = [
    ("torch.rand(3, rows).T", "An input that is not contiguous was made contiguous."),
    ("torch.rand(rows, 6)[:, ::2]", "An input that is not contiguous was made contiguous."),
    ("torch.rand(rows, 1).expand(rows, 3)", "An input that is not contiguous was made contiguous."),
    ("torch.randint(0, 5, (rows, 3))", ""),
]


@pytest.mark.skipif(not JAILED, reason="no Landlock here")
@pytest.mark.parametrize(("deed", "text"), DEEDS)
def test_a_deed_is_named(tracer: Tracer, deed: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"mine: the problem file tried to {deed}"):
        tracer.trace(text, "mine")


@pytest.mark.parametrize(("operations", "text"), PATCHED)
def test_a_patched_pytorch_is_the_files_own(tracer: Tracer, operations: str, text: str) -> None:
    """The next file meets PyTorch as it is."""
    assert " ".join(node.op for node in tracer.trace(text, "mine").graph.nodes) == operations
    assert [node.op for node in tracer.trace(problem(forward="return x.relu()"), "next").graph.nodes] == ["aten.relu.default"]


@pytest.mark.parametrize(("operations", "result", "shapes"), ACCEPTED)
def test_views_changes_in_place_and_several_outputs(
    tracer: Tracer, operations: str, result: str, shapes: list[tuple[int, ...]]
) -> None:
    task = tracer.trace(problem(forward=f"return {result}"), "mine")
    assert " ".join(node.op for node in task.graph.nodes) == operations
    assert [buffer.shape for buffer in task.buffers if buffer.role is Role.OUTPUT] == shapes


@pytest.mark.parametrize(("drawn", "note"), INPUTS)
def test_inputs_of_any_stride_and_whole_numbers(tracer: Tracer, drawn: str, note: str) -> None:
    task = tracer.trace(problem(inputs=f"return [{drawn}]", forward="return x + 1"), "mine")
    assert task.notes == ((note,) if note else ())
    assert task.buffers[0].element.value == ("i64" if "randint" in drawn else "f32")


@pytest.mark.parametrize(("reason", "text"), REFUSED)
def test_what_is_no_task_is_refused_in_a_line(tracer: Tracer, reason: str, text: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        tracer.trace(text, "mine")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.skipif(not JAILED, reason="no Landlock here")
def test_native_code_is_held_by_the_jail(tracer: Tracer) -> None:
    """It reaches the system past Python's audit events."""
    reached = "c.open(b'/etc/passwd', 0) >= 0 or c.socket(2, 1, 0) >= 0 or c.fork() >= 0"
    top = f"c = ctypes.pythonapi\nif {reached}: os._exit(9)"
    assert tracer.trace(problem(top=top, forward="return x.relu()"), "mine").graph.nodes


def test_what_it_prints_is_not_the_answer(tracer: Tracer) -> None:
    top = "print('{\"answer\": \"traced\"}' * 100_000)\nos.write(1, b'garbage\\n' * 1000)"
    assert [each.op for each in tracer.trace(problem(top=top, forward="return x.relu()"), "mine").graph.nodes] == [
        "aten.relu.default"
    ]


def test_a_forged_answer_is_checked(tracer: Tracer) -> None:
    forged = "os.open('answer.json', os.O_CREAT | os.O_WRONLY)"
    with pytest.raises(UsageError, match=r"tried to open answer\.json"):
        tracer.trace(problem(top=forged), "mine")


def test_what_a_cpu_lacks_in_half_is_traced(tracer: Tracer) -> None:
    text = problem(forward="return nn.functional.avg_pool3d(x, 2)", inputs="return [torch.rand(1, 2, rows, rows, rows)]")
    task = tracer.trace(text, "mine", arithmetic=Arithmetic.F16)
    assert [each.op for each in task.graph.nodes] == ["aten.avg_pool3d.default"]
    assert all("not compared" in note for note in task.notes)


def test_zero_sizes_are_traced(tracer: Tracer) -> None:
    task = tracer.trace(problem(forward="return x.sum(1)"), "mine", dims={"rows": 0})
    assert [each.shape for each in task.buffers] == [(0, 3), (0,)]


def test_an_installed_package_may_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As einops is: any package on the import path, wherever it was installed."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "turning.py").write_text("def turned(x):\n    return x.transpose(0, 1)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(folder))
    with open_tracer(TraceOptions(timeout_s=120.0)) as opened:
        task = opened.trace("import turning\n" + problem(forward="return turning.turned(x)"), "mine")
    assert [node.op for node in task.graph.nodes] == ["aten.permute.default"]


def test_dropout_is_nothing_unless_it_is_trained(tracer: Tracer) -> None:
    text = problem(init="self.drop = nn.Dropout(0.5)", forward="return self.drop(x)")
    assert not tracer.trace(text, "mine").graph.nodes
    with pytest.raises(UsageError, match="draws random numbers"):
        tracer.trace(text, "mine", training=True)


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_gigabyte_of_text_is_dropped(tracer: Tracer, stream: str) -> None:
    top = f"for _ in range(1024): print('x' * (1 << 20), file=sys.{stream})"
    assert len(tracer.trace(problem(top=top, forward="return x.relu()"), "mine").graph.nodes) == 1


@pytest.mark.slow
def test_a_module_that_never_ends_is_stopped() -> None:
    with open_tracer(TraceOptions(timeout_s=15.0)) as short, pytest.raises(UsageError, match="longer than 15 s"):
        short.trace(problem(forward="\n        while True: pass"), "mine")
    with open_tracer(TraceOptions(timeout_s=15.0)) as short, pytest.raises(UsageError, match="longer than 15 s"):
        short.trace(problem(top="time.sleep(1e9)"), "mine")
