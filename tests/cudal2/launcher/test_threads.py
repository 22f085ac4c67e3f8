"""Many threads on few streams, and the launcher that stands in where the C++ one is missing."""

import ctypes
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cudal2.launcher.launcher as way_in
from tests.cudal2.launcher.conftest import OUT, kernel_of
from tests.cudal2.launcher.test_launches import MAP_A, SCRATCH, words
from tests.doubles.fake_driver import FakeDriver, fake_driver_file

B, D = 0x20000, 0x30000
THREADS, LAUNCHES = 32, 20


def in_threads(work: Callable[[int], object]) -> None:
    start = threading.Barrier(THREADS)

    def together(index: int) -> object:
        start.wait()
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(together, range(THREADS)))


def test_threads_launch_with_their_own_operands(opened, fake):
    kernel = opened().load(kernel_of({"args": [MAP_A, {"tensor": "A"}, OUT]}))
    in_threads(lambda index: [kernel.launch(0x100000 * (index + 1), B, D, index % 2) for _ in range(LAUNCHES)])
    found = fake.events("launch")
    assert len(found) == THREADS * LAUNCHES
    for event in found:
        assert words(event["arguments"][0])[0] == words(event["arguments"][1])[0]


def test_the_order_on_each_stream_is_that_of_whole_runs(opened, fake):
    launches = {"args": [OUT, SCRATCH]}, {"entry": "sum", "args": [OUT, SCRATCH]}
    kernel = opened().load(kernel_of(*launches, workspace={"bytes": 64, "zero": True}))
    in_threads(lambda index: [kernel.launch(0x1000, B, 0x1000 * (index + 1), index % 2) for _ in range(LAUNCHES)])
    found = fake.events("memset", "launch")
    for stream in (0, 1):
        own = [event for event in found if event["stream"] == stream]
        assert len(own) == 3 * THREADS * LAUNCHES // 2
        for memset, first, second in zip(own[::3], own[1::3], own[2::3], strict=True):
            assert (memset["call"], first["entry"], second["entry"]) == ("memset", "gemm", "sum")
            assert first["arguments"][0] == second["arguments"][0]


def test_without_the_compiled_part_python_launches_and_says_so(fake, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudal2.launcher.compiled", None)
    way_in._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        launcher = way_in.open_launcher(0, fake.file)
        way_in.open_launcher(1, fake.file)
    assert launcher.name == "Python"
    [record] = caplog.records
    assert "the C++ launcher is not built" in record.message
    assert "reinstall with a C++ compiler" in record.message


def test_the_import_needs_neither_torch_nor_a_gpu():
    code = "import sys, cudal2.launcher.launcher\nprint(sorted({'torch', 'cupy', 'cuda', 'numpy'} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# The fake driver itself: no other part of the process may take it for the machine's driver.
def test_the_fake_is_not_found_under_the_name_of_the_real_driver():
    assert hasattr(ctypes.CDLL(FakeDriver(fake_driver_file()).file), "fake_reset")
    try:
        real = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    assert not hasattr(real, "fake_reset")
