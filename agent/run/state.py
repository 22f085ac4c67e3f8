"""The state that travels from node to node and into checkpoints: positions and records as plain JSON values.

The history of a run is in the trajectory store, not in the state. Because the values are plain, reading a checkpoint builds
no object, and a tampered checkpoint file cannot run code.
"""

from typing import Any, Literal, TypedDict

Json = dict[str, Any]
Phase = Literal["search", "final"]


class RunState(TypedDict):
    """`batch`: candidates of the round, or of the race. `next_index`: of the step after the recorded ones.

    `empty_rounds`: consecutive rounds without a candidate. `stop`: why the search ended; empty while it goes on.
    """

    phase: Phase
    round: int
    next_index: int
    spent_s: float
    propose_s: float
    empty_rounds: int
    observation_id: str
    batch: list[Json]
    stop: str


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
        "stop": "",
    }
