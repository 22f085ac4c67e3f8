"""Seeded faults of the `wgmma_tma` family where every CTA that splits a tile adds a share of it."""

from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

SPREAD = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=3, splits=2, tma_store=False, spread_sum=True)
TASK = gemm(128, 128, 320, layout="tn")

SPREAD_SUM_FAULTS = (
    Fault(
        name="spread-arrival-does-not-release",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("increment_release(counter, 2", "increment_relaxed(counter, 2"),),
        detectors=("global-race",),
        why="the arrival is counted before the partial sums that it announces are visible",
    ),
    Fault(
        name="spread-wait-does-not-acquire",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32"),),
        detectors=("global-race",),
        why="partial sums may be read from before the moment at which all arrivals were seen",
    ),
    Fault(
        name="spread-counter-not-restored",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("      increment_relaxed(counter, 2 * kSplits - 1);\n", ""),),
        detectors=("workspace",),
        why="departures are not counted, so the next launch finds all arrivals of this one",
    ),
    Fault(
        name="spread-first-departure-restores",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("increment_relaxed(counter, 2 * kSplits - 1);", "increment_relaxed(counter, kSplits);"),),
        detectors=("deadlock", "endless"),
        why="the counter is zero again before the other CTA has seen all arrivals, and it waits for ever",
    ),
    Fault(
        name="spread-waits-for-one-arrival-less",
        schedule=SPREAD,
        task=TASK,
        patches=(Patch("while (load_acquire(counter) < kSplits)", "while (load_acquire(counter) < kSplits - 1)"),),
        detectors=("global-race", "uninitialised-read"),
        why="the first CTA of a tile adds sums that the other has not written",
    ),
)
