"""The corpus of seeded faults of all families: the emulator must report every fault, and nothing in the right kernels."""

from tests.sandbox.emulator.corpus.fault import Fault
from tests.sandbox.emulator.corpus.latency import LATENCY_FAULTS
from tests.sandbox.emulator.corpus.mma_sync import MMA_SYNC_FAULTS
from tests.sandbox.emulator.corpus.resident import RESIDENT_FAULTS
from tests.sandbox.emulator.corpus.spread_sums import SPREAD_SUM_FAULTS
from tests.sandbox.emulator.corpus.wgmma_tma import WGMMA_TMA_FAULTS

FAULTS: tuple[Fault, ...] = (*MMA_SYNC_FAULTS, *WGMMA_TMA_FAULTS, *LATENCY_FAULTS, *RESIDENT_FAULTS, *SPREAD_SUM_FAULTS)
# Those with recorded verdicts of a GPU and of compute-sanitizer; a family joins when both were run again with its faults.
RECORDED_FAULTS: tuple[Fault, ...] = (*MMA_SYNC_FAULTS, *WGMMA_TMA_FAULTS)
