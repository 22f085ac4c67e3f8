"""A published launcher over a runtime that is made up: everything happens on the caller's stream, nothing else disturbs it."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers.libraries.jobs import FOLDER, PUBLISHED_SOURCE, REDIRECTED_RUNTIME, STAND_IN, redirected_calls
from benchmarks.peers.library_peers import NOT_LAUNCHED, THREW, TIMES_ITSELF
from cudal2_agent.sandbox.building.headers import find_headers

LAUNCHER = Path(__file__).parent / "launcher"
ALLOCATES, TWO_STREAMS, TUNES_ONCE, TUNES_ALWAYS, KEEPS_IN_L2, OWN_GRAPH, THROWS, LAUNCHES_IN_VAIN = range(1, 9)
STREAM, OWN = 7, 99

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")


class Launcher:
    """The library of a launcher, with what it asked the runtime for."""

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))
        self._library.take_calls.restype = ctypes.c_char_p
        self._library.launch.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 3 + [ctypes.c_void_p]

    def __call__(self, what: int, *, capturing: bool) -> tuple[int, list[str]]:
        """The code that it returns, and the calls."""
        self._library.capture(int(capturing))
        code = self._library.launch(None, None, None, None, what, 64, 64, STREAM)
        return code, self._library.take_calls().decode().split()


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    file = tmp_path_factory.mktemp("launcher") / "launcher.so"
    roots = [f"-I{folder}" for folder in (FOLDER, STAND_IN, LAUNCHER, *find_headers().roots)]
    wrapped = "-Wl," + ",".join(f"--wrap={name}" for name in redirected_calls())
    kernel = f'-DKERNEL_FILE="{LAUNCHER / "published.cuh"}"'
    sources = ["-x", "c++", str(PUBLISHED_SOURCE), str(REDIRECTED_RUNTIME), str(LAUNCHER / "fake_runtime.cpp")]
    flags = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-Wl,--no-undefined"]
    subprocess.run(["g++", *flags, kernel, *roots, wrapped, *sources, "-o", str(file)], check=True)
    return Launcher(file)


def test_capture_sees_no_synchronisation_and_no_new_memory(launcher: Launcher) -> None:
    _, first = launcher(ALLOCATES, capturing=False)
    assert first == ["malloc", f"fill@{STREAM}", f"wait@{STREAM}", f"launch@{STREAM}", "wait"]
    assert launcher(ALLOCATES, capturing=True) == (0, [f"fill@{STREAM}", f"launch@{STREAM}"])


def test_launches_on_any_stream_go_to_the_callers(launcher: Launcher) -> None:
    expected = [f"cluster@{STREAM}", f"launch@{STREAM}", f"cooperative@{STREAM}"]
    assert launcher(TWO_STREAMS, capturing=True) == (0, expected)


def test_a_launcher_that_tunes_once_does_so_before_the_capture(launcher: Launcher) -> None:
    code, calls = launcher(TUNES_ONCE, capturing=False)
    assert (code, calls) == (0, [f"event@{STREAM}", f"event@{STREAM}", "wait", "elapsed", f"launch@{STREAM}", "wait"])
    assert launcher(TUNES_ONCE, capturing=True) == (0, [f"launch@{STREAM}"])


def test_a_launcher_that_tunes_in_every_call_is_told(launcher: Launcher) -> None:
    assert launcher(TUNES_ALWAYS, capturing=False)[0] == 0
    assert launcher(TUNES_ALWAYS, capturing=True)[0] == TIMES_ITSELF
    assert launcher(TWO_STREAMS, capturing=True)[0] == 0


def test_windows_of_l2_end_with_the_call_and_nothing_is_set_aside(launcher: Launcher) -> None:
    window = f"window@{STREAM}"
    assert launcher(KEEPS_IN_L2, capturing=True) == (0, [window, f"launch@{STREAM}", window])


def test_a_graph_of_its_own_is_recorded_apart_and_launched_here(launcher: Launcher) -> None:
    code, calls = launcher(OWN_GRAPH, capturing=True)
    assert (code, calls) == (0, [f"begin@{OWN}", f"launch@{OWN}", f"end@{OWN}", f"graph@{STREAM}"])


def test_an_exception_and_a_launch_that_fails_are_codes(launcher: Launcher) -> None:
    """Many published launchers do not look at the status of their launches."""
    assert launcher(THROWS, capturing=False) == (THREW, [])
    assert launcher(LAUNCHES_IN_VAIN, capturing=True) == (NOT_LAUNCHED, [])
    assert launcher(TWO_STREAMS, capturing=True)[0] == 0
