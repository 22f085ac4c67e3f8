"""Tables of the trajectory store.

Records are stored whole in a text column, as the JSON that pydantic writes. A JSON column of PostgreSQL would refuse the NaN
and infinity that an error bound may hold. The other columns repeat the fields that lists and joins need.
"""

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 1  # unchanged when later versions add tables, which older versions ignore

metadata = MetaData()

meta = Table(
    "cudal2_meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("created_at", String(40), nullable=False),
    Column("status", String(16), nullable=False),
    Column("shape", String(64), nullable=False),
    Column("record", Text, nullable=False),
)

observations = Table(
    "observations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("record", Text, nullable=False),
)

# A candidate is stored without its origin, so that equal code is one row for all policies. The step holds the origin.
candidates = Table(
    "candidates",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("record", Text, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("index", Integer, primary_key=True, autoincrement=False),
    Column("observation_id", String(64), ForeignKey("observations.id"), nullable=False),
    Column("candidate_id", String(64), ForeignKey("candidates.id"), nullable=False),
    Column("status", String(24), nullable=False),
    Column("reward", Float),
    Column("record", Text, nullable=False),
    Index("steps_by_candidate", "candidate_id"),
)

# A prompt is stored once for all samples that it was sent for.
prompts = Table(
    "prompts",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("record", Text, nullable=False),
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("sample", Integer, primary_key=True, autoincrement=False),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("prompt_id", String(64), ForeignKey("prompts.id"), nullable=False),
    Column("status", String(16), nullable=False),
    Column("record", Text, nullable=False),
)
