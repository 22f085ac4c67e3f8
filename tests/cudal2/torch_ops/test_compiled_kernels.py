"""The kernels in C++ where they differ from the ones in Python: what they keep, count, withdraw and share between threads."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import cudal2
from cudal2.dispatch.decision import FallbackCause
from cudal2.torch import aten_override, torch_session
from cudal2_agent.contract.records.task import GemmTask, Layout
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.cudal2.torch_ops.test_launched_products import DriverPlatform, aligned
from tests.doubles.fake_driver import FakeDriver, fake_driver_file
from tests.doubles.host_products import HostPlatform, HostProducts, offer_compiled

Serving = Callable[..., HostProducts]
ROOT = Path(__file__).resolve().parents[3]
THREADS, SECONDS = 32, 3.0

pytestmark = pytest.mark.usefixtures("in_cpp")


def opened_routes(products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever C++ asks Python for a route."""
    asked: list[object] = []
    open_route = products.service.open_route

    def counted(*forms: object) -> object:
        asked.append(forms)
        return open_route(*forms)  # type: ignore[arg-type]

    monkeypatch.setattr(products.service, "open_route", counted)
    return asked


def test_python_is_asked_once_for_a_signature(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(TASK)
    asked = opened_routes(products, monkeypatch)
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with cudal2.enable():
        for _ in range(3):
            torch.mm(*operands())
            torch.mm(a, b)
            torch.mm(a.double(), b.double())
    assert len(asked) == 2, "f32 and f64 are both no type of an entry"
    assert products.service.counts.fallbacks() == {FallbackCause.TYPE: 6}
    assert list(products.service.counts.served().values()) == [3]


def every_kind_of_call(products: HostProducts) -> tuple[dict[str, int], dict[FallbackCause, int]]:
    """What is counted after calls of many kinds."""
    a, b = operands()
    odd = torch.empty(a.numel() + 1).half()[1:].view(a.shape).copy_(a)
    calls: list[tuple[torch.Tensor, torch.Tensor]] = [
        *[(a, b)] * 3,
        (odd, b),
        (a.float(), b.float()),
        (a.bfloat16(), b.bfloat16()),
        (torch.zeros(17, 64).half(), b),
        (torch.zeros(0, 64).half(), b),
        (torch.zeros(16, 128).half()[:, ::2], b),
        (torch.zeros(64, 16).half().t(), torch.zeros(32, 64).half().t()),
        (a, b[:63]),
        (a[0], b),
        (a, b.float()),
    ]
    with cudal2.enable():
        for left, right in calls * 2:
            try:
                torch.mm(left, right)
            except RuntimeError:
                continue
        torch.use_deterministic_algorithms(True)
        try:
            torch.mm(a, b)
        finally:
            torch.use_deterministic_algorithms(False)
        torch.addmm(torch.zeros(32).half(), a, b, beta=2)
    return products.service.counts.served(), products.service.counts.fallbacks()


def test_both_languages_count_the_same(tmp_path: Path, serving: Serving) -> None:
    in_cpp = every_kind_of_call(serving(TASK))
    assert cudal2.status().languages == ()
    with cudal2.enable():
        assert cudal2.status().languages == ("C++",)
    shutil.rmtree(tmp_path / "cache")
    aten_override.unregister()
    in_python = every_kind_of_call(serving(TASK))
    with cudal2.enable():
        assert cudal2.status().languages == ("Python",)
    assert in_cpp == in_python
    assert {FallbackCause.UNALIGNED, FallbackCause.DETERMINISTIC, FallbackCause.BIAS, FallbackCause.RANK} <= in_cpp[1].keys()


def test_counts_of_both_ways_add_up(serving: Serving) -> None:
    products = serving(TASK)
    with cudal2.enable():
        torch.mm(*operands())
        products.service.product(*operands())
        torch.mm(torch.zeros(2, 2), torch.zeros(2, 2))
        products.service.product(torch.zeros(2, 2), torch.zeros(2, 2))
    assert list(products.service.counts.served().values()) == [2]
    assert products.service.counts.fallbacks() == {FallbackCause.TYPE: 2}


def test_a_kernel_whose_launch_fails_is_not_launched_again(serving: Serving) -> None:
    platform = HostPlatform()
    platform.failing = True
    products = serving(TASK, platform=platform)
    with cudal2.enable():
        outs = [torch.mm(*operands()) for _ in range(3)]
    for out in outs:
        assert_product(out, *operands())
    assert products.service.product(*operands()) is None
    assert products.service.counts.fallbacks() == {FallbackCause.LAUNCH_FAILED: 4}
    (note,) = products.service.notices.texts()
    assert note.endswith("cuLaunchKernelEx failed")


def test_a_launch_that_ends_with_an_unexpected_error_gives_no_product(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = serving(TASK)
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with cudal2.enable():
        torch.mm(*operands())
        monkeypatch.setattr(products.platform.kernels[0], "_task", None)
        out = torch.mm(*operands())
    assert_product(out, *operands())
    assert products.service.counts.fallbacks() == {FallbackCause.LAUNCH_FAILED: 1}
    assert len(ignored) == 1


def test_what_python_withdraws_is_withdrawn_in_cpp(serving: Serving) -> None:
    products = serving(TASK)
    with cudal2.enable():
        torch.mm(*operands())
        products.platform.kernels[0]._failing = True
        assert products.service.product(*operands()) is None
        products.platform.kernels[0]._failing = False
        torch.mm(*operands())
    assert products.platform.launches == 1
    assert products.service.counts.fallbacks() == {FallbackCause.LAUNCH_FAILED: 2}


def test_a_route_that_waits_for_a_build_is_not_kept(serving: Serving) -> None:
    products = serving(TASK, ready=False)
    with cudal2.enable():
        torch.mm(*operands())
        assert products.service.builds.wait(10)
        for _ in range(100):  # `look_again` follows the build's end
            torch.mm(*operands())
            if products.platform.launches:
                break
            time.sleep(0.05)
    assert products.platform.launches == 1


def test_a_route_of_a_capture_is_not_kept(serving: Serving) -> None:
    products = serving(TASK)
    products.platform.is_capturing = True
    with cudal2.enable():
        torch.mm(*operands())
        assert products.service.counts.fallbacks() == {FallbackCause.CAPTURING: 1}
        products.platform.is_capturing = False
        torch.mm(*operands())
        products.platform.is_capturing = True
        torch.mm(*operands())
    assert products.platform.launches == 2


def test_more_signatures_than_places_are_all_right(serving: Serving) -> None:
    """The cache has 16384 places: some signatures displace others, and are asked for again."""
    products = serving(TASK)
    column, row = torch.arange(150.0)[:, None], torch.arange(150.0)[None]
    with cudal2.enable():
        for _ in range(2):
            for m in range(1, 151):
                for n in range(1, 151):
                    out = torch.mm(column[:m], row[:, :n])
                    assert out.shape == (m, n)
                    assert out[-1, -1] == (m - 1) * (n - 1)
    assert products.service.counts.fallbacks() == {FallbackCause.TYPE: 2 * 150 * 150}


def test_another_service_has_routes_of_its_own(serving: Serving, tmp_path: Path) -> None:
    first = serving(TASK)
    with cudal2.enable():
        torch.mm(*operands())
        second = HostProducts(tmp_path / "second", [TASK.model_copy(update={"m": 32})])
        torch_session.use_service(second.service)
        torch.mm(*operands())
        torch_session.use_service(first.service)
        torch.mm(*operands())
    assert (first.platform.launches, second.platform.launches) == (2, 0)
    assert second.service.counts.fallbacks() == {FallbackCause.NO_ENTRY: 1}


def test_threads_share_a_table_that_grows(serving: Serving) -> None:
    """Every thread multiplies what is served and, each time, a shape that is new to all. No count is lost."""
    tasks = [TASK, TASK.model_copy(update={"n": 64}), TASK.model_copy(update={"layout": Layout.TN})]
    products = serving(*tasks)
    pairs = [(*operands(task), torch.mm(*operands(task))) for task in tasks]
    wrong: list[str] = []
    served, left = [0] * THREADS, [0] * THREADS
    end = time.monotonic() + SECONDS

    def work(number: int) -> None:
        while time.monotonic() < end and not wrong:
            a, b, expected = pairs[(served[number] + number) % len(pairs)]
            if not torch.allclose(torch.mm(a, b), expected, rtol=1e-2, atol=1e-2):
                wrong.append("a product that is served")
            served[number] += 1
            m, n = left[number] % 97 + 1, number + 1 + THREADS * (left[number] // 97)
            if not torch.equal(torch.mm(torch.ones(m, 1), torch.full((1, n), 3.0)), torch.full((m, n), 3.0)):
                wrong.append("a product that is left")
            left[number] += 1

    with cudal2.enable():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert sum(products.service.counts.served().values()) == sum(served)
    assert products.service.counts.fallbacks() == {FallbackCause.TYPE: sum(left)}
    assert len(products.platform.kernels) == len(tasks)


def test_memory_that_cannot_be_had_is_torch_s_own_error(serving: Serving) -> None:
    serving(TASK)
    a, b = torch.ones(1, 1).half().expand(2**30, 1), torch.ones(1, 1).half().expand(1, 2**30)
    with pytest.raises(RuntimeError) as plain:
        torch.mm(a, b)
    with cudal2.enable(), pytest.raises(RuntimeError) as left:
        torch.mm(a, b)
    assert (type(left.value), str(left.value)) == (type(plain.value), str(plain.value))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts are raised, also where the tests run in the background of a shell, which has them ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def multiply_and_wait() -> None:
    """An interrupt is raised between two bytecodes, so not necessarily by the product itself."""
    torch.mm(*operands())
    time.sleep(5)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_a_route_is_opened_reaches_the_program(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(TASK)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(products.service, "open_route", interrupted)
    with cudal2.enable(), pytest.raises(KeyboardInterrupt):
        multiply_and_wait()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_python_launches_withdraws_nothing(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    products = serving(TASK)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with cudal2.enable():
        torch.mm(*operands())
        with monkeypatch.context() as patched:
            patched.setattr(products.platform.kernels[0], "launch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                multiply_and_wait()
        torch.mm(*operands())
    assert (products.platform.launches, products.service.notices.texts()) == (2, ())


def test_kernels_in_cpp_are_registered_over_ones_in_python(serving: Serving, tmp_path: Path, compiled_folder: Path) -> None:
    """As in a process that was begun before `library prepare` had ended. They stay where the file is gone again."""
    shutil.rmtree(tmp_path / "cache")
    products = serving(TASK)

    def multiply(language: str) -> None:
        with cudal2.enable():
            assert cudal2.status().languages == (language,)
            torch.mm(*operands())

    multiply("Python")
    offer_compiled(compiled_folder, tmp_path)
    multiply("C++")
    for file in (tmp_path / "cache").glob("aten-*"):
        file.unlink()
    multiply("C++")
    assert (products.platform.launches, products.service.counts.fallbacks()) == (3, {})
    aten_override.unregister()
    assert_product(torch.mm(*operands()), *operands())
    assert products.platform.launches == 3


def multiply_at_many_addresses(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """Products whose memory begins at every multiple of 64 bytes, because memory of many sizes is taken in between."""
    with cudal2.enable():
        pairs = [(torch.mm(a, b), torch.empty(16 * size + 1)) for size in range(200)]
    return [out for out, _ in pairs]


def test_a_product_goes_through_the_launcher_in_c(serving: Serving) -> None:
    """PyTorch aligns results on the CPU to 64 bytes, the launcher asks for 256: some of the results serve."""
    fake = FakeDriver(fake_driver_file())
    products = serving(TASK, platform=DriverPlatform(fake.file))
    a, b = (aligned(one) for one in operands())
    outs = multiply_at_many_addresses(a, b)
    for out in outs:
        assert_product(out, a, b)
    (served,) = products.service.counts.served().values()
    assert products.service.counts.fallbacks() == ({FallbackCause.UNALIGNED: len(outs) - served})


def test_an_error_of_the_driver_falls_back(serving: Serving) -> None:
    fake = FakeDriver(fake_driver_file())
    products = serving(TASK, platform=DriverPlatform(fake.file))
    a, b = (aligned(one) for one in operands())
    fake.fail("cuLaunchKernelEx", 719)
    try:
        outs = multiply_at_many_addresses(a, b)
    finally:
        fake.reset()
    for out in outs:
        assert_product(out, a, b)
    assert products.service.counts.served() == {}
    assert products.service.counts.fallbacks()[FallbackCause.LAUNCH_FAILED] > 1
    (note,) = products.service.notices.texts()
    assert "cuLaunchKernelEx" in note


def in_a_process(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new process in which C++ kernels serve the task of the tests."""
    begin = f"""
import atexit, os, threading
from pathlib import Path
import torch
torch.set_num_threads(1)
import cudal2
from cudal2.torch import torch_session
from tests.cudal2.torch_ops.matrices import TASK, assert_product, operands
from tests.doubles.host_products import HostProducts
products = HostProducts(Path({str(tmp_path)!r}), [TASK])
torch_session.use_service(products.service)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(
        [sys.executable, "-c", begin + code], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_process_that_is_enabled_ends_cleanly(tmp_path: Path) -> None:
    code = """
def late():
    assert_product(torch.mm(*operands()), *operands())
    torch.mm(torch.zeros(7, 7), torch.zeros(7, 7))
    print(products.platform.launches, products.service.counts.fallbacks())

atexit.register(late)  # runs after the kernels were told that Python ends
cudal2.enable()
def work():
    torch.mm(*operands())
    torch.mm(torch.zeros(3, 3), torch.zeros(3, 3))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    done = in_a_process(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "4 {<FallbackCause.TYPE: 'type'>: 4}\n"


def test_a_forked_child_multiplies_and_ends(tmp_path: Path) -> None:
    code = """
cudal2.enable()
torch.mm(*operands())
assert cudal2.status().languages == ("C++",)
child = os.fork()
if not child:
    torch.mm(*operands())
    torch.mm(torch.zeros(3, 3), torch.zeros(3, 3))
    counts = list(products.service.counts.served().values()), sum(products.service.counts.fallbacks().values())
    os._exit(0 if counts == ([2], 1) else 1)
assert os.waitpid(child, 0)[1] == 0
assert list(products.service.counts.served().values()) == [1]
print("whole")
"""
    done = in_a_process(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def test_a_linear_layer_s_gradients_come_from_autograd_s_threads(serving: Serving) -> None:
    """Four threads go backward at once, none of which holds the interpreter's lock meanwhile."""
    task = GemmTask(m=48, n=64, k=32)
    products = serving(task)
    grads: list[torch.Tensor] = []

    def work() -> None:
        x = torch.ones(48, 64).half().requires_grad_()
        torch.nn.functional.linear(x, torch.full((32, 64), 0.5).half()).sum().backward()
        assert x.grad is not None
        grads.append(x.grad)

    with cudal2.enable():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(grad, torch.full((48, 64), 16.0).half()) for grad in grads)
    assert len(grads) == 4
    assert products.service.counts.served() | products.service.counts.fallbacks()
