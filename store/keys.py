"""Statements that find, insert and overwrite rows by key, each made once: making one costs more than running it.

Writers take turns (`engine.writing`), so that no row appears between a look and an insertion.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, bindparam, insert, select, update


class Keyed:
    """A table with an integer key whose rows are found by other columns, `natural`, that no two rows share."""

    def __init__(self, table: Table, *natural: str) -> None:
        matches = [table.c[name] == bindparam(f"natural_{name}") for name in natural]
        self._natural = natural
        self._find = select(table.c.key).where(*matches)
        self._insert = insert(table)
        self._overwrite = update(table).where(table.c.key == bindparam("natural_key"))

    def find(self, connection: Connection, *values: Any) -> int | None:
        """The key of the row whose natural columns hold these values; None where there is none."""
        given = {f"natural_{name}": value for name, value in zip(self._natural, values, strict=True)}
        return connection.execute(self._find, given).scalar_one_or_none()

    def insert(self, connection: Connection, row: Mapping[str, Any]) -> int:
        """The key of the new row."""
        key: int = (connection.execute(self._insert, row).inserted_primary_key or (0,))[0]
        return key

    def overwrite(self, connection: Connection, key: int, row: Mapping[str, Any]) -> None:
        connection.execute(self._overwrite, {**row, "natural_key": key})
