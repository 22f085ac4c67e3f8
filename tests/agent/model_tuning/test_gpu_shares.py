"""GPU time by operators, and a timed pass, over a library that serves products on the CPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import cudal2
from cudal2.torch import torch_session
from cudal2_agent.agent.model_tuning import model_timing
from cudal2_agent.agent.model_tuning.gpu_shares import gpu_shares, kind_of
from cudal2_agent.agent.model_tuning.model_timing import TimedPass, time_pass
from cudal2_agent.agent.model_tuning.tuned_model import open_model
from cudal2_agent.contract.records.task import GemmTask, Layout
from tests.doubles.host_products import HostProducts

TASKS = (
    GemmTask(m=8, n=32, k=64, layout=Layout.TN),
    GemmTask(m=8, n=64, k=32),
    GemmTask(m=32, n=64, k=8, layout=Layout.NT),
)
MODEL = """
import torch
def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(32, 16)).half()
def inputs(tokens):
    return (torch.ones(tokens, 64).half(),)
"""


@pytest.fixture
def products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostProducts]:
    """Serves the first layer of the model."""
    before = torch_session.service()
    made = HostProducts(tmp_path, TASKS)
    torch_session.use_service(made.service)
    enable = cudal2.enable
    monkeypatch.setattr("cudal2.enable", lambda *_: enable())
    monkeypatch.setattr(model_timing, "ROUNDS", 2)
    yield made
    torch_session.use_service(before)


def test_products_are_told_apart_in_a_profile(monkeypatch: pytest.MonkeyPatch, products: HostProducts) -> None:
    """On the CPU no kernel is timed, so each range gets a time of its own here."""
    monkeypatch.setattr(torch.autograd.profiler_util.FunctionEvent, "device_time_total", 1.0, raising=False)
    layer = torch.nn.Linear(64, 32, bias=False).half()
    x = torch.ones(8, 64).half().requires_grad_()

    def step() -> None:
        layer(x).float().square().sum().backward()
        torch.mm(torch.ones(3, 3), torch.ones(3, 3))
        torch.bmm(torch.ones(2, 3, 3), torch.ones(2, 3, 3))

    plain = gpu_shares(step)
    assert (plain.served_us, plain.other_us, plain.batched_us, plain.rest_us) == (0.0, 4.0, 1.0, 0.0)
    with cudal2.enable():
        served = gpu_shares(step)
    assert (served.served_us, served.other_us, served.batched_us, served.whole_us) == (3.0, 1.0, 1.0, 5.0)
    assert products.platform.launches == 3


@pytest.mark.parametrize(("training", "served", "asked"), [(False, 1, 2), (True, 2, 5)])
def test_a_pass_counts_what_is_served_and_compares_it(
    tmp_path: Path, products: HostProducts, training: bool, served: int, asked: int
) -> None:
    """The first layer forward, and the gradient of its weight; the second one has a bias."""
    (tmp_path / "model.py").write_text(MODEL)
    model = open_model(tmp_path / "model.py", (8,))
    ways = "eager", "graph"
    *_, found = time_pass(TimedPass(model, 8, training, products.library.path, "0" * 64, "here", ways), device="cpu")
    assert (found.served, found.asked, found.notes) == (served, asked, ())
    assert [one.way for one in found.ways] == ["eager", "graph"]
    assert found.outputs is not None
    assert 0 < found.outputs.library < 2e-3
    assert products.platform.launches > 10


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("mm", "other"),
        ("addmm", "other"),
        ("bmm", "batched"),
        ("_scaled_dot_product_flash_attention", "attention"),
        ("_scaled_dot_product_cudnn_attention_backward", "attention"),
        ("_grouped_mm", "grouped"),
        ("relu", ""),
        ("permute", ""),
    ],
)
def test_operators_by_what_they_count_as(operator: str, kind: str) -> None:
    assert kind_of(operator) == kind
