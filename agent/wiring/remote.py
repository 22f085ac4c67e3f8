"""The links to workers elsewhere: one for each device that a process names, open until the process ends.

A link costs a login, or a place in a cluster's queue, so that what asks for the target of a device, and the sandbox that is
opened on it, share one.
"""

import atexit
import threading
from pathlib import Path

from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.protocols import Predict
from cudal2_agent.contract.records.baseline import BaselineBook
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import Tier
from cudal2_agent.contract.settings.run_settings import REMOTE_DEVICES
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.remote.calls import DoctorCall, FarCall, Opening
from cudal2_agent.sandbox.remote.command_link import CommandLink
from cudal2_agent.sandbox.remote.far_answers import DoctorAnswer, MachineCheck
from cudal2_agent.sandbox.remote.link import Link, LinkLost
from cudal2_agent.sandbox.remote.remote_sandbox import RemoteSandbox, open_over
from cudal2_agent.sandbox.remote.spool_link import SpoolLink

ANSWER_S = 20.0  # that a worker which watches a folder takes at most to take a call

_links: dict[str, Link] = {}
_opening = threading.Lock()


def is_remote(device: str) -> bool:
    return device.startswith(REMOTE_DEVICES)


def link_to(device: str, wait_s: float) -> Link:
    """The link to a device elsewhere; its worker starts when it is first asked. Raises: UsageError."""
    with _opening:
        if device not in _links:
            if not _links:
                atexit.register(close_links)
            kind, _, rest = device.partition(":")
            _links[device] = CommandLink(rest, wait_s) if kind == "exec" else SpoolLink(Path(rest).expanduser(), wait_s)
        return _links[device]


def close_links() -> None:
    """End the workers of this process."""
    with _opening:
        for link in _links.values():
            link.close()
        _links.clear()


def remote_arch(device: str, wait_s: float) -> Arch:
    """The architecture that a worker elsewhere writes for where nobody names one. Raises: DeviceUnavailable, UsageError."""
    return link_to(device, wait_s).arch


def remote_checks(settings: Settings) -> list[MachineCheck]:
    """Whether a worker elsewhere answers, and what its own machine says of itself."""
    name, wait_s = "worker elsewhere", settings.worker_wait_s
    try:
        link = link_to(settings.device, min(wait_s, ANSWER_S) if settings.device.startswith("spool") else wait_s)
        opening = opening_of(link.arch, settings, "all", trust_host=False)
        answers = list(link.call(FarCall(id=link.new_id(), opening=opening, deed=DoctorCall())))
    except (Cudal2Error, LinkLost) as exc:
        remedy = "start it there, and see docs/guide/elsewhere.md"
        return [MachineCheck(name=name, ok=False, needed=True, detail=str(exc), remedy=remedy)]
    found = [check for answer in answers if isinstance(answer, DoctorAnswer) for check in answer.checks]
    works = all(check.ok for check in found if check.needed)
    detail = f"{settings.device} {'answers' if works else 'answers, and lacks what is needed'}"
    first = MachineCheck(name=name, ok=works and bool(found), needed=True, detail=detail, remedy="see below")
    return [first, *(check.model_copy(update={"name": f"  {check.name}", "needed": False}) for check in found)]


def opening_of(arch: Arch, settings: Settings, tier: Tier, *, trust_host: bool) -> Opening:
    """What of the settings a sandbox elsewhere is opened with: limits and options, no places and no keys."""
    return Opening(
        arch=arch,
        tier=tier,
        trust_host=trust_host,
        verify_seed=settings.verify_seed,
        race_baselines=settings.race_baselines,
        compile_timeout_s=settings.compile_timeout_s,
        verify_timeout_s=settings.verify_timeout_s,
        time_timeout_s=settings.time_timeout_s,
        emulate_timeout_s=settings.emulate.timeout_s,
        profile_timeout_s=settings.profiler.timeout_s,
    )


def settings_of(opening: Opening, settings: Settings) -> Settings:
    """The settings of a worker with what an opening asks for."""
    return settings.model_copy(
        update={
            "verify_seed": opening.verify_seed,
            "race_baselines": opening.race_baselines,
            "compile_timeout_s": opening.compile_timeout_s,
            "verify_timeout_s": opening.verify_timeout_s,
            "time_timeout_s": opening.time_timeout_s,
            "emulate": settings.emulate.model_copy(update={"timeout_s": opening.emulate_timeout_s}),
            "profiler": settings.profiler.model_copy(update={"timeout_s": opening.profile_timeout_s}),
        }
    )


def open_remote(
    opening: Opening, settings: Settings, predict: Predict, emit: Emit, baselines: BaselineBook | None
) -> RemoteSandbox:
    """Raises: DeviceUnavailable, MachineError, UsageError."""
    return open_over(link_to(settings.device, settings.worker_wait_s), opening, predict, emit, baselines)
