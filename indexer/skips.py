"""Files that indexing left out, reported as one notice per reason."""

from cudal2_agent.contract.events import Emit, Notice

_NAMED = 3


class Skips:
    """Names by reason. A reason follows 'RELEASE: ' in the notice."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, reason: str, name: str) -> None:
        self._names.setdefault(reason, []).append(name)

    def report(self, release: str, emit: Emit) -> None:
        for reason, names in self._names.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = ", ".join(printable(name) for name in names[:_NAMED])
            emit(Notice(message=f"{release}: {reason} ({len(names)}): {shown}{more}"))


def printable(name: str) -> str:
    """A file name with control characters and invalid UTF-8 escaped, safe for a terminal and for JSON."""
    return name if name.isprintable() else ascii(name)
