"""How a measurement was taken: its seeds, the outputs that were compared, and guards that this machine lacks."""

from cudal2_agent.contract.base import Record


class ComparedOutput(Record):
    """An output that was compared element by element: that of launch `launch` in sample `sample` of the candidate."""

    sample: int
    launch: int


class Ruler(Record):
    """The conditions of a measurement, recorded so that it can be judged and repeated.

    `secret`: the seed, from the system's entropy, of operands, memory contents, order of rounds and compared outputs.
    `order`: the seed of the launches' operands and output slots, drawn for this measurement.
    `launches`: launches in one sample of the candidate, each on another pair of the `sets` matrices A and B.
    `reuse_bytes`: operand bytes read between two uses of a matrix within a sample; None where each is used once.
    `zero_us`: the time between two events with nothing between them, which was subtracted from the candidate's last sample;
    None offline, where one pair of events serves many launches.
    `projected`: number of outputs of which every row was checked, with an activation a drawn row and a drawn column.
    `weakened`: guards that were left out, and why.
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
    zero_us: float | None = None
