"""What a proof of a matrix product draws and says, from its seed: the same whatever other kinds of tasks the emulator gets."""

import json

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.base import digest
from cudal2_agent.sandbox.emulator.machine import Machine
from cudal2_agent.sandbox.workers.messages import Verified
from tests.sandbox.emulator.proving import builder, naive, plan, prove

COUNT = "  if (threadIdx.x == 0) atomicInc(counter, gridDim.x * gridDim.y - 1);\n"
RESTORED = plan(args=({"workspace": 0},), workspace={"bytes": 64, "zero": "restored", "zero_bytes": 4})
# Digests of where buffers lay in each run, and of the tests with their messages and seeds; written before modules were tasks.
ADDRESSES, SAID = "5c7866368a977d24", "416b1920fe473166"


def test_addresses_and_tests_of_a_product_stay_as_they_were(monkeypatch, tmp_path):
    placed: list[tuple[int, dict[str, int]]] = []
    place = Machine.place

    def noted(machine: Machine, seed: int) -> None:
        place(machine, seed)
        placed.append((seed, dict(machine.addresses)))

    monkeypatch.setattr(Machine, "place", noted)
    built = builder(tmp_path)(naive(first=COUNT, parameters=", unsigned* counter"), RESTORED)
    answer = prove(built, seed=2)
    assert isinstance(answer, Verified), answer
    said = [[test.tier, test.name, test.message, test.seed] for test in answer.tests]
    assert (digest([json.dumps(placed)]), digest([json.dumps(said)])) == (ADDRESSES, SAID), said
