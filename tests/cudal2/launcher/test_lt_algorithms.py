"""Algorithms of cuBLASLt: what reaches the library, how an algorithm is found, and what is told where it is not."""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cudal2.launcher import lt_algorithms
from cudal2.launcher.interpreted import InterpretedLauncher
from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.launcher.lt_algorithms import configuration_of, cublas_version, library_files
from cudal2_agent.contract.errors import DeviceUnavailable, LauncherError
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from tests.cudal2.launcher.conftest import IS_COMPILED
from tests.cudal2.launcher.test_threads import THREADS, in_threads
from tests.doubles.fake_cublaslt import NUMBERS, FakeCublasLt, fake_cublaslt_file
from tests.doubles.fake_driver import FakeDriver
from tests.doubles.libraries import CONFIGURATION, stored_algorithm

TASK = GemmTask(m=256, n=512, k=128)
A, B, D, STREAM = 0x10000, 0x20000, 0x30000, 0x7
OTHER = (67, *NUMBERS[1:])
needs_cpp = pytest.mark.skipif(not IS_COMPILED, reason="the C++ launcher is not built")
Load = Callable[..., LoadedKernel]


@pytest.fixture
def lt() -> Iterator[FakeCublasLt]:
    fake = FakeCublasLt(fake_cublaslt_file())
    yield fake
    fake.reset()


@pytest.fixture
def load(fake: FakeDriver, lt: FakeCublasLt) -> Load:
    """A function that loads an algorithm by the launcher in C++."""
    if not IS_COMPILED:
        pytest.skip("the C++ launcher is not built")
    from cudal2.launcher.compiled import CompiledLauncher

    launcher = CompiledLauncher(0, fake.file)

    def loaded(task: GemmTask = TASK, **changes: Any) -> Any:
        return launcher.load_algorithm(stored_algorithm(task, **changes), (lt.file,))

    return loaded


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(("element", "code"), [(ElementType.F16, 2), (ElementType.BF16, 14)])
def test_a_row_major_product_reaches_a_column_major_library(
    load: Load, lt: FakeCublasLt, layout: Layout, element: ElementType, code: int
) -> None:
    """D' = B' A': B on the left. A matrix of R rows and C columns in memory by rows is one of C rows by columns."""
    lt.suggest()
    load(TASK.model_copy(update={"layout": layout, "element": element})).launch(A, B, D, STREAM)
    [event] = lt.events("multiply")
    left = [code, 128, 512, 128] if layout is Layout.TN else [code, 512, 128, 512]
    right = [code, 256, 128, 256] if layout is Layout.NT else [code, 128, 256, 128]
    assert event == {
        "call": "multiply",
        "types": [68, 0],
        "transposed": [int(layout is Layout.TN), int(layout is Layout.NT)],
        "left": left,
        "right": right,
        "out": [code, 512, 256, 512],
        "scales": [1, 0],
        "addresses": [B, A, D],
        "mark": 0,
        "workspace": 0,
        "workspace_bytes": 0,
        "stream": STREAM,
    }


def test_it_is_found_by_its_words_among_the_suggestions(load: Load, lt: FakeCublasLt) -> None:
    lt.suggest(OTHER, mark=1)
    lt.suggest(mark=2, state=15)
    lt.suggest(mark=3)
    lt.suggest(mark=4)
    load().launch(A, B, D, STREAM)
    [launched] = lt.events("multiply")
    assert launched["mark"] == 3, "the first that can run"


def test_it_asks_as_autotuning_asks(load: Load, lt: FakeCublasLt) -> None:
    pytest.importorskip("cupy")
    from cudal2_agent.sandbox.cuda.baselines.cublaslt import ALGORITHM_BYTES, MAX_SUGGESTIONS
    from cudal2_agent.sandbox.cuda.baselines.library import WORKSPACE_BYTES

    lt.suggest(workspace=WORKSPACE_BYTES)
    load()
    [asked] = lt.events("suggest")
    assert (asked["wanted"], asked["workspace"]) == (MAX_SUGGESTIONS, WORKSPACE_BYTES)
    assert len(lt.record()) == 2 * ALGORITHM_BYTES


def test_its_record_comes_first(load: Load, lt: FakeCublasLt) -> None:
    lt.suggest(mark=1)
    load(opaque=lt.record(mark=9)).launch(A, B, D, STREAM)
    [event] = lt.events("suggest", "multiply")
    assert event["mark"] == 9


