"""What a failed test shows besides its message: where D is wrong, what stands there instead, where warps wait.

All of it is observed by running the kernel. It says where to look; the cause is the author's to find.
"""

from typing import Literal

from cudal2_agent.contract.base import Record


class Lines(Record):
    """The rows, or the columns, that hold wrong outputs: `count` of `of`, from `first` to `last`.

    `modulus`, `residues`: where only some residue classes are wrong, the smallest modulus that tells them apart and the
    ranges (first, last) of the wrong residues; a modulus of None says that no class is free of wrong outputs.
    """

    first: int
    last: int
    count: int
    of: int
    modulus: int | None = None
    residues: tuple[tuple[int, int], ...] = ()

    @property
    def all(self) -> bool:
        return self.count == self.of


class WrongPlaces(Record):
    """Which outputs are wrong: `wrong` of `outputs`, and the rows and columns that hold them.

    `tile`: the largest aligned (rows, columns) whose tiles are each wrong throughout or right throughout, with
    `wrong_tiles` of `tiles`; None where there is no such size of 8 by 8 or more. `first_tiles`: (row, column) of the first
    wrong tiles, in tiles.
    """

    wrong: int
    outputs: int
    rows: Lines
    columns: Lines
    tile: tuple[int, int] | None = None
    wrong_tiles: int = 0
    tiles: int = 0
    first_tiles: tuple[tuple[int, int], ...] = ()


class BarrierWait(Record):
    """Warps that wait at one barrier of their CTA or cluster, and the barrier's state.

    `barrier`: its name and place; `warps`: who waits, in words; `at`: the instruction and its source lines.
    `phase`: phases that are complete, None where the barrier has none to tell. `arrived` of `expected`: arrivals of the open
    phase, threads where it is not an mbarrier; None where warps wait for no barrier. `missing_bytes`: announced and not
    delivered, negative where more came; `announced`: bytes announced in the open phase.
    `history`: which instructions initialised the barrier, and last arrived, announced and delivered there.
    """

    kind: Literal["mbarrier", "named", "cluster", "none"]
    barrier: str
    warps: str
    at: str
    phase: int | None = None
    arrived: int | None = None
    expected: int | None = None
    missing_bytes: int = 0
    announced: int = 0
    history: tuple[str, ...] = ()


class Symptoms(Record):
    """`places`: where D is wrong, in the failed test or on the inputs of the probes. `values`: what wrong outputs hold.

    `sources`: which elements of A and B the outputs were made of, as the probes saw. `waits`: of a run that did not end.
    """

    places: WrongPlaces | None = None
    values: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    waits: tuple[BarrierWait, ...] = ()
