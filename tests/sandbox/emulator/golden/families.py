"""All families of golden cases."""

import functools

from tests.sandbox.emulator.golden.atomic_cases import atomic_family
from tests.sandbox.emulator.golden.bulk_cases import bulk_family
from tests.sandbox.emulator.golden.case import Family
from tests.sandbox.emulator.golden.cluster_cases import cluster_family
from tests.sandbox.emulator.golden.conversions import conversion_family
from tests.sandbox.emulator.golden.copy_cases import copy_family
from tests.sandbox.emulator.golden.floats import float_family
from tests.sandbox.emulator.golden.integers import comparison_family, integer_family
from tests.sandbox.emulator.golden.matrix_cases import matrix_family
from tests.sandbox.emulator.golden.mbarrier_cases import mbarrier_family
from tests.sandbox.emulator.golden.memory_cases import memory_family
from tests.sandbox.emulator.golden.mma_cases import mma_family
from tests.sandbox.emulator.golden.tensor_cases import tensor_family
from tests.sandbox.emulator.golden.warp_cases import warp_family
from tests.sandbox.emulator.golden.wgmma_cases import wgmma_family
from tests.sandbox.emulator.golden.wmma_cases import wmma_family

_MAKERS = (
    *(float_family, conversion_family, integer_family, comparison_family, memory_family, atomic_family, warp_family),
    *(matrix_family, mma_family, wmma_family, copy_family, mbarrier_family, tensor_family, bulk_family, cluster_family),
    wgmma_family,
)


@functools.cache
def families() -> tuple[Family, ...]:
    return tuple(maker() for maker in _MAKERS)


def family(name: str) -> Family:
    """A family by its name. Raises: KeyError."""
    return {one.name: one for one in families()}[name]