@pytest.mark.parametrize("damage", ["other", "short", "foreign", "large"])
def test_a_record_that_is_not_the_algorithm_is_left_for_the_words(load: Load, lt: FakeCublasLt, damage: str) -> None:
    lt.suggest(mark=1)
    records = {
        "other": lt.record(OTHER, mark=9),
        "short": lt.record(mark=9)[:-2],
        "foreign": "00" * 64,
        "large": lt.record(mark=9, workspace=2**27),
    }
    load(opaque=records[damage]).launch(A, B, D, STREAM)
    assert [event["mark"] for event in lt.events("multiply")] == [1]


@pytest.mark.parametrize("suggested", [None, OTHER, NUMBERS])
def test_one_that_is_not_offered_is_refused(load: Load, lt: FakeCublasLt, suggested: tuple[int, ...] | None) -> None:
    """The last one is offered with more workspace than it may have."""
    if suggested is not None:
        lt.suggest(suggested, workspace=2**27 if suggested == NUMBERS else 0)
    with pytest.raises(LauncherError, match="does not suggest the stored algorithm"):
        load()


@pytest.mark.parametrize(
    ("function", "status", "name"),
    [
        ("cublasLtCreate", 1, "CUBLAS_STATUS_NOT_INITIALIZED"),
        ("cublasLtMatmulDescCreate", 13, "CUBLAS_STATUS_EXECUTION_FAILED"),
        ("cublasLtMatmulAlgoGetHeuristic", 99, "unknown error"),
    ],
)
def test_a_call_that_fails_is_named(load: Load, lt: FakeCublasLt, function: str, status: int, name: str) -> None:
    lt.suggest()
    lt.fail(function, status)
    with pytest.raises(LauncherError, match=f"{function}: {name}"):
        load()


def test_a_launch_that_fails_is_named(load: Load, lt: FakeCublasLt) -> None:
    lt.suggest()
    kernel = load()
    lt.fail("cublasLtMatmul", 13)
    with pytest.raises(LauncherError, match="cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"):
        kernel.launch(A, B, D, STREAM)
    with pytest.raises(LauncherError, match="aligned to 256 bytes"):
        kernel.launch(A, B + 128, D, STREAM)


def test_one_handle_serves_all_algorithms_of_a_device(load: Load, lt: FakeCublasLt) -> None:
    lt.suggest()
    for layout in Layout:
        load(TASK.model_copy(update={"layout": layout}))
    assert len(lt.events("create")) == 1


def test_each_stream_and_each_capture_has_a_workspace_of_its_own(load: Load, lt: FakeCublasLt, fake: FakeDriver) -> None:
    lt.suggest(workspace=4096)
    kernel = load()
    for stream in (1, STREAM, 1, STREAM):
        kernel.launch(A, B, D, stream)
    fake.stream(STREAM, identity=STREAM, capture=41)
    kernel.launch(A, B, D, STREAM)
    kernel.launch(A, B, D, STREAM)
    allocated = [event["bytes"] for event in fake.events("allocate")]
    used = [(event["workspace"], event["workspace_bytes"]) for event in lt.events("multiply")]
    assert allocated == [4096] * 3, "a capture's is allocated beside the graph"
    assert used[0] == used[2] != used[1] == used[3]
    assert used[4] == used[5]
    assert used[4] not in used[:4]
    assert {size for _, size in used} == {4096}
    assert kernel.workspaces == 3  # type: ignore[attr-defined]


def test_one_without_a_workspace_allocates_nothing(load: Load, lt: FakeCublasLt, fake: FakeDriver) -> None:
    lt.suggest()
    kernel = load()
    fake.events()
    kernel.launch(A, B, D, STREAM)
    assert fake.events() == []


