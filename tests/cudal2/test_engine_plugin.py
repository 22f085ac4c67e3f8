"""The plug-in for serving engines, found and called as engines do it, without an engine and without a GPU."""

from __future__ import annotations

import logging
import multiprocessing
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import torch

import cudal2
from cudal2 import engine_plugin
from cudal2.torch import torch_session
from cudal2.torch.aten_override import unregister
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.host_products import HostPlatform, HostProducts

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("vllm.general_plugins", "sglang.srt.plugins")


def installed(folder: Path) -> None:
    """The entry points of pyproject.toml as an installation has them: files of a distribution in a folder."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = folder / "cudal2_agent_of_test-1.dist-info"
    files.mkdir()
    (files / "METADATA").write_text("Metadata-Version: 2.1\nName: cudal2-agent-of-test\nVersion: 1\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in table["entry-points"].items()
    )
    (files / "entry_points.txt").write_text("\n".join(groups))


class Engine:
    """Loads plug-ins as vLLM does in each of its processes (its source at commit a27dcf135b).

    Once per process, all of the group that the list allows. What a plug-in raises ends the process.
    """

    def __init__(self, group: str, allowed: tuple[str, ...] | None = None) -> None:
        self._group, self._allowed, self._loaded = group, allowed, False

    def load_plugins(self) -> list[str]:
        if self._loaded:
            return []
        self._loaded = True
        functions: dict[str, Callable[[], object]] = {}
        for point in self.found():
            if self._allowed is None or point.name in self._allowed:
                functions[point.name] = point.load()
        for function in functions.values():
            function()
        return list(functions)

    def found(self) -> list[EntryPoint]:
        return [one for one in entry_points(group=self._group) if one.dist is not None and one.dist.name.endswith("of-test")]


def cuda_starts() -> None:
    """What PyTorch does with the calls that wait, when a process initialises CUDA. Its own ones need a GPU.

    It holds a lock that is not reentrant: a call that waits for CUDA in turn would never return.
    """
    waiting, torch.cuda._queued_calls[:] = list(torch.cuda._queued_calls), []
    with torch.cuda._initialization_lock:
        for call, _ in waiting:
            if getattr(call, "func", None) is engine_plugin._serve:
                call()


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation, and a process in which nothing was asked for yet. PyTorch's waiting calls are put back."""
    installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(torch.cuda, "_queued_calls", list(torch.cuda._queued_calls))
    engine_plugin._serve_with_cuda.cache_clear()
    before = torch_session.service()
    yield
    torch_session.disable()
    torch_session.use_service(before)
    engine_plugin._serve_with_cuda.cache_clear()
    unregister()


@pytest.fixture
def products(tmp_path: Path) -> HostProducts:
    """The library of this process, on the CPU."""
    found = HostProducts(tmp_path / "products", [TASK])
    torch_session.use_service(found.service)
    return found


def launches(products: HostProducts) -> int:
    """How many launches one product takes."""
    before = products.platform.launches
    assert_product(torch.mm(*operands()), *operands())
    return products.platform.launches - before


