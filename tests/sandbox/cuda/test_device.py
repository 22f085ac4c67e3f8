"""The stream of a device is cupy's, whatever streams are entered later: without a GPU, on cupy's way to keep streams."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.cuda import device
from cudal2_agent.sandbox.cuda.device import Device

entered: list["Stream | None"] = []
current: list["Stream | None"] = []


class Stream:
    """As cupy's: `with` returns to the stream that was entered before, at last to the null stream, here None."""

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking

    def use(self) -> None:
        current[:] = [self]

    def __enter__(self) -> "Stream":
        entered.append(self)
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        entered.pop()
        current[:] = entered[-1:] or [None]


def test_behind_another_stream_work_goes_to_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> None: ...

    entered.clear()
    cuda = SimpleNamespace(
        Device=lambda _: SimpleNamespace(use=nothing),
        Stream=Stream,
        set_allocator=nothing,
        runtime=SimpleNamespace(deviceSynchronize=nothing, CUDARuntimeError=RuntimeError),
    )
    monkeypatch.setattr(device, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(device, "_count_devices", lambda: 1)
    monkeypatch.setattr(device, "_arch", lambda _: Arch.SM_90A)
    monkeypatch.setattr(device, "Allocator", lambda _: SimpleNamespace(pool=SimpleNamespace(malloc=nothing)))
    opened = Device(0)
    assert current == [opened.stream]
    with Stream(non_blocking=True) as other:
        assert current == [other]
    assert current == [opened.stream]
