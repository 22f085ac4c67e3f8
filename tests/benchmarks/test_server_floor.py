"""The trivial kernels of server mode's floor, built without a GPU."""

from pathlib import Path

import pytest

from benchmarks.ruler.server_floor import PROBES, TASK, NoKernel, compiled
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.sandbox.inspect import elf


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory):
    return compiled(TASK, REFERENCE_CHIPS[TASK.arch], tmp_path_factory.mktemp("cache"))


def test_every_probe_builds_and_differs_from_the_empty_one_in_its_own_part_only(built) -> None:
    plans = {name: one.plan_for(TASK, 132).launches[0] for name, one in built.items()}
    assert plans.keys() == PROBES.keys()
    empty = plans["empty"]
    assert empty.grid == (132, 1, 1)
    assert plans["empty, 1 CTA"] == empty.model_copy(update={"grid": (1, 1, 1)})
    assert plans["empty, clusters of 2"] == empty.model_copy(update={"cluster": (2, 1, 1)})
    assert plans["empty, programmatic"] == empty.model_copy(update={"programmatic": True})


def test_the_compiler_leaves_the_instructions_that_a_probe_is_to_fetch(built) -> None:
    cubin = elf.read(Path(built["24 KB of instructions"].artifact_path).read_bytes())
    sizes = {section.name: section.size for section in cubin.sections}
    assert 20_000 < sizes[".text.straight"] < 30_000
    assert sizes[".text.nothing"] <= 512


def test_nothing_is_enqueued_without_a_kernel() -> None:
    contender = NoKernel()
    contender.bind(None).enqueue(0)  # stream 0 is not touched, so that no driver is needed
    assert contender.altered() == ()
