"""Reads plain records from the tables, on one connection."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, select

from cudal2_agent.contract.errors import StoreError
from cudal2_agent.store import tables
from cudal2_agent.store.packing import Packer
from cudal2_agent.store.plain_records import Plain, join_observation, join_step

_CONTENTS = 256  # contents and attempts that are kept, for the next steps of the same run


class PlainReader:
    """Plain records by key. It keeps the contents and attempts that it read last, which neighbouring records share."""

    def __init__(self, connection: Connection, packer: Packer) -> None:
        self._connection, self._packer = connection, packer
        self._contents: dict[int, Any] = {}
        self._attempts: dict[int, Sequence[Plain]] = {}

    def run(self, row: Row[Any]) -> Plain:
        """The record of a row of `runs`."""
        return self._unpack(row)

    def content(self, key: int) -> Any:
        """Raises: StoreError where it is missing or damaged."""
        if key not in self._contents:
            if len(self._contents) >= _CONTENTS:
                self._contents.clear()
            self._contents[key] = self._unpack(self._row(tables.contents, key))
        return self._contents[key]

    def attempts(self, observation: int) -> Sequence[Plain]:
        """The attempts of an observation: those that it shares with the ones before, and its own."""
        chain = []
        key: int | None = observation
        while key is not None and key not in self._attempts:
            row = self._row(tables.observations, key)
            chain.append((key, row.shared, self._unpack(row)["attempts"]))
            if row.parent is not None and row.parent >= key:  # a cycle
                raise StoreError(f"observation {key} of the store is damaged; `cudal2-agent trajectories verify` lists such")
            key = row.parent
        before: Sequence[Plain] = self._attempts[key] if key is not None else ()
        if len(self._attempts) >= _CONTENTS:
            self._attempts.clear()
        for place, shared, own in reversed(chain):
            before = self._attempts[place] = [*before[:shared], *own]
        return before

    def observation(self, key: int) -> Plain:
        rest = self._unpack(self._row(tables.observations, key))
        links = tables.observation_contents.c
        query = select(links.content).where(links.observation == key).order_by(links.place)
        places = self._connection.execute(query).scalars().all()
        return join_observation(rest, self.attempts(key), lambda place: self.content(places[place]))

    def steps(self, run_id: str, where: ColumnElement[bool]) -> Iterator[tuple[int, Plain]]:
        """(key of the observation, plain step) of the steps of a run for which the condition holds, by index."""
        own, record = tables.steps, tables.step_records
        query: Select[Any] = (
            select(own, tables.observations.c.hash, record.c.dictionary, record.c.data)
            .join(record, record.c.step == own.c.key)
            .join(tables.observations, tables.observations.c.key == own.c.observation)
            .join(tables.runs, tables.runs.c.key == own.c.run)
            .where((tables.runs.c.run_id == run_id) & where)
            .order_by(own.c.index)
        )
        for row in self._connection.execute(query):
            columns = {"run_id": run_id, "index": row.index, "round": row.round, "observation_id": unnamed(row.hash)}
            profile = self.content(row.profile) if row.profile is not None else None
            yield row.observation, join_step(self._unpack(row), columns, self.content(row.candidate), profile)

    def step_parts(self, run: int, indices: Collection[int]) -> Iterator[tuple[int, Plain]]:
        """(index, record without source and profile) of some steps of the run with this key, by index."""
        own, record = tables.steps, tables.step_records
        query: Select[Any] = (
            select(own.c.index.label("place"), record.c.dictionary, record.c.data)
            .join(record, record.c.step == own.c.key)
            .where((own.c.run == run) & own.c.index.in_(indices))
            .order_by(own.c.index)
        )
        yield from ((row.place, self._unpack(row)) for row in self._connection.execute(query))

    def exchanges(self, run_id: str) -> Iterator[Plain]:
        """By round, sample and turn."""
        own = tables.exchanges
        query = (
            select(own)
            .join(tables.runs, tables.runs.c.key == own.c.run)
            .where(tables.runs.c.run_id == run_id)
            .order_by(own.c.round, own.c.sample, own.c.turn)
        )
        for row in self._connection.execute(query):
            place = {"round": row.round, "sample": row.sample, "turn": row.turn}
            yield {**place, **self._unpack(row), "prompt": self.content(row.prompt)}

    def _row(self, table: Any, key: int) -> Row[Any]:
        row = self._connection.execute(select(table).where(table.c.key == key)).one_or_none()
        if row is None:
            raise StoreError(f"the store lacks row {key} of {table.name}; `cudal2-agent trajectories verify` lists such")
        return row

    def _unpack(self, row: Row[Any]) -> Plain:
        plain: Plain = self._packer.unpack(self._connection, row.dictionary, row.data)
        return plain


def unnamed(hash_: str) -> str:
    """The id in a hash column."""
    return hash_.partition(":")[2]
