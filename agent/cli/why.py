"""What `runs show --why` answers: a run's improvements, what their authors had seen, what was asked of a chat server."""

from dataclasses import dataclass
from typing import Any

from agent.attribution import Improvement, Sighting, improvements, sightings
from agent.replies import Replies, sum_up
from agent.why import why_lines
from contract.protocols import TrajectoryStore


@dataclass(frozen=True)
class Why:
    better: list[Improvement]
    seen: list[Sighting]
    replies: Replies | None

    def lines(self) -> list[str]:
        return why_lines(self.better, self.seen, self.replies)

    def as_json(self) -> dict[str, Any]:
        return {
            "improvements": [one.model_dump(mode="json") for one in self.better],
            "seen": [one.model_dump(mode="json") for one in self.seen],
            "replies": self.replies.model_dump(mode="json") if self.replies else None,
        }


def explain(store: TrajectoryStore, run_id: str) -> Why:
    """Raises: UsageError where there is no such run."""
    trajectory = store.trajectory(run_id)
    run, steps, observations = trajectory.run, trajectory.steps, trajectory.observations
    better = improvements(steps, observations, run.task, run.chip)
    return Why(better, sightings(steps, observations, better), sum_up(trajectory.exchanges))
