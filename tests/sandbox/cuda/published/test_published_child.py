"""Published modules through their whole process, on doubles of a GPU: verdicts, times, weights, and what is suspicious."""

import json

import pytest

pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

from cudal2_agent.contract.records.evaluation import COMPILED, EAGER, EAGER_GRAPH  # noqa: E402
from cudal2_agent.contract.records.module_graph import Graph  # noqa: E402
from cudal2_agent.contract.records.module_task import ModuleTask  # noqa: E402
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role  # noqa: E402
from cudal2_agent.contract.settings.options import TimeOptions  # noqa: E402
from cudal2_agent.sandbox.cuda import device as device_module  # noqa: E402
from cudal2_agent.sandbox.cuda.modules import tensors  # noqa: E402
from cudal2_agent.sandbox.cuda.published import published_cases as cases  # noqa: E402
from cudal2_agent.sandbox.cuda.published import published_child, published_timer  # noqa: E402
from cudal2_agent.sandbox.cuda.published.published_row import PublishedRequest, PublishedRow  # noqa: E402
from cudal2_agent.sandbox.cuda.published.switches import Switches  # noqa: E402
from tests.sandbox.cuda.modules.bench import COLUMNS, ROWS, doubles, node, of  # noqa: E402

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(8, width)
    def forward(self, x):
        return self.linear(x).relu()
width = 40
def get_inputs():
    return [torch.rand(6, 8)]
def get_init_inputs():
    return [width]
