"""Values by which a kernel could recognise the emulator: special registers match a chip's, addresses are unpredictable."""

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.records.evaluation import Wrong
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.emulator.addressing import ADDRESS_SPAN, GRANULE_BYTES, LOWEST_ADDRESS
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.large.coverage import UNLIMITED_SMS, resolve_for_few_sms
from cudal2_agent.sandbox.emulator.machine import Interleaving, Machine
from cudal2_agent.sandbox.workers.messages import Done, Verified
from tests.sandbox.emulator.launched import Array, kernel, launch
from tests.sandbox.emulator.proving import TASK, Build, naive, plan, prove

INTERLEAVINGS = [(Interleaving.EAGER, 0), (Interleaving.LATEST, 0), *((Interleaving.RANDOM, seed) for seed in range(6))]
under_every_interleaving = pytest.mark.parametrize(("interleaving", "seed"), INTERLEAVINGS)
REGISTERS = ("smid", "nsmid", "warpid", "nwarpid", "total_smem_size")
WARPS, CTAS = 4, 40


def identities(interleaving: Interleaving, seed: int, sms: int) -> Array:
    """The registers of every warp of a grid. Shape: (CTAs, warps, registers)."""
    out = np.zeros((CTAS, WARPS, len(REGISTERS)), np.uint32)
    reads = "".join(f"mov.u32 %r{4 + i}, %{name}; st.global.u32 [%rd0+{4 * i}], %r{4 + i};" for i, name in enumerate(REGISTERS))
    place = f"mad.lo.u32 %r2, %r0, {WARPS}, %r1; mul.wide.u32 %rd0, %r2, {4 * len(REGISTERS)}; add.u64 %rd0, %rd0, %a0;"
    body = (
        f"mov.u32 %r0, %ctaid.x; shr.u32 %r1, %me, 5; {place} and.b32 %r3, %me, 31; setp.ne.u32 %p0, %r3, 0; @%p0 ret; {reads}"
    )
    text = kernel(body, 1, ".shared .b8 some[1000];")
    found = launch(text, out, grid=(CTAS, 1, 1), block=(32 * WARPS, 1, 1), interleaving=interleaving, seed=seed, sms=sms)
    assert (found.kinds, found.stopped) == ([], False)
    return out


@under_every_interleaving
@pytest.mark.parametrize("sms", [1, 7, 132])
def test_registers_name_places_that_the_chip_has(interleaving: Interleaving, seed: int, sms: int) -> None:
    smid, nsmid, warpid, nwarpid, total = np.moveaxis(identities(interleaving, seed, sms), -1, 0)
    assert set(nsmid.flat) == {sms}
    assert set(nwarpid.flat) == {64}
    assert set(total.flat) == {1024}
    assert smid.max() < sms
    assert warpid.max() < 64
    assert (smid == smid[:, :1]).all(), "the warps of a CTA run on one SM"
    assert all(len(set(of_cta)) == WARPS for of_cta in warpid)
    assert len(set(smid.flat)) > min(sms, CTAS) // 2


def test_ctas_share_sms_under_random_interleavings_and_go_round_them_otherwise() -> None:
    spread = [len(set(identities(interleaving, seed, 132)[:, 0, 0])) for interleaving, seed in INTERLEAVINGS]
    assert spread[:2] == [CTAS, CTAS]
    assert max(spread[2:]) < CTAS
    places = {tuple(identities(Interleaving.RANDOM, seed, 132)[:, 0, 0]) for seed in range(4)}
    assert len(places) == 4


def test_windows_of_other_spaces_lie_apart_and_on_4_gib() -> None:
    windows = (core.param_window, core.local_window)
    assert all(window % 2**32 == 0 and window > LOWEST_ADDRESS + 2 * ADDRESS_SPAN for window in windows)
    assert abs(windows[0] - windows[1]) >= 2**32


def test_buffers_lie_as_large_allocations_do_and_where_a_seed_says() -> None:
    def addresses(seed: int | None) -> tuple[int, ...]:
        machine = Machine(seed)
        return tuple(machine.add(name, np.zeros(3 << 20, np.uint8)) for name in "ABD")

    made = addresses(5)
    assert all(address % GRANULE_BYTES == 0 for address in made)
    assert all(after - before >= (3 << 20) + GRANULE_BYTES for before, after in itertools.pairwise(made))
    assert made == addresses(5)
    assert len({made, addresses(6), addresses(None), addresses(None)}) == 4


# ---- kernels ----------------------------------------------------------------------------------------------------------------
READ = '  unsigned {name};\n  asm volatile("mov.u32 %0, %%{name};" : "=r"({name}));\n'
WALK = """\
  for (int tile = {start}; tile < tiles; tile += {step}) {{
    const int place = tile * 256 + threadIdx.x, row = place / n, column = place % n;
    if (row >= m) continue;
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
    d[place] = __float2half(sum);
  }}
"""
TILES = "  const int tiles = (m * n + 255) / 256;\n"
GRID: dict[str, Any] = {"grid": ("SMS", 1, 1)}
LARGE = GemmTask(m=1024, n=512, k=72, arch=TASK.arch)


def walking(start: str, step: str, head: str = "") -> str:
    body = READ.format(name="nsmid") + READ.format(name="smid") + TILES + head + WALK.format(start=start, step=step)
    source = naive(guard="", total="", store="")
    return source.replace(source[source.index("{\n") + 2 : source.rindex("}")], body)


@pytest.mark.parametrize("task", [TASK, LARGE], ids=lambda task: task.shape)
def test_a_kernel_that_strides_by_the_number_of_sms_is_right(build: Build, task: GemmTask) -> None:
    launch_plan = plan(launch=GRID)
    answer = prove(build(walking("blockIdx.x", "nsmid"), launch_plan, task), task, timeout_s=300)
    assert isinstance(answer, Verified), answer
    if task is LARGE:
        few = resolve_for_few_sms(launch_plan, task)
        assert few.launches[0].grid[0] == few.sms < UNLIMITED_SMS


def test_a_kernel_that_takes_a_hint_from_its_sm_is_right(build: Build) -> None:
    """The mapping of threads to outputs depends on the SM."""
    source = naive(first=READ.format(name="smid")).replace("threadIdx.x", "((threadIdx.x + smid) % 256)")
    assert "smid) % 256) / 16" in source
    answer = prove(build(source))
    assert isinstance(answer, Verified), answer


def refused(answer: object) -> str:
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong), answer.evaluation
    return answer.evaluation.test.name


def test_a_kernel_that_takes_its_tile_from_its_sm_is_refused(build: Build) -> None:
    """An SM may run any number of a grid's CTAs."""
    task = GemmTask(m=96, n=512, k=16, arch=TASK.arch)
    assert refused(prove(build(walking("smid", "nsmid"), plan(launch=GRID), task), task)) in ("unwritten", "global-race")


@pytest.mark.parametrize(
    "real",
    ["nsmid != 1", "nsmid % 2 == 0", "smid != 0", "(unsigned long long)a != 0x1000000000ull"],
)
def test_a_kernel_that_is_right_only_where_it_takes_itself_to_be_emulated_is_refused(build: Build, real: str) -> None:
    first = READ.format(name="nsmid") + READ.format(name="smid")
    source = naive(first=first, store="  d[row * n + column] = __float2half(" + real + " ? 0 : sum);\n")
    assert isinstance(prove(build(source)), Done)
