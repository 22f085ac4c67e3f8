"""Words of constant bank 0 that machine code may read besides the kernel's parameters.

The driver fills the bank before each launch: sizes of the grid and windows of memory, but also the launch counter, the
handle of the running graph and environment registers. ptxas itself reads the first two; no honest code reads the others.
Source: found by assembling every special register and address conversion for each architecture with ptxas 13.0.
"""

from dataclasses import dataclass

from cudal2_agent.contract.records.task import Arch

_WORD = 4


@dataclass(frozen=True)
class Bank:
    """`parameters`: where they start. `allowed`: words before them. `indexed`: the same, where a register is added.

    On sm_100 the offset of the words for clusters depends on the size of the cluster.
    """

    parameters: int
    allowed: frozenset[int]
    indexed: frozenset[int] = frozenset()

    def allows(self, offset: int, *, indexed: bool) -> bool:
        """Whether code may read at a byte offset."""
        if indexed:
            return offset in self.indexed
        return offset >= self.parameters or offset in self.allowed


def _words(*ranges: tuple[int, int]) -> frozenset[int]:
    """The words of ranges of byte offsets, both ends included."""
    return frozenset(offset for first, last in ranges for offset in range(first, last + 1, _WORD))


_SM_80 = Bank(
    0x160,
    _words(
        (0x0, 0x14),  # sizes of CTA and grid
        (0x18, 0x24),  # windows of shared and local memory
        (0x28, 0x2C),  # stack, dynamic shared memory
        (0x40, 0x44),  # window of parameters
        (0x50, 0x54),  # window of constants
        (0x10C, 0x10C),  # number of SMs
        (0x114, 0x114),  # size of shared memory
        (0x118, 0x11C),  # descriptor of global memory
        (0x120, 0x12C),  # reserved shared memory, end of the window of parameters
    ),
)
_SM_90 = Bank(
    0x210,
    _words(
        (0x0, 0x14),
        (0x18, 0x24),
        (0x28, 0x2C),
        (0x68, 0x6C),
        (0xD0, 0xD4),
        (0x10C, 0x10C),
        (0x114, 0x114),
        (0x13C, 0x18C),  # clusters
        (0x198, 0x1A4),
        (0x208, 0x20C),
    ),
)
_SM_100 = Bank(
    0x380,
    _words(
        (0x120, 0x124),  # window of constants
        (0x16C, 0x16C),  # size of shared memory
        (0x2D0, 0x2D0),  # number of SMs
        (0x2F0, 0x2FC),  # windows of shared and local memory
        (0x348, 0x354),  # window of parameters
        (0x358, 0x35C),  # descriptor of global memory
        (0x360, 0x36C),  # size of a CTA, whether there are clusters
        (0x370, 0x37C),  # size of the grid, stack
    ),
    _words((0x278, 0x27C), (0x2A0, 0x2CC)),
)
BANKS: dict[Arch, Bank] = {
    Arch.SM_80: _SM_80,
    Arch.SM_86: _SM_80,
    Arch.SM_89: _SM_80,
    Arch.SM_90A: _SM_90,
    Arch.SM_100A: _SM_100,
}