"""
F32 = BufferElement.F32
TASK = ModuleTask(
    name="linear and relu",
    problem=PROBLEM,
    buffers=(
        Buffer(name="x", shape=(ROWS, 8), element=F32, role=Role.INPUT),
        Buffer(name="linear_weight", shape=(COLUMNS, 8), element=F32, role=Role.PARAMETER),
        Buffer(name="linear_bias", shape=(COLUMNS,), element=F32, role=Role.PARAMETER),
        Buffer(name="out", shape=(ROWS, COLUMNS), element=F32, role=Role.OUTPUT),
    ),
    graph=Graph(
        nodes=(
            node("turned", "aten.permute.default", of("linear_weight"), [1, 0], shape=(8, COLUMNS)),
            node("sums", "aten.addmm.default", of("linear_bias"), of("x"), of("turned")),
            node("positive", "aten.relu.default", of("sums")),
        ),
        outputs={"out": "positive"},
    ),
)
OPTIONS = TimeOptions(rounds=3, side=False, max_autotune=False)

HEAD = """
import torch
import torch.nn.functional as F
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(8, width)
"""
RIGHT = HEAD + "    def forward(self, x):\n        return F.relu(F.linear(x, self.linear.weight, self.linear.bias))\n"
RENAMED = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        layer = torch.nn.Linear(8, width)
        self.turned = torch.nn.Parameter(layer.weight.t().contiguous())
        self.weight, self.bias = layer.weight, layer.bias
    def forward(self, x):
        return torch.addmm(self.bias, x, self.turned).relu()
"""
DROPPED = HEAD + "    def forward(self, x):\n        return F.relu(F.linear(x, self.linear.weight))\n"
KEPT = HEAD + (
    "        self.kept = {}\n"
    "    def forward(self, x):\n"
    "        key = x.data_ptr()\n"
    "        if key not in self.kept:\n"
    "            self.kept[key] = self.linear(x).relu()\n"
    "        return self.kept[key]\n"
)
HALF = HEAD + (
    "    def forward(self, x):\n"
    "        w = self.linear\n"
    "        return F.relu(F.linear(x.half(), w.weight.half(), w.bias.half())).float()\n"
)
IN_PLACE = HEAD + "    def forward(self, x):\n        x.mul_(2)\n        return self.linear(x.div(2)).relu()\n"
OTHER_CALL = HEAD + (
    "    def __call__(self, x):\n        return self.linear(x).relu()\n    def forward(self, x):\n        return x\n"
)
SWITCHED = "import torch\ntorch.backends.cudnn.benchmark = True\n" + RIGHT
PATCHED = RIGHT + "_synchronize = torch.cuda.synchronize\ntorch.cuda.synchronize = lambda *_: None\n"
LOADED = (
    HEAD.replace("self.linear =", "torch.rand(3)\n        self.linear =")
    + "    def forward(self, x):\n        return self.linear(x).relu()\n"
)
BAKED = HEAD + (
    "        self.w, self.b = self.linear.weight.detach().clone(), self.linear.bias.detach().clone()\n"
    "    def forward(self, x):\n        return F.relu(F.linear(x, self.w, self.b))\n"
)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    device = doubles(monkeypatch)
    cpu = torch.device("cpu")
    monkeypatch.setattr(device_module, "Device", lambda _: device)
    monkeypatch.setattr(tensors, "use_stream", lambda _: cpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(published_timer, "MOST_SETS", 4)
    monkeypatch.setattr(published_child.faulthandler, "dump_traceback_later", lambda *_, **__: None)  # it would end pytest
    monkeypatch.setattr(cases.Cases, "other_streams", lambda _: 0)
    monkeypatch.chdir(tmp_path)

    def run(text, **fields):
        request = PublishedRequest(task=TASK, text=text, device=0, seed=5, time=OPTIONS, limit_s=600, **fields)
        (tmp_path / "request.json").write_text(request.model_dump_json())
        assert published_child.main(["request.json", "answer.json", "stage"]) == 0
        assert (tmp_path / "stage").read_text() == "done"
        return PublishedRow.model_validate(json.loads((tmp_path / "answer.json").read_text()))

    return run


def test_a_right_module_is_measured_in_both_forms_beside_every_baseline(measured):
    row = measured(RIGHT)
    assert row.status == "measured", row.message
    assert row.right, row.tests
    assert row.call is not None
    assert row.graph is not None
    assert [timing.name for timing in row.baselines] == [EAGER, EAGER_GRAPH, COMPILED]
    assert len(row.call.samples_us) == OPTIONS.rounds
    assert row.findings == ()
    assert row.weights == "the same seed"
    assert row.over_eager() is not None
    assert row.over_fastest().baseline == row.fastest.name
    assert {test.name for test in row.tests} >= {"own", "wide", "nan", "inputs-changed-in-place", "timed-published"}


def test_weights_under_other_names_are_found_by_their_seed(measured):
    row = measured(RENAMED)
    assert row.right, row.tests
    assert row.weights == "the same seed"
    assert any("other names" in each for each in row.findings)


def test_weights_that_differ_are_copied_by_name(measured):
    row = measured(LOADED)
    assert row.right, row.tests
    assert "linear.weight, linear.bias copied by name" in row.weights


def test_weights_that_were_baked_in_are_told(measured):
    row = measured(BAKED)
    assert row.right, row.tests
    assert any("fixed when it is built" in each for each in row.findings)


@pytest.mark.parametrize("text", [DROPPED, HALF])
def test_a_wrong_module_is_wrong_by_its_cases_and_timed_all_the_same(measured, text):
    row = measured(text)
    assert not row.right
    assert "normal" in row.wrong_on
    assert row.call is not None


def test_a_kept_answer_is_found(measured):
    row = measured(KEPT)
    assert "inputs-changed-in-place" in row.wrong_on
    assert any("its answer is kept" in each for each in row.findings)
    assert "timed-published" in row.wrong_on, "inputs are new in every round"


def test_a_module_that_writes_its_input_is_not_timed(measured):
    row = measured(IN_PLACE)
    assert row.status == "judged"
    assert row.call is None
    assert any("changes its input x" in test.message for test in row.tests)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (OTHER_CALL, "it replaces __call__"),
        (SWITCHED, "it sets torch.backends.cudnn.benchmark = True"),
        (PATCHED, "it replaces torch.cuda.synchronize"),
    ],
)
def test_what_it_changes_is_told_and_undone_for_the_baselines(measured, text, finding):
    before = torch.backends.cudnn.benchmark
    row = measured(text)
    assert any(finding in each for each in row.findings), row.findings
    assert row.right
    assert torch.backends.cudnn.benchmark == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "load: the file defines no ModelNew"),
        ("raise SystemExit(3)", "load: SystemExit: 3"),
        (HEAD + "    def forward(self, x):\n        return [x, x]\n", "it returns 2 tensors, the problem 1"),
        (HEAD + "    def forward(self, x):\n        return x\n", "out is (6, 8) on cpu"),
        (RIGHT.replace("linear.bias))", "linear.bias)).half()"), "elements of torch.float16"),
        (HEAD + "    def forward(self, x):\n        raise KeyError('no')\n", "cases: KeyError"),
    ],
)
def test_a_file_that_gives_no_answer_says_why(measured, text, message):
    row = measured(text)
    assert row.status == "failed"
    assert message in row.message
    assert not row.right


def test_what_it_changes_is_undone_where_it_fails():
    before, found = torch.backends.cudnn.benchmark, Switches(TASK.arithmetic)

    def fails() -> None:
        with found.learning():
            torch.backends.cudnn.benchmark = not before
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.backends.cudnn.benchmark == before
    assert found.findings() == [f"it sets torch.backends.cudnn.benchmark = {not before}"]


def test_what_cannot_be_captured_is_timed_by_calls_alone(measured, monkeypatch):
    from cudal2_agent.sandbox.cuda.driver import Fault

    real = published_timer.open_lane

    def fails(track, contender, *rest):
        if not contender.streamed:
            raise Fault("cannot be captured in a CUDA graph: a synchronising call")
        return real(track, contender, *rest)

    monkeypatch.setattr(published_timer, "open_lane", fails)
    row = measured(RIGHT)
    assert row.right
    assert row.graph is None
    assert any("cannot be captured" in note for note in row.notes)


def test_work_on_other_streams_is_waited_for(measured, monkeypatch):
    waits = []
    monkeypatch.setattr(cases.Cases, "other_streams", lambda _: 3)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waits.append(1))
    row = measured(RIGHT)
    assert any("3 kernels and copies of a call run on other streams" in each for each in row.findings)
    assert len(waits) > OPTIONS.rounds
