"""What the tests of PyTorch's part share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from cudal2.torch import torch_session
from cudal2.torch.aten_override import unregister
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import GemmTask
from tests.doubles.host_products import HostPlatform, HostProducts, offer_compiled


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def in_cpp(compiled_folder: Path, tmp_path: Path) -> Iterator[None]:
    """Operators are replaced by the kernels in C++ until the test ends."""
    offer_compiled(compiled_folder, tmp_path)
    unregister()
    yield
    unregister()


@pytest.fixture(params=["Python", "C++"])
def language(request: pytest.FixtureRequest) -> str:
    """Runs a test with the kernels in either language."""
    if request.param == "C++":
        request.getfixturevalue("in_cpp")
    return str(request.param)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., HostProducts]]:
    """Serves CPU tensors from a small library until the test ends."""
    before = torch_session.service()

    def serve(
        *tasks: GemmTask,
        ready: bool = True,
        platform: HostPlatform | None = None,
        algorithms: Sequence[StoredAlgorithm] = (),
        smallest: int | None = None,
    ) -> HostProducts:
        products = HostProducts(tmp_path, tasks, ready=ready, platform=platform, algorithms=algorithms, smallest=smallest)
        torch_session.use_service(products.service)
        return products

    yield serve
    torch_session.disable()
    torch_session.use_service(before)
