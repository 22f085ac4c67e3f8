"""A trace of a GPU: the products that a recording on the CPU has, and the time of their kernels."""

from pathlib import Path

import pytest

from cudal2_agent.agent.library.advise.products import CountedProduct
from cudal2_agent.agent.library.advise.profiler_trace import read_trace
from cudal2_agent.agent.library.advise.recording import record_model
from tests.agent.library.advise.traces import traced

pytestmark = pytest.mark.gpu

MODEL = """
import torch
def model():
    layers = torch.nn.Linear(512, 1024, bias=False), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    return torch.nn.Sequential(*layers).half()
def inputs():
    return (torch.ones(128, 512, dtype=torch.float16),)
"""


def counts(products: tuple[CountedProduct, ...], passes: int) -> set[tuple[object, ...]]:
    return {(*one.product.model_dump().values(), one.calls / passes) for one in products}


def test_kernels_of_a_real_trace_belong_to_their_products(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity

    file, found = tmp_path / "model.py", {}
    file.write_text(MODEL)
    exec(MODEL, found)
    model, (x,) = found["model"]().cuda(), found["inputs"]()  # type: ignore[operator]
    x = x.cuda()

    def run() -> None:
        y = model(x)
        y.backward(torch.ones_like(y))
        torch.cuda.synchronize()

    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    told = read_trace(traced(tmp_path / "trace.json.gz", run, steps=3, activities=both))
    assert counts(told.products, told.passes) == counts(record_model(file).products, 1)
    assert told.gpu == torch.cuda.get_device_name().removeprefix("NVIDIA ").strip()
    assert told.capability == 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    times = [one.gpu_us or 0.0 for one in told.products]
    assert min(times) > 0
    assert told.gpu_us is not None
    assert sum(times) < told.gpu_us
