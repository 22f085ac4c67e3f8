"""One shape's comparison over a bench that is made up: nothing runs, times are given."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.peers import comparing
from benchmarks.peers.comparing import Bench, Offer, Raced, compare_peers
from benchmarks.peers.kernel_lane import TimesItself
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Timing
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable
from cudal2_agent.sandbox.cuda.driver import Fault


class FakeBench:
    task = GemmTask(m=64, n=64, k=64)

    def __init__(self, race_loses: str = "") -> None:
        self._race_loses = race_loses

    def raise_if_lost(self) -> None:
        pass

    def race(self, offers: dict[str, Offer], _told: Callable[[str], None]) -> Raced:
        """Lenient offers are wrong, and no graph holds them."""
        raced = Raced()
        for name, offer in offers.items():
            if name == self._race_loses:
                raced.failures[name] = "wrong outputs"
                continue
            raced.timings[name] = Timing(name=name, samples_us=offer.contender)
            if offer.lenient:
                raced.faults[name], raced.clocks[name] = "narrow sums", "kernels"
        return raced


class FakePeer:
    def __init__(self, name: str, offer: Callable[[], Offer]) -> None:
        self.name, self._offer = name, offer

    def offer(self, _bench: Any) -> Offer:
        return self._offer()


def offers(*samples_us: float, lenient: bool = False) -> Callable[[], Offer]:
    return lambda: Offer(contender=samples_us, tried=3, detail="a kernel", lenient=lenient)


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


def test_a_result_says_what_is_wrong_with_it_and_how_it_was_timed() -> None:
    tuned = FakePeer(AUTOTUNED, offers(4.0, 4.0, 4.0))
    row = compared(FakeBench(), tuned, FakePeer("x", offers(2.0, 2.0, 2.0, lenient=True)), FakePeer("y", offers(2.0, 2.0, 2.0)))
    assert (row.peers["x"].fault, row.peers["x"].clock, row.peers["x"].speedup.ratio) == ("narrow sums", "kernels", 2.0)
    assert (row.peers["y"].fault, row.peers["y"].clock) == ("", "graph")


class Lanes(Bench):
    """A bench whose lanes of graphs fail, with one of kernels instead."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def _lane(self, *_arguments: Any) -> Any:
        raise self._failure

    def raise_if_lost(self) -> None:
        pass


def test_only_a_lenient_offer_that_no_graph_holds_is_timed_by_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lanes, "_track", None, raising=False)
    monkeypatch.setattr(Lanes, "_draw", None, raising=False)
    monkeypatch.setattr(comparing, "KernelLane", lambda *_: "kernels")
    strict, lenient = (Offer(contender=None, tried=1, detail="", lenient=one) for one in (False, True))
    assert Lanes(Fault("no graph"))._race_lane(lenient) == "kernels"
    with pytest.raises(Fault, match="no graph"):
        Lanes(Fault("no graph"))._race_lane(strict)
    with pytest.raises(TimesItself):
        Lanes(TimesItself("in every call"))._race_lane(lenient)
