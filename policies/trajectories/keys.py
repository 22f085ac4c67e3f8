"""Finds and inserts rows by their integer keys. Writers take turns (`engine.writing`), so that no row appears in between."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, insert, select


def find(connection: Connection, table: Table, where: ColumnElement[bool]) -> int | None:
    """The key of the only row for which the condition holds; None where there is none."""
    return connection.execute(select(table.c.key).where(where)).scalar_one_or_none()


def insert_row(connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
    """The key of the new row."""
    key: int = (connection.execute(insert(table).values(row)).inserted_primary_key or (0,))[0]
    return key
