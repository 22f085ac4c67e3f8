"""All families of golden cases."""

import functools

from tests.sandbox.emulator.golden.case import Family
from tests.sandbox.emulator.golden.cases.atomic import atomic_family
from tests.sandbox.emulator.golden.cases.bulk import bulk_family
from tests.sandbox.emulator.golden.cases.cluster import cluster_family
from tests.sandbox.emulator.golden.cases.conversions import conversion_family
from tests.sandbox.emulator.golden.cases.copy import copy_family
from tests.sandbox.emulator.golden.cases.floats import float_family
from tests.sandbox.emulator.golden.cases.integers import comparison_family, integer_family
from tests.sandbox.emulator.golden.cases.matrix import matrix_family
from tests.sandbox.emulator.golden.cases.mbarrier import mbarrier_family
from tests.sandbox.emulator.golden.cases.memory import memory_family
from tests.sandbox.emulator.golden.cases.mma import mma_family
from tests.sandbox.emulator.golden.cases.tensor import tensor_family
from tests.sandbox.emulator.golden.cases.warp import warp_family
from tests.sandbox.emulator.golden.cases.wgmma import wgmma_family
from tests.sandbox.emulator.golden.cases.wmma import wmma_family

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
