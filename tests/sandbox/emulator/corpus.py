"""The corpus of seeded faults over both families: the emulator must find every one of them, and nothing without them."""

from tests.sandbox.emulator.corpus_mma_sync import MMA_SYNC_FAULTS
from tests.sandbox.emulator.corpus_wgmma_tma import WGMMA_TMA_FAULTS
from tests.sandbox.emulator.fault import Fault

FAULTS: tuple[Fault, ...] = (*MMA_SYNC_FAULTS, *WGMMA_TMA_FAULTS)
