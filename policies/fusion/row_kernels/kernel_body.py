"""What every kernel of a program is written with."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from cudal2_agent.contract.plan.plan import Scratch
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.index_algebra import Index
from cudal2_agent.policies.fusion.programs import KernelProgram, Reading
from cudal2_agent.policies.fusion.writer import StatementWriter


class KernelBody(ABC):
    """The statements of one kernel, and how many CTAs run them."""

    ctas = 1
    shared_bytes = 0

    def __init__(self, program: KernelProgram, axes: Axes, buffers: Mapping[int, str]) -> None:
        self.program, self.axes = program, axes
        self.reading = Reading(program, buffers)
        self.writer = StatementWriter(self.reading.pool)
        self.line = self.writer.line
        self.states_read: list[Scratch] = []
        self.states_written: list[Scratch] = []

    def at(self, row: Index, place: Index, lane: int, bound: str | None = None) -> Reading:
        self.reading.row, self.reading.place, self.reading.lane, self.reading.bound = row, place, lane, bound
        return self.reading

    @abstractmethod
    def write(self) -> None: ...

    def store(self, which: list[tuple[Index, Index, int]], bound: str | None, *, by_row: bool) -> None:
        """Everything that is stored for these (row, place, lane), computed in full before the first is stored."""
        stores = [store for store in self.program.stores if store.by_row == by_row]
        exprs = [[self.at(*each, bound).stored(store) for each in which] for store in stores]
        places = [[self.at(*each, bound).target(store) for each in which] for store in stores]
        self.writer.load([each for several in exprs for each in several], self.axes.vector)
        for store, several, targets in zip(stores, exprs, places, strict=True):
            values = [self.writer.write(each) for each in several]
            self.writer.store(store.buffer, store.value.element, targets, values)
