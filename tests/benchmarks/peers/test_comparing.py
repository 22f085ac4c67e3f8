"""One shape's comparison over a bench that is made up: nothing runs, times are given."""

from collections.abc import Callable
from typing import Any

from benchmarks.peers.comparing import Offer, compare_peers
from contract.evaluation import AUTOTUNED, Timing
from contract.task import GemmTask
from sandbox.cuda.baselines.library import Unavailable


class FakeBench:
    task = GemmTask(m=64, n=64, k=64)

    def __init__(self, race_loses: str = "") -> None:
        self._race_loses = race_loses

    def raise_if_lost(self) -> None:
        pass

    def race(self, contenders: dict[str, Any], _told: Callable[[str], None]) -> tuple[dict[str, Timing], dict[str, str]]:
        raced = {name: Timing(name=name, samples_us=us) for name, us in contenders.items() if name != self._race_loses}
        return raced, {self._race_loses: "wrong outputs"} if self._race_loses in contenders else {}


class FakePeer:
    def __init__(self, name: str, offer: Callable[[], Offer]) -> None:
        self.name, self._offer = name, offer

    def offer(self, _bench: Any) -> Offer:
        return self._offer()


def offers(*samples_us: float) -> Callable[[], Offer]:
    return lambda: Offer(contender=samples_us, tried=3, detail="a kernel")


def refuses() -> Offer:
    raise Unavailable("not here")


def breaks() -> Offer:
    raise ZeroDivisionError("oh")


def compared(bench: FakeBench, *peers: FakePeer) -> Any:
    begun: list[str] = []
    row = compare_peers(bench, peers, begun.append)  # type: ignore[arg-type]
    assert begun == [peer.name for peer in peers]
    return row


def test_speedups_are_paired_over_autotuning() -> None:
    row = compared(FakeBench(), FakePeer(AUTOTUNED, offers(4.0, 6.0, 5.0)), FakePeer("x", offers(2.0, 3.0, 2.5)))
    assert row.autotuned_us == 5.0
    assert (row.peers["x"].speedup.ratio, row.peers["x"].time_us, row.peers["x"].tried) == (2.0, 2.5, 3)
    assert row.peers[AUTOTUNED].speedup.ratio == 1.0


def test_a_peer_that_fails_is_reported_and_the_others_go_on() -> None:
    tuned = FakePeer(AUTOTUNED, offers(4.0, 4.0, 4.0))
    row = compared(FakeBench("z"), tuned, FakePeer("x", refuses), FakePeer("y", breaks), FakePeer("z", offers(1.0, 1.0, 1.0)))
    assert set(row.peers) == {AUTOTUNED}
    assert row.failures == {"x": "not here", "y": "ZeroDivisionError: oh", "z": "wrong outputs"}


def test_without_autotuning_there_is_no_speedup() -> None:
    row = compared(FakeBench(), FakePeer(AUTOTUNED, refuses), FakePeer("x", offers(1.0, 1.0, 1.0)))
    assert (row.autotuned_us, row.peers) == (None, {})
