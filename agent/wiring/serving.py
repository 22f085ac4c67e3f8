"""The far side of a device elsewhere: this machine's sandboxes, for whom a stream or a folder brings calls from."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cudal2_agent.agent.wiring.doctor import examine
from cudal2_agent.agent.wiring.gpus import default_arch
from cudal2_agent.agent.wiring.remote import is_remote, opening_of, settings_of
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Event
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.local import LocalSandbox
from cudal2_agent.sandbox.remote.call_service import CallService, TunedHere
from cudal2_agent.sandbox.remote.calls import Opening
from cudal2_agent.sandbox.remote.far_answers import WorkerHello
from cudal2_agent.sandbox.remote.same_version import PROTOCOL, code_hash, own_version, records_hash
from cudal2_agent.sandbox.remote.spool_folder import SpoolFolder
from cudal2_agent.sandbox.remote.spool_worker import Served, SpoolWorker
from cudal2_agent.sandbox.remote.stream_worker import end_for_sure


def service_of(settings: Settings) -> CallService:
    """Raises: UsageError for a device that is elsewhere itself."""
    if is_remote(settings.device):
        raise UsageError(f"a worker has a device of its own machine, and not {settings.device}; choose another with --device")

    @contextmanager
    def open_local(opening: Opening, emit: Callable[[Event], None], tuned: TunedHere) -> Iterator[LocalSandbox]:
        if opening.trust_host and not settings.trust_host:
            raise UsageError("host candidates run their own code there; start that worker with --trust-host if you trust them")
        own = settings_of(opening, settings)
        with open_sandbox_of(
            opening.arch, own, emit, trust_host=opening.trust_host, baselines=tuned, tier=opening.tier
        ) as sandbox:
            assert isinstance(sandbox, LocalSandbox)
            yield sandbox

    return CallService(open_local, lambda: examine(settings))


def serve_folder(
    folder: Path, settings: Settings, service: CallService, *, once: bool, idle_s: float, tell: Callable[[str], None]
) -> Served:
    """Serve a folder until nothing waits, or until it is interrupted. Raises: UsageError, MachineError, WorkerError."""
    hello = hello_of(settings, service)
    opening = opening_of(hello.arch, settings, "all", trust_host=False)
    spool = SpoolFolder(folder)
    with closing(service):
        try:
            return SpoolWorker(spool, hello, service, once=once, idle_s=idle_s, tell=tell).serve(opening)
        except BaseException:
            threading.Thread(target=end_for_sure, daemon=True).start()  # its calls wait again, whatever goes on here
            raise


def hello_of(settings: Settings, service: CallService) -> WorkerHello:
    return WorkerHello(
        protocol=PROTOCOL,
        version=own_version(),
        records=records_hash(),
        code=code_hash(),
        host=service.host,
        device=settings.device,
        arch=default_arch(settings.device),
    )
