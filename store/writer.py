"""Writes plain records into the tables, within one transaction."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import StoreError
from cudal2_agent.store import tables
from cudal2_agent.store.filters import sortable
from cudal2_agent.store.packing import Packer, named
from cudal2_agent.store.plain_records import (
    Content,
    Plain,
    exchange_hash,
    figures,
    shared_attempts,
    split_observation,
    split_step,
    step_hash,
)
from cudal2_agent.store.reader import PlainReader
from cudal2_agent.store.tables import SHAPE_CHARS, Keyed

RUNS = Keyed(tables.runs, "run_id")
OBSERVATIONS = Keyed(tables.observations, "hash")
CONTENTS = Keyed(tables.contents, "kind", "hash")
_ENVIRONMENTS = Keyed(tables.environments, "label")
_STEPS = Keyed(tables.steps, "run", "index")
_EXCHANGES = Keyed(tables.exchanges, "run", "round", "sample", "turn")
_ADD_LINK = insert(tables.observation_contents)
_ADD_RECORD = insert(tables.step_records)
_CHANGE_RECORD = update(tables.step_records).where(tables.step_records.c.step == bindparam("of"))
_LAST_OBSERVATION = (
    select(tables.steps.c.observation)
    .where(tables.steps.c.run == bindparam("run"))
    .order_by(tables.steps.c.index.desc())
    .limit(1)
)


class PlainWriter:
    """One transaction of the store. Records are plain; `Writer` takes those of the contract."""

    def __init__(self, connection: Connection, packer: Packer) -> None:
        self._connection, self._packer = connection, packer
        self._reader = PlainReader(connection, packer)
        self._run: tuple[str, int] | None = None  # id and key of the run that was named last
        self._observation: tuple[str, int] | None = None  # likewise
        self._environments: dict[str, int] = {}
        self._attempts: tuple[int, Sequence[Plain]] | None = None  # of the observation that was recorded last

    def start_run(self, run: Plain) -> None:
        """Raises: StoreError where a run of that id exists."""
        if RUNS.find(self._connection, run["run_id"]) is not None:
            raise StoreError(f"run {run['run_id']} exists already; resume it or start another")
        RUNS.insert(self._connection, self._run_row(run))

    def update_run(self, run: Plain) -> bool:
        """Whether there is such a run."""
        key = RUNS.find(self._connection, run["run_id"])
        if key is not None:
            RUNS.overwrite(self._connection, key, self._run_row(run))
        return key is not None

    def has_observation(self, id_: str) -> bool:
        return self._observation_key(id_) is not None

    def record_observation(self, run_id: str, id_: str, observation: Plain) -> None:
        """Stores it once. It refers to the attempts that the run's last observation shares with it."""
        if self.has_observation(id_):
            return
        rest, attempts, contents = split_observation(observation)
        parent = self._last_observation(run_id)
        before = self._attempts_of(parent) if parent is not None else ()
        shared = shared_attempts(before, attempts)
        row = {"hash": named(id_), "parent": parent if shared else None, "shared": shared}
        packed = self._packer.pack(self._connection, "observation", {**rest, "attempts": attempts[shared:]})
        key = OBSERVATIONS.insert(self._connection, {**row, **packed})
        links = [
            {"observation": key, "place": place, "content": self._content(content)} for place, content in enumerate(contents)
        ]
        if links:
            self._connection.execute(_ADD_LINK, links)
        self._attempts = key, attempts

    def record_step(self, step: Plain) -> None:
        """Idempotent by (run_id, index). Raises: StoreError where its run or observation was never recorded."""
        run, observation = self._run_key(step["run_id"]), self._observation_key(step["observation_id"])
        if run is None or observation is None:
            raise StoreError(f"step {step['index']} names run {step['run_id']} or an observation that was not recorded")
        rest, candidate, profile = split_step(step)
        found = figures(step["evaluation"])
        row = {
            "round": step["round"],
            "observation": observation,
            "candidate": self._content(candidate),
            "profile": self._content(profile) if profile else None,
            "environment": self._environment(found.environment) if found.environment else None,
            "status": step["evaluation"]["status"],
            "reward": step["reward"],
            "time_us": found.time_us,
            "speedup": found.speedup,
        }
        hash_ = named(step_hash(step, candidate.id, profile.id if profile else None, rest))
        packed = {"hash": hash_, **self._packer.pack(self._connection, f"step/{row['status']}", rest)}
        key = _STEPS.find(self._connection, run, step["index"])
        if key is not None:
            _STEPS.overwrite(self._connection, key, row)
            self._connection.execute(_CHANGE_RECORD, {"of": key, **packed})
            return
        key = _STEPS.insert(self._connection, {"run": run, "index": step["index"], **row})
        self._connection.execute(_ADD_RECORD, {"step": key, **packed})

    def record_exchange(self, run_id: str, exchange: Plain) -> None:
        """Idempotent by (run_id, round, sample, turn). Raises: StoreError where its run was never recorded."""
        place = {name: exchange[name] for name in ("round", "sample", "turn")}
        run = self._run_key(run_id)
        if run is None:
            raise StoreError(f"exchange {tuple(place.values())} names run {run_id}, which was not recorded")
        rest = {name: value for name, value in exchange.items() if name not in (*place, "prompt")}
        prompt = Content("prompt", digest(exchange["prompt"]), exchange["prompt"])
        row = {
            "observation": self._observation_key(exchange["observation_id"]),
            "prompt": self._content(prompt),
            "status": exchange["status"],
            "hash": named(exchange_hash(run_id, tuple(place.values()), prompt.id, rest)),
            **self._packer.pack(self._connection, "exchange", rest),
        }
        key = _EXCHANGES.find(self._connection, run, *place.values())
        if key is not None:
            _EXCHANGES.overwrite(self._connection, key, row)
        else:
            _EXCHANGES.insert(self._connection, {"run": run, **place, **row})

    def _run_row(self, run: Plain) -> dict[str, Any]:
        return {**run_columns(run), **self._packer.pack(self._connection, "run", run)}

    def _run_key(self, run_id: str) -> int | None:
        if self._run is None or self._run[0] != run_id:
            key = RUNS.find(self._connection, run_id)
            self._run = (run_id, key) if key is not None else None
        return self._run[1] if self._run else None

    def _observation_key(self, id_: str) -> int | None:
        if self._observation is None or self._observation[0] != id_:
            key = OBSERVATIONS.find(self._connection, named(id_))
            self._observation = (id_, key) if key is not None else None
        return self._observation[1] if self._observation else None

    def _last_observation(self, run_id: str) -> int | None:
        """The observation of the run's last step."""
        return self._connection.execute(_LAST_OBSERVATION, {"run": self._run_key(run_id)}).scalar_one_or_none()

    def _attempts_of(self, key: int) -> Sequence[Plain]:
        if self._attempts is None or self._attempts[0] != key:
            self._attempts = key, self._reader.attempts(key)
        return self._attempts[1]

    def _environment(self, label: str) -> int:
        if label not in self._environments:
            key = _ENVIRONMENTS.find(self._connection, label)
            self._environments[label] = _ENVIRONMENTS.insert(self._connection, {"label": label}) if key is None else key
        return self._environments[label]

    def _content(self, content: Content) -> int:
        """The key of a content, which is stored unless it is there."""
        key = CONTENTS.find(self._connection, content.kind, named(content.id))
        if key is not None:
            return key
        packed = self._packer.pack(self._connection, content.purpose, content.plain)
        return CONTENTS.insert(self._connection, {"kind": content.kind, "hash": named(content.id), **packed})


def shape_of(task: Plain) -> str:
    """M×N×K of a matrix product; the beginning of a module's name, as long as the column is."""
    return str(task["name"])[:SHAPE_CHARS] if "problem" in task else f"{task['m']}x{task['n']}x{task['k']}"


def run_columns(run: Plain) -> dict[str, str]:
    """The columns that repeat what the record of a run holds."""
    task, settings = run["task"], run["settings"]
    return {
        "run_id": run["run_id"],
        "created_at": sortable(run["created_at"]),
        "status": run["status"],
        "policy": run["policy"],
        "shape": shape_of(task),
        "arch": task["arch"],
        "chip": run["chip"]["name"],
        "cutlass": settings.get("cutlass", "") if settings.get("use_knowledge", True) else "",
    }
