"""Where the seconds of a group-relative step go: `sample`, `read`, `build` and `measure`; the rest is the update of weights."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepSeconds:
    """Wall-clock seconds by part since they were last taken."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin_s = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - begin_s)

    def add(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    def taken(self, steps: int) -> dict[str, float]:
        """Seconds per step as `sample_s` and so on; the next ones begin at 0."""
        spent, self._spent = self._spent, {}
        return {f"{name}_s": seconds / max(steps, 1) for name, seconds in spent.items()}
