"""A store with a little of everything: two runs, shared parts, every table filled."""

import io
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import CompileFailed, Measured
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Attempt, Observation, Step, Trajectory
from cudal2_agent.store.incoming import IncomingStep
from cudal2_agent.store.packing import zstd
from cudal2_agent.store.store import Store, open_store
from cudal2_agent.store.sweep.sweep_files import write_sweep
from cudal2_agent.store.sweep.sweep_reading import SweepReader
from tests.doubles import CHIP, NOW, OBSERVATION, TASK, candidate, measured, profile, run_record, step
from tests.policies.chat.exchanges import exchange

OTHER_TASK = GemmTask(m=64, n=128, k=256, arch=Arch.SM_80)
OTHER_CHIP = REFERENCE_CHIPS[Arch.SM_80]
CHUNK = Chunk(release="cutlass-4.2.0", path="a.hpp", start_line=1, end_line=2, symbol="a", kind="function", text="void a();")


def attempt(number: int) -> Attempt:
    return Attempt(candidate_id=candidate(number).id, policy="scripted", schedule=None, status="measured", time_us=5.0 + number)


def observation(round_: int, **changes: object) -> Observation:
    seen = tuple(attempt(number) for number in range(4 * round_))
    fields = {"round": round_, "attempts": seen, "best": candidate(0), "hits": (Hit(chunk=CHUNK, score=1.0),)}
    return OBSERVATION.model_copy(update={**fields, **changes})


def slower(time_us: float, driver: str) -> Measured:
    taken = measured(time_us)
    return taken.model_copy(update={"environment": taken.environment.model_copy(update={"driver": driver})})


def fill(store: Store) -> None:
    """`run-1`: 8 steps in 2 rounds, 2 of them not compiled, 2 rewards withheld. `run-2`: 3 steps on another chip."""
    store.start_run(run_record(status="finished"))
    for round_ in (1, 2):
        seen = store.record_observation("run-1", observation(round_))
        for place in range(4):
            index = 4 * (round_ - 1) + place
            changes: dict[str, object] = {"evaluation": measured(5.0 + 3 * index), "reward": 0.5 - index / 10}
            if place == 2:
                changes = {"evaluation": CompileFailed(message="no", log="error: no"), "reward": -2.0}
            if place == 3:
                changes |= {"profile": profile(), "diagnosis": Diagnosis(basis="counters", findings=()), "reward": None}
            store.record_step(step(index, number=index, round=round_, observation_id=seen, **changes))
    store.record_exchange("run-1", exchange(observation_id=seen))
    store.record_exchange("run-1", exchange((2, 1, 0), text="again", observation_id=seen))
    later = NOW + timedelta(days=1)
    changes = {"task": OTHER_TASK, "chip": OTHER_CHIP, "policy": "chat", "created_at": later, "settings": {"cutlass": "4.1.0"}}
    store.start_run(run_record("run-2", status="finished", **changes))
    seen = store.record_observation("run-2", Observation(task=OTHER_TASK, chip=OTHER_CHIP, round=1, seed=0))
    written = candidate(0).model_copy(update={"origin": Origin(policy="chat", prompt_hash="abc")})
    for index in range(3):
        changes = {"evaluation": slower(8.0 + index, "600.1"), "candidate": written, "reward": 0.2}
        store.record_step(step(index, run_id="run-2", observation_id=seen, **changes))


def small_store(path: Path) -> str:
    """The address of a filled store."""
    url = f"sqlite:///{path}"
    with open_store(url) as store:
        fill(store)
    return url


__all__ = ["CHIP", "OTHER_CHIP", "OTHER_TASK", "TASK", "fill", "observation", "small_store"]


def lines_in(trajectories: Iterable[Trajectory]) -> list[bytes]:
    """The lines that are written for trajectories."""
    file = io.BytesIO()
    write_sweep(trajectories, file)
    return zstd.decompress(file.getvalue()).splitlines()


def read_back(trajectories: Iterable[Trajectory]) -> list[Step]:
    """The steps that an import would record."""
    reader = SweepReader()
    records = [one for line in lines_in(trajectories) for one in reader.read(line)]
    return [one.step for one in records if isinstance(one, IncomingStep)]
