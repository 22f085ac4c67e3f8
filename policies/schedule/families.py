"""The kernel families that exist for an architecture."""

from typing import Any

from contract.task import Arch
from policies.schedule.family import Family
from policies.schedule.mma_sync import MMA_SYNC_RATE, MmaSync
from policies.schedule.wgmma_tma import WgmmaTma


def families(arch: Arch) -> tuple[Family[Any], ...]:
    """Families whose kernels run on the architecture, the one made for it first."""
    made_for_it = (WgmmaTma(),) if arch is Arch.SM_90A else ()
    everywhere = (MmaSync(),) if arch in MMA_SYNC_RATE else ()
    return (*made_for_it, *everywhere)
