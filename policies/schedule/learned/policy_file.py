"""Weights of a learned schedule policy as one file: safetensors, with a card in its header that says what they learned from.

The files that are here are known by name.
"""

import json
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.policies.schedule.learned.boosted_trees import PREFIX, ScheduleTrees, schedule_trees
from cudal2_agent.policies.schedule.learned.features import FINGERPRINT
from cudal2_agent.policies.schedule.learned.network import Network, Tensors

SUFFIX = ".safetensors"
SHIPPED = Path(__file__).with_name("shipped")
_CARD = "card"


class PolicyCard(Record):
    """What a policy learned from, and what it may be used for.

    `fingerprint`: of the columns that it reads. `chips`: those whose times it saw. `tasks`: runs by kind of task.
    `held_out`: shapes that it never saw. `figures`: what its training measured on these, by name. `base`: the policy that it
    was adapted from. `kinds`: of tasks that it is used for, as `kind_of` names them; empty for all. `created`: date.
    `product`: version of this project.
    """

    name: str
    fingerprint: str
    chips: tuple[str, ...]
    tasks: dict[str, int]
    runs: int
    schedules: int
    stages: tuple[str, ...]
    seed: int
    held_out: int
    figures: dict[str, float] = {}
    base: str | None = None
    kinds: tuple[str, ...] = ()
    created: str
    product: str
    licence: str = "Apache-2.0"


def kind_of(task: GemmTask) -> str:
    """Timing mode and accumulator of a task, such as `offline f32`: what a policy is calibrated for."""
    return f"{task.mode.value} {task.accumulate.value}"


def as_read(tensors: Tensors) -> Tensors:
    """A network's weights as a file gives them back."""
    return {name: value.astype(np.float32) for name, value in _as_stored(tensors).items()}


def write_weights(path: Path, tensors: Tensors, card: PolicyCard, trees: ScheduleTrees | None = None) -> None:
    """Matrices are stored as F16, vectors as F32, trees as they are.

    Raises: OSError, after which an older file is still there.
    """
    body = save(_as_stored(tensors) | (trees.tensors if trees else {}), {_CARD: card.model_dump_json()})
    with whole_file(path) as target:
        target.write_bytes(body)


def read_card(path: Path) -> PolicyCard:
    """Raises: UsageError for a file that is missing, damaged, or no policy."""
    try:
        with safe_open(path, framework="np") as stored:
            return PolicyCard.model_validate(json.loads((stored.metadata() or {})[_CARD]))
    except FileNotFoundError:
        raise UsageError(f"there is no prior at {path}; `cudal2-agent prior list` shows those that are known") from None
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError, ValidationError) as exc:
        raise UsageError(f"{path} holds no prior that this version reads: {_first_line(exc)}") from exc


class Weights(NamedTuple):
    """What a file holds. `trees`: None in one that has no second opinions of its own."""

    card: PolicyCard
    network: Network
    trees: ScheduleTrees | None


def read_weights(path: Path) -> Weights:
    """Raises: UsageError as `read_card`, and for weights of other features than this version computes."""
    card = read_card(path)
    if card.fingerprint != FINGERPRINT:
        raise UsageError(
            f"prior {card.name} was trained by version {card.product} on other features than this version computes; "
            "train it anew with `cudal2-agent train schedule`"
        )
    try:
        with safe_open(path, framework="np") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (it is no mapping)
        network = Network({name: value.astype(np.float32) for name, value in tensors.items() if not name.startswith(PREFIX)})
        return Weights(card, network, schedule_trees(tensors, network.inputs))
    except (OSError, SafetensorError, KeyError, ValueError) as exc:
        raise UsageError(f"the weights in {path} cannot be used: {_first_line(exc)}") from exc


def _as_stored(tensors: Tensors) -> dict[str, npt.NDArray[np.generic]]:
    return {name: np.ascontiguousarray(value, np.float16 if value.ndim > 1 else np.float32) for name, value in tensors.items()}


def _first_line(exc: Exception) -> str:
    if isinstance(exc, KeyError):
        return f"{exc} is missing"
    return (str(exc) or type(exc).__name__).splitlines()[0]


AUTO, ANALYTIC_NAME = "auto", "analytic"  # choices that name no file
IN_HOME = "policies"

Origin = Literal["built in", "home", "file"]


class KnownPolicy(Record):
    """A file of weights. `origin`: where it was found."""

    path: Path
    origin: Origin
    size_bytes: int
    card: PolicyCard

    @property
    def name(self) -> str:
        return self.card.name


def known_policies(home: Path) -> tuple[list[KnownPolicy], list[str]]:
    """The policies that ship, then those of the home folder; and why files there are left out."""
    shipped = [_known(path, "built in") for path in sorted(SHIPPED.glob(f"*{SUFFIX}"))]
    reasons: list[str] = []
    own: list[KnownPolicy] = []
    for path in sorted((home / IN_HOME).glob(f"*{SUFFIX}")):
        try:
            own.append(_known(path, "home"))
        except UsageError as exc:
            reasons.append(str(exc))
    return [*shipped, *own], reasons


def find_policy(name: str, home: Path) -> KnownPolicy:
    """The policy that a name or a path stands for; one of the home folder before one that ships. Raises: UsageError."""
    known, _ = known_policies(home)
    if found := [one for one in known if name in (one.name, one.path.stem)]:
        return found[-1]
    path = Path(name).expanduser()
    if path.is_file():
        return _known(path.resolve(), "file")
    names = ", ".join(dict.fromkeys([AUTO, ANALYTIC_NAME, *(one.name for one in known)]))
    raise UsageError(f"there is no prior {name!r}; choose from {names}, or name a file of weights")


def _known(path: Path, origin: Origin) -> KnownPolicy:
    card = read_card(path)
    return KnownPolicy(path=path, origin=origin, size_bytes=path.stat().st_size, card=card)
