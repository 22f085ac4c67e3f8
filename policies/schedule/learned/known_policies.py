"""The learned policies that are here: those that ship, those in the home folder, and files that a user names."""

from pathlib import Path
from typing import Literal

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.schedule.learned.policy_file import SHIPPED, SUFFIX, PolicyCard, read_card

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
