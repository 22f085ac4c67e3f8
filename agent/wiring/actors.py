"""Actors of a Ray cluster: one for each GPU, or as many as wanted over the emulator, with their share of the processors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cudal2_agent.agent.wiring.sandbox import share_of
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.ray_actors import Actor, ActorPlan, Cluster, connected

# The arguments of each actor, from its settings.
Arguments = Callable[[Settings], Sequence[object]]


@contextmanager
def open_cluster(address: str) -> Iterator[Cluster]:
    """Raises: MachineError without Ray; UsageError where there is no cluster."""
    with ExitStack() as opened:
        try:
            cluster = opened.enter_context(connected(address))
        except ImportError as exc:
            raise MachineError("Ray is not installed; pip install 'cudal2-agent[ray]'") from exc
        except ConnectionError as exc:
            raise UsageError(f"no Ray cluster at {address} ({exc}); name its address, or local to start one here") from exc
        yield cluster


def start_actors(
    cluster: Cluster, plan: ActorPlan, settings: Settings, devices: Sequence[str], arguments: Arguments
) -> list[Actor]:
    """One for each of `devices`, over the emulator, else for each GPU. Raises: UsageError where the cluster has none."""
    count = len(devices) or cluster.gpus
    if not count:
        raise UsageError("the Ray cluster has no GPU; name the emulator as device to prove kernels without times")
    share = share_of(settings, "emulator" if devices else "cuda:0", -(-count // cluster.nodes))
    return cluster.start(plan, arguments(share), count, gpus=0 if devices else 1)
