"""Opens the sandbox as the settings say. Commands that only evaluate need no other part."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial

from cudal2_agent.agent.wiring.modules import predicted, resized_by, rewritten
from cudal2_agent.agent.wiring.remote import is_remote, open_remote, opening_of
from cudal2_agent.agent.wiring.schedule_prior import open_prior
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.records.baseline import BaselineBook
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import Tier
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.building.headers import find_headers
from cudal2_agent.sandbox.building.toolchain import nvrtc_version
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer, open_tracer
from cudal2_agent.sandbox.remote.remote_sandbox import RemoteSandbox


@contextmanager
def open_sandbox_of(
    arch: Arch,
    settings: Settings,
    emit: Emit,
    *,
    trust_host: bool = False,
    baselines: BaselineBook | None = None,
    tier: Tier = "all",
    tracer: Tracer | None = None,
) -> Iterator[LocalSandbox | RemoteSandbox]:
    """The sandbox for all tasks of an arch. `trust_host`: true only for files that the user names, never for a policy's.
    `baselines`: where tuned baselines are kept; without it, each is tuned once in the life of a worker's task.
    `tier`: of verification. `tracer`: of modules at other sizes; one of its own where none is given.

    Raises: CompilerMissing, DeviceUnavailable.
    """
    predict = partial(predicted, prior_of=open_prior(settings))
    if is_remote(settings.device):
        opening = opening_of(arch, settings, tier, trust_host=trust_host)
        with closing(open_remote(opening, settings, predict, emit, baselines)) as elsewhere:
            yield elsewhere
        return
    nvrtc_version()
    find_headers()
    with (
        nullcontext(tracer) if tracer is not None else closing(open_tracer()) as tracing,
        closing(
            open_sandbox(
                arch=arch,
                device=settings.device,
                compile_options=settings.compile_options().model_copy(update={"trust_host": trust_host}),
                verify_options=settings.verify_options().model_copy(update={"tier": tier}),
                quick=settings.time_options(full=False),
                full=settings.time_options(full=True),
                worker=settings.worker_options(),
                predict=predict,
                emit=emit,
                profile=settings.profiler,
                emulate=settings.emulate,
                rewrite=rewritten,
                resize=resized_by(tracing),
                race=settings.race_options(),
                baselines=baselines,
            )
        ) as sandbox,
    ):
        yield sandbox


def share_of(settings: Settings, device: str, processes: int) -> Settings:
    """The settings of one of several processes that share the processors of a machine. `emulator/N` is the emulator."""
    jobs = max(settings.compile_jobs // max(processes, 1), 1)
    return settings.model_copy(update={"device": device_of(device), "compile_jobs": jobs})


def device_of(name: str) -> str:
    """The device of one of several processes; that of `emulator/N` is the emulator."""
    return name if is_remote(name) else name.partition("/")[0]
