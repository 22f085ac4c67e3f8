"""A whole model, timed and compared. Without a GPU the library serves nothing, so that both sides are PyTorch's own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cudal2_agent.agent.model_tuning import model_timing
from cudal2_agent.agent.model_tuning.model_timing import TimedPass, time_pass
from cudal2_agent.agent.model_tuning.tune_records import OutputErrors, PassTimes, Way
from cudal2_agent.agent.model_tuning.tuned_model import open_model
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Activation, GemmTask, Layout
from tests.doubles.host_products import HostProducts
from tests.doubles.libraries import library_entry, write_entries

MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = torch.nn.Linear(64, 32), torch.nn.Linear(32, 16, bias=False)
        self.dropout = torch.nn.Dropout(0.5)
    def forward(self, x, *, scale=1):
        return {"y": self.second(self.dropout(self.first(x).relu())) * scale, "steps": 3}
def model():
    return Model().bfloat16()
def inputs(tokens):
    return {"x": torch.ones(tokens, 64).bfloat16(), "scale": 2}
"""


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(model_timing, "ROUNDS", 3)


def timed(
    tmp_path: Path, text: str = MODEL, tokens: int | None = 8, *, training: bool = False, ways: tuple[Way, ...] = ("eager",)
) -> PassTimes:
    (tmp_path / "model.py").write_text(text)
    library = write_entries(tmp_path / "library.jsonl.gz", [library_entry(GemmTask(m=16, n=16, k=64))])
    model = open_model(tmp_path / "model.py", () if tokens is None else (tokens,))
    *_, last = time_pass(TimedPass(model, tokens, training, library, "0" * 64, "here", ways), device="cpu")
    return last


@pytest.mark.parametrize("training", [False, True])
def test_times_and_errors_of_both_sides(tmp_path: Path, training: bool) -> None:
    found = timed(tmp_path, training=training)
    [way] = found.ways
    assert way.way == "eager"
    assert way.before_us > 0
    assert way.after_us > 0
    assert way.speedup.low <= way.speedup.ratio <= way.speedup.high
    assert (found.tokens, found.served, found.asked, found.notes) == (8, 0, 0, ())
    for errors in (found.outputs, *([found.gradients] if training else [])):
        assert errors is not None
        assert 1e-4 < errors.torch < 2e-2  # of bfloat16
        assert errors.library == errors.torch  # the same kernels, and no dropout
    assert (found.gradients is not None) == training


def test_a_wrong_product_shows_as_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that adds one part in ten to a product, in the place of the one that serves nothing here."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Wrong(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            return out * 1.1 if func is torch.ops.aten.mm.default else out

    monkeypatch.setattr("cudal2.enable", lambda *_: Wrong())
    errors = timed(tmp_path).outputs
    assert errors is not None
    assert errors.library > 5 * errors.torch
    assert not errors.within(1.25)


def test_code_is_compiled_once_without_the_library_and_once_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs as it was compiled, in turns."""
    import torch

    events: list[str] = []

    @contextmanager
    def enabled(*_: object) -> Iterator[None]:
        events.append("(")
        yield
        events.append(")")

    def backend(name: str) -> Callable[..., Callable[..., object]]:
        def compiled(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
            events.append(f"compiled {name}")

            def run(*arguments: object) -> object:
                events.append(name)
                return graph(*arguments)

            return run

        return compiled

    monkeypatch.setattr(model_timing, "_with_library", backend("served"))
    plain, compile_by = backend("plain"), torch.compile

    def compiled(model: torch.nn.Module, backend: object = "inductor", mode: object = None) -> object:  # noqa: ARG001
        return compile_by(model, backend=plain if backend == "inductor" else backend)

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("cudal2.enable", enabled)
    found = timed(tmp_path, ways=("compile",))
    assert [one.way for one in found.ways] == ["compile"], found.notes
    assert events.count("compiled plain") == events.count("compiled served") == 1
    depth, runs = 0, set[tuple[str, bool]]()
    for event in events:
        depth += {"(": 1, ")": -1}.get(event, 0)
        if event in ("plain", "served", "compiled plain", "compiled served"):
            runs.add((event, depth > 0))
    assert runs == {("plain", False), ("compiled plain", False), ("served", True), ("compiled served", True)}


ACTIVATED = """
import torch
def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU()).half()
def inputs(tokens):
    return (torch.randn(tokens, 64).half(),)
"""


@pytest.mark.parametrize(("ways", "served"), [(("compile",), 1), (("eager", "compile"), 0)])
def test_compiled_programs_run_products_with_activations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ways: tuple[Way, ...], served: int
) -> None:
    """On a platform that multiplies on the host. The program without the library stays as it was, in turns with the other.

    The calls are those of an eager pass, unless all ways are compiled.
    """
    import cudal2
    from cudal2.torch import torch_session

    task = GemmTask(m=8, n=32, k=64, layout=Layout.TN, bias=True, activation=Activation.GELU)
    products, before, enable = HostProducts(tmp_path / "small", [task]), torch_session.service(), cudal2.enable
    torch_session.use_service(products.service)
    monkeypatch.setattr("cudal2.enable", lambda *_: enable())
    try:
        found = timed(tmp_path, ACTIVATED, ways=ways)
    finally:
        torch_session.disable()
        torch_session.use_service(before)
    assert [one.way for one in found.ways] == list(ways), found.notes
    assert (found.served, found.asked) == (served, 1)
    runs = model_timing.ROUNDS + model_timing.WARM_RUNS
    assert products.platform.launches > runs
    (entry,) = products.library
    assert products.service.counts.served() == {entry.id: products.platform.launches}
    assert found.outputs is not None
    assert 0 < found.outputs.library < 2e-3


def test_a_way_that_fails_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a capture\n  that is not allowed")

    monkeypatch.setattr(model_timing, "graph_of", broken)
    found = timed(tmp_path, ways=("eager", "graph"))
    assert [one.way for one in found.ways] == ["eager"]
    assert found.notes == ("graph: not measured: RuntimeError: a capture that is not allowed",)


def test_a_model_that_cannot_be_converted_is_timed_without_errors(tmp_path: Path) -> None:
    found = timed(
        tmp_path, MODEL.replace("def forward", "def __deepcopy__(self, memo): raise TypeError('no copies')\n    def forward")
    )
    assert found.outputs is None
    assert found.notes == ("errors: not measured: TypeError: no copies",)
    assert len(found.ways) == 1


@pytest.mark.parametrize(
    ("old", "new", "training", "said"),
    [
        ("ones(tokens, 64)", "ones(tokens, 63)", False, "RuntimeError"),
        ("* scale", "* scale @ 3", False, "TypeError"),
        ('"y": self.second(self.dropout(self.first(x).relu())) * scale, ', "", True, "no output of the model needs a gradient"),
    ],
)
def test_a_model_that_does_not_run_is_one_line(tmp_path: Path, old: str, new: str, training: bool, said: str) -> None:
    assert old in MODEL
    with pytest.raises(UsageError, match=said) as caught:
        timed(tmp_path, MODEL.replace(old, new), training=training)
    assert str(tmp_path / "model.py") in str(caught.value)


@pytest.mark.parametrize(
    ("torch_error", "library_error", "tolerance", "within"),
    [(1e-3, 1.2e-3, 1.25, True), (1e-3, 1.3e-3, 1.25, False), (0.0, 0.0, 1.25, True), (0.0, 1e-9, 1.25, False)],
)
def test_errors_are_tolerated_in_pytorchs_own(torch_error: float, library_error: float, tolerance: float, within: bool) -> None:
    assert OutputErrors(torch=torch_error, library=library_error).within(tolerance) is within