@pytest.mark.parametrize("group", GROUPS)
def test_each_engine_finds_the_plugin_by_its_group(group: str, products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_SERVE", "1")
    assert Engine(group).load_plugins() == ["cudal2"]
    cuda_starts()
    assert launches(products) == 1


def test_an_engine_that_lists_other_plugins_does_not_load_it(products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_SERVE", "1")
    assert Engine(GROUPS[0], allowed=("another",)).load_plugins() == []
    cuda_starts()
    assert launches(products) == 0


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_happens_unless_it_is_asked_for(
    products: HostProducts, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("CUDAL2_SERVE", raising=False)
    else:
        monkeypatch.setenv("CUDAL2_SERVE", value)
    waiting = list(torch.cuda._queued_calls)
    Engine(GROUPS[0]).load_plugins()
    assert torch.cuda._queued_calls == waiting
    assert launches(products) == 0


def test_a_process_without_cuda_stays_as_it_is(products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers requests, and one that is forked before CUDA starts, which inherits what waits."""
    monkeypatch.setenv("CUDAL2_SERVE", "1")
    Engine(GROUPS[0]).load_plugins()
    assert not torch.cuda.is_initialized()
    assert launches(products) == 0
    assert cudal2.status().enabled == ()
    cuda_starts()
    assert cudal2.status().enabled == ("mm", "addmm")


def test_graphs_of_an_engine_stay_as_they_are(products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's cache of compiled graphs would keep the operator for processes that lack it."""
    import torch._inductor.config as config

    monkeypatch.setenv("CUDAL2_SERVE", "1")
    products.service.has_activations = True
    Engine(GROUPS[0]).load_plugins()
    cuda_starts()
    assert cudal2.status().enabled == ("mm", "addmm")
    assert config.pre_grad_custom_pass is None


def test_a_process_that_has_cuda_is_served_at_once(products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_SERVE", "1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    Engine(GROUPS[0]).load_plugins()
    assert launches(products) == 1


def test_two_calls_serve_once(products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_SERVE", "1")
    before = len(torch.cuda._queued_calls)
    for _ in range(2):
        Engine(GROUPS[0]).load_plugins()
    assert len(torch.cuda._queued_calls) == before + 1
    cuda_starts()
    Engine(GROUPS[1]).load_plugins()
    assert launches(products) == 1


def test_a_library_that_is_none_is_one_line_and_the_engine_starts(
    products: HostProducts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDAL2_SERVE", str(tmp_path / "none"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            Engine(GROUPS[0]).load_plugins()
        assert caplog.messages == []
        cuda_starts()
    (line,) = caplog.messages
    assert line.startswith("cudal2: nothing is served in this engine: ")
    assert "does not exist" in line
    assert "note: nothing is served in this engine: " in str(cudal2.status())
    assert launches(products) == 0


def test_a_wrong_setting_is_one_line_and_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDAL2_SERVE", "1")
    monkeypatch.setenv("CUDAL2_BUDGET", "many")
    with caplog.at_level(logging.WARNING):
        Engine(GROUPS[0]).load_plugins()
    (line,) = caplog.messages
    assert line.startswith("cudal2: nothing is served in this engine: setting 'budget'")


def test_whatever_fails_stays_out_of_the_engine(
    products: HostProducts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("one\nand another line")

    monkeypatch.setenv("CUDAL2_SERVE", "1")
    monkeypatch.setattr(torch_session, "enable", fail)
    with caplog.at_level(logging.WARNING):
        Engine(GROUPS[0]).load_plugins()
        cuda_starts()
    assert caplog.messages == ["cudal2: nothing is served in this engine: one and another line"]
    assert launches(products) == 0


def test_the_batch_invariant_mode_loads_no_code_before_the_engine_has_chosen_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first device is current while CUDA starts. What has no kernel is PyTorch's own: engines multiply f32 too."""
    asked: list[dict[str, bool]] = []
    monkeypatch.setenv("CUDAL2_SERVE", "batch-invariant")
    monkeypatch.setattr(torch_session, "enable_invariant", lambda **options: asked.append(options))
    Engine(GROUPS[0]).load_plugins()
    assert asked == []
    cuda_starts()
    assert asked == [{"allow_other": True, "load": False}]


def _in_a_worker(folder: str, answers: multiprocessing.Queue[str]) -> None:
    """What a worker of an engine does: load plug-ins, choose a device, multiply."""
    import sys

    sys.path.insert(0, folder)
    Engine(GROUPS[0]).load_plugins()
    started = torch.cuda.is_initialized()
    cuda_starts()
    torch.mm(*operands())
    answers.put(f"{started}\n{cudal2.status()}")


@pytest.mark.parametrize("library", ["1", "none"])
def test_a_spawned_worker_starts_and_its_status_says_what_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setenv("CUDAL2_SERVE", library if library == "1" else str(tmp_path / library))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[str] = context.Queue()
    worker = context.Process(target=_in_a_worker, args=(str(tmp_path), answers))
    worker.start()
    started, *status = answers.get(timeout=120).splitlines()
    worker.join(60)
    assert (started, worker.exitcode) == ("False", 0)
    assert status[0].startswith("not enabled: PyTorch")
    notes = [line for line in status if line.startswith("note: ")]
    if library == "1":
        assert "so nothing is replaced" in notes[0]
    else:
        assert notes[0].startswith("note: nothing is served in this engine: ")
    assert len(notes) == 1


def test_a_platform_without_a_gpu_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    products = HostProducts(tmp_path / "products", [TASK], platform=HostPlatform(why_missing="there is no GPU"))
    torch_session.use_service(products.service)
    monkeypatch.setenv("CUDAL2_SERVE", "1")
    Engine(GROUPS[0]).load_plugins()
    cuda_starts()
    assert "not enabled: there is no GPU" in str(cudal2.status())
