"""Tensor maps of three dimensions, over operands and over the workspace: what a wrong one does is found."""

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.sandbox.workers.messages import Verified
from tests.sandbox.emulator.kernels.written import FOLDER
from tests.sandbox.emulator.proving import Build, failure, prove

TASK = GemmTask(m=72, n=40, k=128, arch=Arch.SM_90A)
SOURCE = (FOLDER / "packed_workspace.cu").read_text()
PACKED = '"of": "workspace", "element": "f16", "offset_bytes": 256, "dims": [64, "M", "K//64"]'
SLABS = '"of": "A", "dims": [64, "M", "K//64"], "strides": ["K", 64]'


def test_slabs_through_the_workspace_are_verified(build: Build) -> None:
    assert isinstance(prove(build(SOURCE, parse_plan(SOURCE), TASK), TASK), Verified)


@pytest.mark.parametrize(
    ("right", "wrong", "place", "tier"),
    [
        (SLABS, SLABS.replace('"K", 64', '64, "64*M"'), 0, "exact"),  # A as if it were packed already
        (PACKED, PACKED.replace("256", "128"), 1, "emulator"),  # the second launch reads what nobody wrote
        (PACKED, SLABS, 0, "emulator"),  # the first launch stores into A
    ],
    ids=["strides", "offset", "input"],
)
def test_a_wrong_view_is_found(build: Build, right: str, wrong: str, place: int, tier: str) -> None:
    parts = SOURCE.split(right)
    source = right.join(parts[: place + 1]) + wrong + right.join(parts[place + 1 :])
    assert failure(prove(build(source, parse_plan(source), TASK), TASK)).tier == tier
