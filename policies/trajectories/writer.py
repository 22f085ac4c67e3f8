"""Writes plain records into the tables, within one transaction."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update

from contract.base import digest
from contract.errors import StoreError
from policies.trajectories import tables
from policies.trajectories.filters import sortable
from policies.trajectories.keys import find, insert_row
from policies.trajectories.packing import Packer, named
from policies.trajectories.plain_records import (
    Content,
    Plain,
    exchange_hash,
    figures,
    shared_attempts,
    split_observation,
    split_step,
    step_hash,
)
from policies.trajectories.reader import PlainReader


class PlainWriter:
    """One transaction of the store. Records are plain; `Writer` takes those of the contract."""

    def __init__(self, connection: Connection, packer: Packer) -> None:
        self._connection, self._packer = connection, packer
        self._reader = PlainReader(connection, packer)
        self._run: tuple[str, int] | None = None  # id and key of the run that was written last
        self._attempts: tuple[int, Sequence[Plain]] | None = None  # of the observation that was recorded last

    def start_run(self, run: Plain) -> None:
        """Raises: StoreError where a run of that id exists."""
        if find(self._connection, tables.runs, tables.runs.c.run_id == run["run_id"]) is not None:
            raise StoreError(f"run {run['run_id']} exists already; resume it or start another")
        insert_row(self._connection, tables.runs, self._run_row(run))

    def update_run(self, run: Plain) -> bool:
        """Whether there is such a run."""
        query = update(tables.runs).where(tables.runs.c.run_id == run["run_id"])
        return self._connection.execute(query.values(self._run_row(run))).rowcount > 0

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
        key = insert_row(self._connection, tables.observations, {**row, **packed})
        links = [
            {"observation": key, "place": place, "content": self._content(content)} for place, content in enumerate(contents)
        ]
        if links:
            self._connection.execute(insert(tables.observation_contents), links)
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
        own = tables.steps.c
        key = find(self._connection, tables.steps, (own.run == run) & (own.index == step["index"]))
        if key is not None:
            self._connection.execute(update(tables.steps).where(own.key == key).values(row))
            self._connection.execute(update(tables.step_records).where(tables.step_records.c.step == key).values(packed))
            return
        key = insert_row(self._connection, tables.steps, {"run": run, "index": step["index"], **row})
        self._connection.execute(insert(tables.step_records).values(step=key, **packed))

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
        own, key = tables.exchanges.c, {"run": run, **place}
        at = (own.run == run) & (own.round == place["round"]) & (own.sample == place["sample"]) & (own.turn == place["turn"])
        if not self._connection.execute(update(tables.exchanges).where(at).values(row)).rowcount:
            self._connection.execute(insert(tables.exchanges).values({**key, **row}))

    def _run_row(self, run: Plain) -> dict[str, Any]:
        task, settings = run["task"], run["settings"]
        return {
            "run_id": run["run_id"],
            "created_at": sortable(run["created_at"]),
            "status": run["status"],
            "policy": run["policy"],
            "shape": f"{task['m']}x{task['n']}x{task['k']}",
            "arch": task["arch"],
            "chip": run["chip"]["name"],
            "cutlass": settings.get("cutlass", "") if settings.get("use_knowledge", True) else "",
            **self._packer.pack(self._connection, "run", run),
        }

    def _run_key(self, run_id: str) -> int | None:
        if self._run is None or self._run[0] != run_id:
            key = find(self._connection, tables.runs, tables.runs.c.run_id == run_id)
            self._run = (run_id, key) if key is not None else None
        return self._run[1] if self._run else None

    def _observation_key(self, id_: str) -> int | None:
        return find(self._connection, tables.observations, tables.observations.c.hash == named(id_))

    def _last_observation(self, run_id: str) -> int | None:
        """The observation of the run's last step."""
        own = tables.steps.c
        query = select(own.observation).where(own.run == self._run_key(run_id)).order_by(own.index.desc()).limit(1)
        return self._connection.execute(query).scalar_one_or_none()

    def _attempts_of(self, key: int) -> Sequence[Plain]:
        if self._attempts is None or self._attempts[0] != key:
            self._attempts = key, self._reader.attempts(key)
        return self._attempts[1]

    def _environment(self, label: str) -> int:
        own = tables.environments
        key = find(self._connection, own, own.c.label == label)
        return key if key is not None else insert_row(self._connection, own, {"label": label})

    def _content(self, content: Content) -> int:
        """The key of a content, which is stored unless it is there."""
        own = tables.contents
        at = (own.c.kind == content.kind) & (own.c.hash == named(content.id))
        key = find(self._connection, own, at)
        if key is not None:
            return key
        packed = self._packer.pack(self._connection, content.purpose, content.plain)
        return insert_row(self._connection, own, {"kind": content.kind, "hash": named(content.id), **packed})