@pytest.mark.parametrize("workspace", [0, 4096])
def test_threads_launch_with_their_own_operands(load: Load, lt: FakeCublasLt, workspace: int) -> None:
    lt.suggest(workspace=workspace)
    kernel = load()
    in_threads(lambda index: [kernel.launch(0x100000 * (index + 1), B, 0x100 * index, index % 2) for _ in range(20)])
    found = lt.events("multiply")
    assert len(found) == 20 * THREADS
    for event in found:
        _, a, d = event["addresses"]
        assert (a // 0x100000 - 1, event["stream"]) == (d // 0x100, d // 0x100 % 2)
    assert len({(event["stream"], event["workspace"]) for event in found}) == 2


def test_it_is_launched_without_python(load: Load, lt: FakeCublasLt) -> None:
    lt.suggest(mark=5)
    kernel = load()
    assert kernel.c_entry is not None
    address, argument = kernel.c_entry
    signature = ctypes.CFUNCTYPE(
        None, *(ctypes.c_uint64,) * 5, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.c_char_p, ctypes.c_size_t
    )
    launched, message = ctypes.c_int(0), ctypes.create_string_buffer(512)
    signature(address)(argument, A, B, D, 0, STREAM, ctypes.byref(launched), ctypes.cast(message, ctypes.c_char_p), 512)
    assert (launched.value, message.value, lt.events("multiply")[0]["mark"]) == (1, b"", 5)
    lt.fail("cublasLtMatmul", 13)
    launched.value = 0
    signature(address)(argument, A, B, D, 0, STREAM, ctypes.byref(launched), ctypes.cast(message, ctypes.c_char_p), 512)
    assert (launched.value, message.value) == (0, b"cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED")


@needs_cpp
def test_a_missing_library_is_told(fake: FakeDriver) -> None:
    from cudal2.launcher.compiled import CompiledLauncher

    files = ("libnone.so.13", "libnone.so.12")
    with pytest.raises(DeviceUnavailable, match=r"no cuBLASLt: none of libnone\.so\.13, libnone\.so\.12 loads"):
        CompiledLauncher(0, fake.file).load_algorithm(stored_algorithm(TASK), files)
    assert cublas_version(files) == ""


@needs_cpp
def test_another_library_is_told(fake: FakeDriver) -> None:
    from cudal2.launcher.compiled import CompiledLauncher

    with pytest.raises(DeviceUnavailable, match="cuBLASLt is too old: it lacks cublasLtGetVersion"):
        CompiledLauncher(0, fake.file).load_algorithm(stored_algorithm(TASK), (fake.file,))


@needs_cpp
def test_a_library_that_is_loaded_comes_first(lt: FakeCublasLt, tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    shutil.copy(lt.file, other)
    lt.version(120402)
    assert cublas_version((str(other), lt.file)) == "12.4.2"
    assert cublas_version((str(other),)) == "13.1.0"


def test_the_library_of_pytorch_s_cuda_is_looked_for_first() -> None:
    assert library_files("13.0") == ("libcublasLt.so.13", "libcublasLt.so.12")
    assert library_files("12.8") == ("libcublasLt.so.12", "libcublasLt.so.13")
    assert library_files(None) == ("libcublasLt.so.13", "libcublasLt.so.12")


def test_the_launcher_in_python_offers_none(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceUnavailable, match="the launcher in Python runs no algorithm"):
        InterpretedLauncher(0, fake.file).load_algorithm(stored_algorithm(TASK), ())
    monkeypatch.setitem(sys.modules, "cudal2.launcher._native", None)
    assert cublas_version((str(fake_cublaslt_file()),)) == ""


def test_words_are_the_numbers_of_the_header() -> None:
    assert configuration_of(f"layout tn, {CONFIGURATION}") == list(NUMBERS)
    unnamed = "layout nn, algorithm 7, tile 700, stages 41, split-K 6, reduction compute_type, cluster 60"
    assert configuration_of(unnamed) == [7, 700, 41, 6, 2, 60]


@pytest.mark.parametrize("words", ["layout nn", f"{CONFIGURATION}".replace("tile_128x128", "tile_1x1"), "", "tile tile_8x8"])
def test_words_that_say_no_configuration_are_refused(words: str) -> None:
    with pytest.raises(LauncherError, match="is not the configuration of an algorithm"):
        configuration_of(words)


def test_the_names_are_those_of_the_bindings_that_wrote_the_words() -> None:
    bindings = pytest.importorskip("nvmath.bindings.cublasLt")
    kept = json.loads(lt_algorithms._NAMES.read_text("utf-8"))
    enumerations = {"tile": "MatmulTile", "stages": "MatmulStages", "reduction": "ReductionScheme", "cluster": "ClusterShape"}
    for field, enumeration in enumerations.items():
        members = getattr(bindings, enumeration).__members__
        assert {name.lower(): int(member) for name, member in members.items()}.items() <= kept[field].items()


def test_a_record_of_another_length_is_not_read(load: Load, lt: FakeCublasLt) -> None:
    with pytest.raises(ValueError, match="opaque"):
        StoredAlgorithm.model_validate(stored_algorithm(TASK).model_dump() | {"opaque": "0f0"})
    lt.suggest(mark=1)
    load(opaque="0f").launch(A, B, D, STREAM)
    assert [event["mark"] for event in lt.events("multiply")] == [1]
