"""What the graph carries from node to node and into its checkpoints: positions and records as plain JSON values.

History is not carried: the trajectory store has it. Plain values mean that reading a checkpoint builds no object, so a
tampered checkpoint file can run nothing.
"""

from typing import Any, Literal, TypedDict

from contract.base import Record
from contract.build import Built
from contract.diagnosis import Diagnosis
from contract.evaluation import Evaluation

Json = dict[str, Any]
Phase = Literal["search", "final"]


class RunState(TypedDict):
    """`batch`: proposed candidates, not yet built. `queue`: built ones (`Built`) waiting for their turn. `pending`: the
    `Pending` on its way from evaluation to the store. `empty_rounds`: without a candidate, in a row. `stop`: why the search
    ended, empty while it goes on."""

    phase: Phase
    round: int
    next_index: int
    spent_s: float
    propose_s: float
    empty_rounds: int
    observation_id: str
    batch: list[Json]
    queue: list[Json]
    pending: Json | None
    stop: str


class Pending(Record):
    """An evaluated candidate that is not yet a step."""

    built: Built
    evaluation: Evaluation
    evaluate_s: float
    diagnosis: Diagnosis | None = None


def initial_state(rounds_done: int = 0) -> RunState:
    return {
        "phase": "search",
        "round": rounds_done,
        "next_index": 0,
        "spent_s": 0.0,
        "propose_s": 0.0,
        "empty_rounds": 0,
        "observation_id": "",
        "batch": [],
        "queue": [],
        "pending": None,
        "stop": "",
    }
