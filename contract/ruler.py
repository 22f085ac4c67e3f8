"""How a measurement was taken: what was drawn by chance, what was looked at, and which guards this machine did not have."""

from contract.base import Record


class ComparedOutput(Record):
    """An output that was compared element by element: launch `launch` of the candidate's sample `sample`."""

    sample: int
    launch: int


class Ruler(Record):
    """What a measurement followed from and looked at, so that it can be judged and taken again.

    `secret`: the seed, from the system's entropy, of operands, contents of memory, order of rounds and places looked at.
    `order`: the seed of the order of pairs of operands, which all contenders of a worker share. `launches`: of one sample of
    the candidate, each on another pair of `sets` matrices A and B. `reuse_bytes`: operand bytes read between two uses of a
    matrix within a sample, None where each was used once. `projected`: outputs of which every row was checked. `weakened`:
    guards that were left out, and why.
    """

    secret: int
    order: int
    sets: int
    launches: int
    ring_bytes: int
    reuse_bytes: int | None
    projected: int
    compared: tuple[ComparedOutput, ...] = ()
    weakened: tuple[str, ...] = ()
