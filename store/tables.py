"""Tables of the trajectory store, version 4. `migrations/` leads to them from every earlier version.

A record is stored as packed JSON (`packing.py`): a zstd frame in `data`, made with the dictionary that `dictionary` names. The
other columns hold what lists, filters and joins need. A hash is written as its algorithm and its digits, `sha256:0123…`.
Integer keys are internal: exports and records never show them. Records of campaigns are plain JSON in `record`.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    insert,
    select,
    update,
)

VERSION = "0004"  # of the newest migration
SHAPE_CHARS = 40  # of what tells a task from others in a list
SCHEMA = "2"  # in `cudal2_meta`, where version 0.1 looks and then refuses the store

metadata = MetaData()


def _key() -> Column[int]:
    # SQLite counts a primary key by itself only where its type is exactly INTEGER.
    return Column("key", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


def _packed() -> tuple[Column[int], Column[bytes]]:
    """A packed record: the dictionary that made it, None for none, and the zstd frame."""
    return Column("dictionary", ForeignKey("dictionaries.key")), Column("data", LargeBinary, nullable=False)


meta = Table(
    "cudal2_meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
)

migration = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))

# What frames are made with: earlier records of the same purpose, one after the other. The content of a dictionary is that of
# its base followed by `data`, which is a zstd frame made with the base.
dictionaries = Table(
    "dictionaries",
    metadata,
    _key(),
    Column("purpose", String(64), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("base", ForeignKey("dictionaries.key")),
    Column("hash", String(80), nullable=False, unique=True),
    Column("data", LargeBinary, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    _key(),
    Column("run_id", String(128), nullable=False, unique=True),
    Column("created_at", String(40), nullable=False, index=True),
    Column("status", String(16), nullable=False),
    Column("policy", String(64), nullable=False),
    Column("shape", String(SHAPE_CHARS), nullable=False),
    Column("arch", String(16), nullable=False),
    Column("chip", String(128), nullable=False),
    Column("cutlass", String(64), nullable=False),  # the release that the run could retrieve from; empty for none
    *_packed(),
)

# Parts that several records share, each stored once. `kind`: candidate (without its origin), prompt, chunk or profile.
contents = Table(
    "contents",
    metadata,
    _key(),
    Column("kind", String(16), nullable=False),
    Column("hash", String(80), nullable=False),
    *_packed(),
    UniqueConstraint("kind", "hash"),
)

# The attempts of an observation are the first `shared` ones of its parent's, followed by those in its own record.
observations = Table(
    "observations",
    metadata,
    _key(),
    Column("hash", String(80), nullable=False, unique=True),
    Column("parent", ForeignKey("observations.key"), index=True),
    Column("shared", Integer, nullable=False),
    *_packed(),
)

# The contents that the record of an observation names by their place.
observation_contents = Table(
    "observation_contents",
    metadata,
    Column("observation", ForeignKey("observations.key"), primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("content", ForeignKey("contents.key"), nullable=False, index=True),
)

environments = Table(
    "environments",
    metadata,
    _key(),
    Column("label", String(255), nullable=False, unique=True),  # `Environment.key`
)

# One row per step, narrow, so that counting a million of them takes less than a second. The rest is in `step_records`.
steps = Table(
    "steps",
    metadata,
    _key(),
    Column("run", ForeignKey("runs.key"), nullable=False),
    Column("index", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("observation", ForeignKey("observations.key"), nullable=False, index=True),
    Column("candidate", ForeignKey("contents.key"), nullable=False, index=True),
    Column("profile", ForeignKey("contents.key")),
    Column("environment", ForeignKey("environments.key")),
    Column("status", String(24), nullable=False),
    Column("reward", Float),
    Column("time_us", Float),  # median of the measured times
    Column("speedup", Float),  # median of the paired ratios over cuBLASLt-AutoTuning
    UniqueConstraint("run", "index"),
)

step_records = Table(
    "step_records",
    metadata,
    Column("step", ForeignKey("steps.key"), primary_key=True, autoincrement=False),
    Column("hash", String(80), nullable=False),  # of the whole step, its references included: `plain_records.step_hash`
    *_packed(),
)

exchanges = Table(
    "exchanges",
    metadata,
    _key(),
    Column("run", ForeignKey("runs.key"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("sample", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("observation", ForeignKey("observations.key"), index=True),
    Column("prompt", ForeignKey("contents.key"), nullable=False, index=True),
    Column("status", String(16), nullable=False),
    Column("hash", String(80), nullable=False),  # of the whole exchange: `plain_records.exchange_hash`
    *_packed(),
    UniqueConstraint("run", "round", "sample", "turn"),
)

# Lists and statistics group by these columns; over an index alone that is three times as fast.
Index("steps_counted", steps.c.run, steps.c.status, steps.c.environment, steps.c.speedup, steps.c.reward)

Index(
    "steps_with_profile",
    steps.c.profile,
    sqlite_where=steps.c.profile.is_not(None),
    postgresql_where=steps.c.profile.is_not(None),
)

campaigns = Table(
    "campaigns",
    metadata,
    _key(),
    Column("name", String(128), nullable=False, unique=True),
    Column("created_at", String(40), nullable=False),
    Column("record", Text, nullable=False),  # the settings of its runs
)

# The queue: one row per task of a campaign. `place`: the random order in which they are tried. A row with a worker is running
# until `lease_until`, seconds since 1970; after that the worker counts as lost.
campaign_items = Table(
    "campaign_items",
    metadata,
    _key(),
    Column("campaign", ForeignKey("campaigns.key"), nullable=False),
    Column("task", String(80), nullable=False),  # its id
    Column("record", Text, nullable=False),  # the task
    Column("weight", Float, nullable=False),
    Column("place", Float, nullable=False),
    Column("status", String(16), nullable=False),
    Column("worker", String(128)),
    Column("lease_until", Float),
    Column("attempts", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    UniqueConstraint("campaign", "task"),
    Index("campaign_items_by_place", "campaign", "status", "place"),
)

# One row per `ShapeResult`; columns repeat what filters need. `proof_until`: as `lease_until`, for the process that proves it.
shape_results = Table(
    "shape_results",
    metadata,
    _key(),
    Column("campaign", ForeignKey("campaigns.key"), nullable=False),
    Column("task", String(80), nullable=False),
    Column("m", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("k", Integer, nullable=False),
    Column("layout", String(8), nullable=False),
    Column("mode", String(16), nullable=False),
    Column("element", String(8), nullable=False),
    Column("accumulate", String(8), nullable=False),
    Column("arch", String(16), nullable=False),
    Column("environment", String(255)),
    Column("ratio", Float),
    Column("ratio_without", Float),
    Column("witness", String(16), nullable=False),  # first word of the verdict; empty where the winner is not proved
    Column("proof_until", Float),
    Column("finished_at", String(40), nullable=False),
    Column("hash", String(80), nullable=False),  # of the text in `record`
    Column("record", Text, nullable=False),
    UniqueConstraint("task", "finished_at"),
    Index("shape_results_by_campaign", "campaign"),
)

# One row per `ModuleResult`; columns repeat what filters need.
module_results = Table(
    "module_results",
    metadata,
    _key(),
    Column("campaign", ForeignKey("campaigns.key"), nullable=False),
    Column("task", String(80), nullable=False),  # `AskedModule.id`
    Column("name", String(200), nullable=False),
    Column("mode", String(16), nullable=False),
    Column("arch", String(16), nullable=False),
    Column("environment", String(255)),
    Column("status", String(16), nullable=False),
    Column("ratio", Float),  # over the fastest baseline
    Column("finished_at", String(40), nullable=False),
    Column("hash", String(80), nullable=False),  # of the text in `record`
    Column("record", Text, nullable=False),
    UniqueConstraint("task", "finished_at"),
    Index("module_results_by_campaign", "campaign"),
)

tuned_baselines = Table(
    "tuned_baselines",
    metadata,
    _key(),
    Column("task", String(80), nullable=False),
    Column("environment", String(255), nullable=False),
    Column("hash", String(80), nullable=False),  # of the text in `record`
    Column("record", Text, nullable=False),
    UniqueConstraint("task", "environment"),
)


class Keyed:
    """A table with an integer key whose rows are found by other columns, `natural`, that no two rows share.

    Its statements are made once: making one costs more than running it. Writers take turns (`engine.writing`), so that no row
    appears between a look and an insertion.
    """

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
