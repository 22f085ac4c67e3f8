"""Plans of several programmatic launches: the order that griddepcontrol.wait gives, and launches without it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.plan.plan import LaunchPlan
from cudal2_agent.contract.records.evaluation import TestResult, Wrong
from cudal2_agent.sandbox.emulator.chain import OTHERS, Chain
from cudal2_agent.sandbox.emulator.lowering.program import Program, lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Machine, Order
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from cudal2_agent.sandbox.workers.messages import Done, Verified
from tests.sandbox.building.build_kernels import TENSORS
from tests.sandbox.emulator import proving
from tests.sandbox.emulator.launched import HEADER
from tests.sandbox.emulator.launched import kernel as small_kernel
from tests.sandbox.emulator.proving import SCALARS, Build, plan, prove

WAIT = '  asm volatile("griddepcontrol.wait;" ::: "memory");\n'
TRIGGER = '  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");\n'
HEAD = """\
#include <cuda_fp16.h>
#define PLACE const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16
#define INSIDE (row < m && column < n)
typedef const half* In;
__device__ float sum(In a, In b, int row, int column, int n, int k, int from, int to) {
  float total = 0;
  for (int i = from; i < to; ++i) total += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  return total;
}
"""
PARAMETERS = "(In a, In b, half* d, int m, int n, int k, float* work)"


def kernel(name: str, body: str) -> str:
    return f'extern "C" __global__ void {name}{PARAMETERS} {{\n  PLACE;\n{body}}}\n'


def part(name: str, number: int, *, before: str = "", first: str = "", last: str = "") -> str:
    """Writes half of K to its part of the workspace. Code `before` the reads, `first` before the stores, `last` after them."""
    total = f"  const float total = INSIDE ? sum(a, b, row, column, n, k, {number} * (k / 2), {number + 1} * (k / 2)) : 0;\n"
    return kernel(name, f"{before}{total}{first}  if (INSIDE) work[({number} * m + row) * n + column] = total;\n{last}")


def finish(first: str = WAIT, value: str = "work[row * n + column] + work[(m + row) * n + column]") -> str:
    return kernel("finish", f"{first}  if (INSIDE) d[row * n + column] = __float2half({value});\n")


def chain(entries: Sequence[tuple[str, bool]]) -> LaunchPlan:
    """Launches of these entries, each with its programmatic flag."""
    arguments: tuple[dict[str, Any], ...] = (*TENSORS, *SCALARS, {"workspace": 0})
    grid = ("ceil(N/16)", "ceil(M/16)", 1)
    launches = tuple(
        {"entry": entry, "grid": grid, "block": (256, 1, 1), "args": arguments, "programmatic": programmatic}
        for entry, programmatic in entries
    )
    return plan(launches=launches, workspace={"bytes": "8*M*N"})


def lowered(body: str) -> Program:
    return lower(parse(HEADER + small_kernel(body, 1)), "k")


def dependency(answer: object) -> TestResult:
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong), answer.evaluation
    assert (answer.evaluation.test.tier, answer.evaluation.test.name) == ("emulator", "dependency"), answer.evaluation.test
    return answer.evaluation.test


WHOLE = kernel("whole", "  if (INSIDE) work[row * n + column] = sum(a, b, row, column, n, k, 0, k);\n")
ALL = "work[row * n + column]"


@pytest.mark.parametrize(("middle", "edge", "right"), [(WAIT, True, True), ("", True, False), ("", False, True)])
def test_the_last_of_three_is_behind_the_first_only_where_the_middle_waits(
    build: Build, middle: str, edge: bool, right: bool
) -> None:
    source = HEAD + WHOLE + kernel("middle", middle) + finish(value=ALL)
    answer = prove(build(source, chain([("whole", False), ("middle", edge), ("finish", True)])))
    if right:
        assert isinstance(answer, Verified), answer
        return
    message = dependency(answer).message
    assert "read of 4 bytes that launch 1 of the plan may still be using" in message
    assert "ends without griddepcontrol.wait" in message
    assert "of workspace" in message


def test_one_thread_that_waits_is_enough(build: Build) -> None:
    once = "  if (blockIdx.x == 1 && threadIdx.x == 40)\n  " + WAIT
    source = HEAD + WHOLE + kernel("middle", once) + finish(value=ALL)
    answer = prove(build(source, chain([("whole", False), ("middle", True), ("finish", True)])))
    assert isinstance(answer, Verified), answer


def test_a_launch_may_write_over_what_one_ahead_reads_only_behind_it(build: Build) -> None:
    """The third launch stores to the workspace that the first reads."""
    reads = kernel("whole", "  if (INSIDE) work[row * n + column] = 0, d[row * n + column] = work[row * n + column];\n")
    stores = WAIT + "  if (INSIDE) work[row * n + column] = 1;\n"
    makes = "  if (INSIDE) d[row * n + column] = __float2half(sum(a, b, row, column, n, k, 0, k));\n"
    for middle, right in ((WAIT, True), ("", False)):
        source = HEAD + reads + kernel("middle", middle) + kernel("finish", stores + makes)
        answer = prove(build(source, chain([("whole", False), ("middle", True), ("finish", True)])))
        assert isinstance(answer, Verified) if right else "write of" in dependency(answer).message


def test_launches_that_touch_different_places_may_run_together(build: Build) -> None:
    """Two halves of K: the second launch waits after its stores, so a wait for it covers both."""
    for last, right in ((WAIT, True), ("", False)):
        source = HEAD + part("low", 0) + part("high", 1, last=last) + finish()
        answer = prove(build(source, chain([("low", False), ("high", True), ("finish", True)])))
        assert isinstance(answer, Verified) if right else "launch 1" in dependency(answer).message


@pytest.mark.parametrize(
    ("head", "right"), [(WAIT, True), (WAIT + TRIGGER, True), (TRIGGER + WAIT, False)], ids=["at-end", "behind", "ahead"]
)
def test_operands_may_be_read_early_where_the_launch_ahead_lets_nobody_start_before_it_waited(
    build: Build, head: str, right: bool
) -> None:
    """Preceding kernels may still write A and B while a programmatic launch runs."""
    source = HEAD + part("low", 0, before=head) + part("high", 1, first=WAIT) + finish()
    answer = prove(build(source, chain([("low", True), ("high", True), ("finish", True)])))
    assert isinstance(answer, Verified) if right else " of A before" in dependency(answer).message


def test_operands_are_not_read_before_the_wait(build: Build) -> None:
    """Reads alone, of what the preceding kernel may still write; stores come behind the wait."""
    source = HEAD + part("low", 0, first=WAIT) + part("high", 1, before=WAIT) + finish()
    assert (
        " of A before griddepcontrol.wait"
        in dependency(prove(build(source, chain([("low", True), ("high", True), ("finish", True)])))).message
    )


def test_what_a_launch_reads_is_known_though_kernels_ahead_of_the_plan_may_run() -> None:
    """The second of four launches reads; the third does not wait, and the fourth stores to the same place."""
    data, machine = np.zeros(32, np.uint32), Machine()
    address = machine.add("data", data, writable=True)
    wait, own = "griddepcontrol.wait;", "mad.lo.u64 %a0, %wide, 4, %a0;"
    reads = lowered(f"{own} ld.global.u32 %r0, [%a0];")
    stores = lowered(f"{wait} {own} st.global.u32 [%a0], %me;")

    def run(program: Program, order: Order) -> list[str]:
        grid = Grid((1, 1, 1), (32, 1, 1), parameters=address.to_bytes(8, "little"), order=order)
        return [found.kind for found in machine.run(program, grid, Conditions()).findings]

    assert run(reads, Order(2, running=OTHERS)) == ["dependency"]
    assert run(stores, Order(4, running=1 << 3, running_after=1 << 1)) == []
    assert run(reads, Order(5, running=OTHERS)) == ["dependency"]
    assert run(stores, Order(7, running=1 << 6, running_after=1 << 5)) == ["dependency"]


@pytest.mark.parametrize(("last", "right"), [(WAIT, True), ("", False)])
def test_the_next_run_is_behind_this_one_only_where_its_last_launch_waits(build: Build, last: str, right: bool) -> None:
    """The first launch waits for the last launch of the preceding run, which may end before the others if it does not wait."""
    makes = kernel("makes", WAIT + "  if (INSIDE) d[row * n + column] = __float2half(sum(a, b, row, column, n, k, 0, k));\n")
    source = HEAD + makes + kernel("nothing", last)
    answer = prove(build(source, chain([("makes", True), ("nothing", True)])))
    if right:
        assert isinstance(answer, Verified), answer
    else:
        assert "in the run that follows" in dependency(answer).message
    plain = prove(build(source, chain([("makes", False), ("nothing", True)])))
    assert isinstance(plain, Verified), plain


@pytest.mark.parametrize(("first", "right"), [(WAIT, True), ("", False)])
def test_a_first_launch_that_does_not_wait_leaves_kernels_ahead_running(build: Build, first: str, right: bool) -> None:
    makes = kernel("makes", WAIT + "  if (INSIDE) d[row * n + column] = __float2half(sum(a, b, row, column, n, k, 0, k));\n")
    answer = prove(build(HEAD + kernel("nothing", first) + makes, chain([("nothing", True), ("makes", True)])))
    assert isinstance(answer, Verified) if right else "a kernel that precedes the plan" in dependency(answer).message


def test_a_launch_is_told_which_others_may_run() -> None:
    made = Chain()
    first = made.next(1, programmatic=True)
    assert (first.running, first.running_after) == (OTHERS, 0)
    made.ended(first, waited=False, held=False)
    assert made.left == OTHERS
    second = made.next(2, programmatic=True)
    assert (second.running, second.running_after) == (OTHERS | 1 << 1, OTHERS)
    made.ended(second, waited=True, held=True)
    third = made.next(3, programmatic=True)
    assert (third.running, third.running_after) == (OTHERS | 1 << 2, OTHERS)
    made.ended(third, waited=True, held=False)
    fourth = made.next(4, programmatic=False)
    assert (fourth.running, fourth.running_after) == (0, 0)
    made.ended(fourth, waited=False, held=False)
    assert made.left == 0


PREFETCHES = (
    'asm volatile("prefetch.global.L2 [%0];" ::"l"(a));',
    'asm volatile("cp.async.bulk.prefetch.L2.global [%0], 64;" ::"l"(a) : "memory");',
)


@pytest.mark.parametrize(
    ("early", "right"),
    [*((text, True) for text in PREFETCHES), ('if (__ldg((const int*)a) == 12345) asm volatile("nanosleep.u32 1;");', False)],
    ids=["prefetch", "bulk-prefetch", "load"],
)
def test_a_prefetch_into_l2_may_precede_the_wait_and_a_load_may_not(build: Build, early: str, right: bool) -> None:
    """A prefetch brings no value into the kernel, and a later write of the preceding kernel is seen after the wait."""
    makes = f"  {early}\n{WAIT}  if (INSIDE) d[row * n + column] = __float2half(sum(a, b, row, column, n, k, 0, k));\n"
    answer = prove(build(HEAD + kernel("makes", makes), chain([("makes", True)])))
    if right:
        assert isinstance(answer, Verified), answer
        assert any(test.tier == "programmatic" and test.passed for test in answer.tests)
    else:
        assert " of A before griddepcontrol.wait" in dependency(answer).message


# ---- every run ---------------------------------------------------------------------------------------------------------------
def test_every_run_of_a_programmatic_plan_is_behind_a_late_predecessor(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both slots, under every interleaving: a coin over D's address is refused by the first run that skips the wait."""
    seen, run = list[int](), Machine.run

    def noted(machine: Machine, program: Program, grid: Grid, conditions: Conditions, **more: Any) -> Any:
        seen.append(grid.order.running)
        return run(machine, program, grid, conditions, **more)

    monkeypatch.setattr(Machine, "run", noted)
    monkeypatch.setattr(proving, "predict", None)  # a prediction is no proof
    makes = "  if (INSIDE) d[row * n + column] = __float2half(sum(a, b, row, column, n, k, 0, k));\n"
    answer = prove(build(HEAD + kernel("makes", WAIT + makes), chain([("makes", True)])))
    assert isinstance(answer, Verified), answer
    assert len(seen) > 15
    assert set(seen) == {OTHERS}
    for seed in range(1, 9):
        coin = "  if ((unsigned long long)d * 0x9E3779B97F4A7C15ull >> 63)\n  " + WAIT
        dependency(prove(build(HEAD + kernel("makes", coin + makes), chain([("makes", True)])), seed=seed))


def test_the_tier_of_waits_runs_alone(build: Build) -> None:
    makes = "  if (INSIDE) d[row * n + column] = __float2half(sum(a, b, row, column, n, k, 0, k));\n"
    for first, right in ((WAIT, True), ("", False)):
        answer = prove(build(HEAD + kernel("makes", first + makes), chain([("makes", True)])), tier="waits")
        if right:
            assert isinstance(answer, Verified), answer
            assert [test.tier for test in answer.tests] == ["programmatic"] * 4 + ["emulator"]
            assert answer.prediction is None
        else:
            dependency(answer)
