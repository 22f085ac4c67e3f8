"""Builds in the background, and the command that does them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch import background_builds
from cudal2.torch.background_builds import BackgroundBuilds, BuildOrder, CommandBuilder
from cudal2_agent.contract.errors import LibraryError, UsageError
from tests.cudal2.torch_ops.matrices import TASK
from tests.doubles.libraries import library_entry

ENTRY = library_entry(TASK)
ORDER = BuildOrder(ENTRY, TASK, Path("/libraries/mine"), 132)
LENT = ORDER._replace(task=TASK.model_copy(update={"m": 12}))


class GatedBuilder:
    """Waits for its gate; then succeeds, or raises what it was given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate, self.orders = threading.Event(), list[BuildOrder]()
        self._error = error

    @property
    def built(self) -> int:
        return len(self.orders)

    def build(self, order: BuildOrder) -> None:
        assert self.gate.wait(10)
        self.orders.append(order)
        if self._error is not None:
            raise self._error


def test_a_call_does_not_wait_for_a_build() -> None:
    builder, done = GatedBuilder(), threading.Event()
    builds = BackgroundBuilds(builder, done.set)
    assert [builds.request(ORDER) for _ in range(3)] == [FallbackCause.BUILDING] * 3
    assert builds.waiting() == (ORDER.name,)
    assert not builds.wait(0.01)
    builder.gate.set()
    assert builds.wait(10)
    assert done.wait(10)
    assert (builder.built, builds.waiting(), builds.failed()) == (1, (), {})


def padded_to(m: int) -> BuildOrder:
    return ORDER._replace(task=TASK.model_copy(update={"m": m}))


def test_lent_kernels_wait_for_the_others_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have a new M in every call."""
    monkeypatch.setattr(background_builds, "MAX_PADDED", 3)
    builder = GatedBuilder()
    builds = BackgroundBuilds(builder, lambda: None)
    asked = [builds.request(padded_to(m)) for m in (15, 14, 13, 12, 15)]
    assert asked == [*[FallbackCause.BUILDING] * 3, FallbackCause.NO_ENTRY, FallbackCause.BUILDING]
    assert builds.request(ORDER) is FallbackCause.BUILDING
    builder.gate.set()
    assert builds.wait(10)
    assert [order.padded for order in builder.orders[1:]] == [False, True, True], "the first was under way"
    assert builds.request(padded_to(12)) is FallbackCause.NO_ENTRY


def test_a_failed_build_is_kept_and_not_repeated() -> None:
    builder = GatedBuilder(LibraryError("the family writes another text today"))
    builder.gate.set()
    builds = BackgroundBuilds(builder, lambda: None)
    builds.request(ORDER)
    assert builds.wait(10)
    assert builds.request(ORDER) is FallbackCause.BUILD_FAILED
    assert (builder.built, builds.failed()) == (1, {ORDER.name: "the family writes another text today"})


def test_an_unexpected_error_ends_its_own_build_only(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = threading.Semaphore(0)
    monkeypatch.setattr(threading, "excepthook", lambda _: raised.release())
    builder = GatedBuilder(ZeroDivisionError())
    builds = BackgroundBuilds(builder, lambda: None)
    other = ORDER._replace(task=TASK.model_copy(update={"m": 8}))
    builds.request(ORDER)
    builds.request(other)
    builder.gate.set()
    assert builds.wait(10)
    assert raised.acquire(timeout=10)
    assert raised.acquire(timeout=10)
    why = "the build ended with an unexpected error"
    assert (builder.built, builds.failed()) == (2, {ORDER.name: why, other.name: why})


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Puts a program in the place of the product's command, beside the running Python."""
    path = folder / "cudal2-agent"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


def test_the_command_names_the_entry_its_library_and_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/said')
    CommandBuilder().build(ORDER)
    said = (tmp_path / "said").read_text("utf-8").split()
    assert said == ["library", "prepare", "--entry", ENTRY.id, "--library", "/libraries/mine", "--sms", "132", "--json"]
    CommandBuilder().build(LENT)
    said = (tmp_path / "said").read_text("utf-8").split()
    assert said[:6] == ["library", "prepare", "--entry", ENTRY.id, "--shape", "12x32x64"]


def test_the_product_has_the_command() -> None:
    import typer

    from cudal2_agent.agent.cli.main import app

    words = ["--entry", ENTRY.id, "--shape", LENT.task.shape, "--library", "h200", "--sms", "132", "--json"]
    command = typer.main.get_command(app).commands["library"].commands["prepare"]  # type: ignore[attr-defined]
    values, left, _ = command.make_parser(typer.Context(command)).parse_args(words)
    assert (values["entry"], values["library"], values["sms"], left) == (ENTRY.id, "h200", "132", [])
    assert (values["shape"], values["as_json"]) == ("12x32x64", True)


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_command_that_fails_tells_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    program(tmp_path, monkeypatch, f"echo first >&{stream}; echo the compiler is missing >&{stream}; exit 2")
    with pytest.raises(LibraryError, match=r"^the compiler is missing$") as raised:
        CommandBuilder().build(ORDER)
    assert "first" in raised.value.log


def test_a_command_that_hangs_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "exec sleep 30")
    monkeypatch.setattr(background_builds, "_TIMEOUT_S", 0.2)
    with pytest.raises(LibraryError, match="timed out"):
        CommandBuilder().build(ORDER)


def test_without_the_command_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="not installed beside this Python"):
        CommandBuilder().build(ORDER)


def test_the_reason_of_a_failure_is_that_of_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice on stderr, and what is printed behind the record, are not the reason."""
    record = '{"status": "failed", "message": "the emulator found it wrong"}'
    program(tmp_path, monkeypatch, f"echo a notice >&2; echo '{record}'; echo a summary; exit 1")
    with pytest.raises(LibraryError, match=r"^the emulator found it wrong$"):
        CommandBuilder().build(LENT)


def test_each_m_of_an_entry_is_built_once() -> None:
    builder = GatedBuilder()
    builder.gate.set()
    builds = BackgroundBuilds(builder, lambda: None)
    for order in (ORDER, LENT, ORDER, LENT):
        builds.request(order)
    assert builds.wait(10)
    assert builder.built == 2
