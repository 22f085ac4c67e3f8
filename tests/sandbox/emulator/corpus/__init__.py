"""The corpus of seeded faults of all families: the emulator must report every fault, and nothing in the right kernels."""

from tests.sandbox.emulator.corpus.column_major_a import COLUMN_MAJOR_A_FAULTS
from tests.sandbox.emulator.corpus.fault import Fault
from tests.sandbox.emulator.corpus.latency import LATENCY_FAULTS
from tests.sandbox.emulator.corpus.mma_sync import MMA_SYNC_FAULTS
from tests.sandbox.emulator.corpus.resident import RESIDENT_FAULTS
from tests.sandbox.emulator.corpus.wgmma_tma import WGMMA_TMA_FAULTS
from tests.sandbox.emulator.corpus.wgmma_tma_axes import SPREAD_SUM_FAULTS, TURNED_FAULTS

FAULTS: tuple[Fault, ...] = (
    *MMA_SYNC_FAULTS,
    *WGMMA_TMA_FAULTS,
    *LATENCY_FAULTS,
    *RESIDENT_FAULTS,
    *SPREAD_SUM_FAULTS,
    *TURNED_FAULTS,
    *COLUMN_MAJOR_A_FAULTS,
)
