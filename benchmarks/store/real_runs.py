"""Runs that were measured on an H200. The file has no observations: they are made again from the steps, by the present agent.

To choose other runs: python -m benchmarks.store.real_runs STORE.sqlite RUN [RUN ...]
"""

import json
import lzma
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cudal2_agent.agent.observe.observation import observe
from cudal2_agent.agent.observe.ranking import Ranked, rank
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.profile import Difference, Profile
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step, Trajectory
from cudal2_agent.store.store import open_store

FILE = Path(__file__).with_name("h200_runs.json.xz")
RunEvent = RunRecord | Observation | Step


class RealRun(NamedTuple):
    """A measured run. `seconds_left`: of the observation of each round."""

    run: RunRecord
    steps: tuple[Step, ...]
    seconds_left: dict[int, float]


class RunReplay:
    """The records of a run in the order in which an agent writes them; the observations are made as the agent makes them."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self.ranked: list[Ranked] = []
        self._ids: dict[int, str] = {}

    def observe(self, number: int, seconds_left: float) -> Observation:
        """The observation of a round, from the steps so far."""
        seen = observe(self._run, self.ranked, number, (), _unexplained, seconds_left=seconds_left, reads_code=False)
        self._ids[number] = seen.id
        return seen

    def observation_id(self, number: int) -> str:
        return self._ids[number]

    def add(self, step: Step) -> None:
        self.ranked.append(rank(step, self._run.task, self._run.chip))


def replayed(real: RealRun) -> Iterator[RunEvent]:
    """The records of a measured run."""
    yield real.run
    replay = RunReplay(real.run)
    begun = 0
    for step in real.steps:
        if step.round > begun:
            begun = step.round
            yield replay.observe(begun, real.seconds_left[begun])
        yield step
        replay.add(step)


def load_runs(path: Path = FILE) -> list[RealRun]:
    """The measured runs."""
    return [_unpacked(one) for one in json.loads(lzma.decompress(path.read_bytes()))]


def pack(trajectories: Sequence[Trajectory]) -> bytes:
    """The file of some runs. Raises: UsageError for a run of which something would be lost."""
    packed = [_packed(one) for one in trajectories]
    for trajectory, values in zip(trajectories, packed, strict=True):
        kept = {one.id: one for one in replayed(_unpacked(values)) if isinstance(one, Observation)}
        if kept != trajectory.observations:
            raise UsageError(f"run {trajectory.run.run_id} has observations that cannot be made again")
    return lzma.compress(json.dumps(packed).encode(), preset=9)


def _packed(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "run": trajectory.run.model_dump(mode="json"),
        "steps": [step.model_dump(mode="json") for step in trajectory.steps],
        "seconds_left": {one.round: one.seconds_left for one in trajectory.observations.values()},
    }


def _unpacked(values: dict[str, Any]) -> RealRun:
    run = RunRecord.model_validate_json(json.dumps(values["run"]))
    recorded = [Step.model_validate_json(json.dumps(step)) for step in values["steps"]]
    seconds_left = {int(number): left for number, left in values["seconds_left"].items()}
    replay, begun, steps = RunReplay(run), 0, []
    for step in recorded:
        if step.round > begun:
            begun = step.round
            replay.observe(begun, seconds_left[begun])
        steps.append(step.model_copy(update={"observation_id": replay.observation_id(step.round)}))
        replay.add(steps[-1])
    return RealRun(run, tuple(steps), seconds_left)


def _unexplained(_: Profile, __: Profile) -> tuple[Difference, ...]:
    return ()


def main(store: str, *run_ids: str) -> None:
    with open_store(f"sqlite:///{store}") as opened:
        FILE.write_bytes(pack([opened.trajectory(run_id) for run_id in run_ids]))


if __name__ == "__main__":
    main(*sys.argv[1:])
