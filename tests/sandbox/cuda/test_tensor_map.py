"""Descriptors for many addresses: the address is patched if the layout allows it, else the driver encodes each."""

import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.plan.plan import TensorMapSpec
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda import tensor_map
from cudal2_agent.sandbox.cuda.tensor_map import TensorMaps

TASK = GemmTask(m=256, n=256, k=256)
SPEC = TensorMapSpec(of="A", box=(64, 64))
FIRST, SECOND = 0x7F12_3456_0000, 0x0100_0000_0500


def maps(monkeypatch, encode):
    asked = []

    def encoded(_spec, layout, pointer):
        asked.append(pointer)
        return encode(pointer + layout.offset_bytes)

    monkeypatch.setattr(tensor_map, "encode_tensor_map", encoded)
    return TensorMaps(TASK), asked


def plain(pointer):
    return bytes(range(16)) + pointer.to_bytes(8, "little") + bytes(104)


def hashed(pointer):
    """A descriptor with a second field that depends on the address."""
    return plain(pointer)[:-1] + bytes([pointer >> 8 & 0xFF])


def test_an_address_that_is_held_plainly_is_written(monkeypatch):
    made, asked = maps(monkeypatch, plain)
    assert made.encode(SPEC, FIRST) == plain(FIRST)
    count = len(asked)
    assert made.encode(SPEC, SECOND) == plain(SECOND)
    assert made.place_of_address(SPEC) == 16
    assert len(asked) == count, "the driver was asked again"


def test_a_descriptor_with_another_trace_of_the_address_is_always_asked_for(monkeypatch):
    made, asked = maps(monkeypatch, hashed)
    assert made.encode(SPEC, FIRST) == hashed(FIRST)
    count = len(asked)
    assert made.encode(SPEC, SECOND) == hashed(SECOND)
    assert made.place_of_address(SPEC) is None
    assert len(asked) == count + 1


def test_an_unaligned_address_is_left_to_the_driver(monkeypatch):
    made, asked = maps(monkeypatch, plain)
    made.encode(SPEC, FIRST)
    made.encode(SPEC, FIRST + 16)
    assert asked[-1] == FIRST + 16


def test_a_map_behind_the_start_of_the_workspace_holds_its_own_address(monkeypatch):
    made, asked = maps(monkeypatch, plain)
    spec = TensorMapSpec(of="workspace", element="f16", dims=(64, 8, 4), box=(64, 8, 1), offset_bytes=4096)
    assert made.encode(spec, FIRST) == plain(FIRST + 4096)
    count = len(asked)
    assert made.encode(spec, SECOND) == plain(SECOND + 4096)
    assert (made.place_of_address(spec), len(asked)) == (16, count)
