"""A calibration from the settings: checks what it needs before any work, opens the parts, measures and adapts."""

import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from cudal2_agent.agent.learning.calibration.adaptation import CalibrationResult
from cudal2_agent.agent.learning.calibration.calibration import Base, Calibration, Tell
from cudal2_agent.agent.learning.calibration.calibration_runs import ShapeMeasurer, calibration_settings
from cudal2_agent.agent.learning.calibration.spread_schedules import calibration_tasks
from cudal2_agent.agent.wiring.gpus import default_arch, visible_gpus
from cudal2_agent.agent.wiring.remote import is_remote
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.agent.wiring.schedule_prior import open_prior
from cudal2_agent.contract.errors import DeviceUnavailable, UsageError
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.records.task import AccumulatorType, TimingMode
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.learned.policy_file import known_policies, read_weights
from cudal2_agent.store.store import open_store


def calibrate_device(
    settings: Settings, minutes: float, mode: TimingMode, accumulate: AccumulatorType, tell: Tell, emit: Emit
) -> CalibrationResult:
    """Raises: UsageError, MachineError, WorkerError, StoreError, TrainingFailed; KeyboardInterrupt, after which shapes stay."""
    require_parts(settings)
    arch = default_arch(settings.device)
    own = calibration_settings(settings)
    with (
        open_store(settings.store_url) as store,
        open_sandbox_of(arch, own, emit, baselines=store) as sandbox,
    ):
        environment = sandbox.environment
        if environment is None:
            raise DeviceUnavailable("nothing here measures, so that nothing can be calibrated; see: cudal2-agent doctor")
        prior_of = open_prior(settings)
        calibration = Calibration(
            tasks=calibration_tasks(arch, mode, accumulate),
            chip=sandbox.chip,
            environment=environment,
            home=settings.home,
            store=store,
            base=_base(settings.home),
            prior_of=prior_of,
            seed=settings.seed,
            product=version("cudal2-agent"),
            tell=tell,
        )
        calibration.measure(ShapeMeasurer(own, store, sandbox, prior_of, emit), minutes)
        return calibration.adapt()


def require_parts(settings: Settings) -> None:
    """Raises: UsageError, DeviceUnavailable: what is missing, before minutes are spent."""
    if settings.device in ("emulator", "none"):
        raise UsageError(f"calibrate measures, and --device {settings.device} does not; choose a GPU with --device cuda:0")
    if is_remote(settings.device):
        raise UsageError("calibrate keeps what it fits in the home of the GPU's machine; run it there")
    if find_spec("torch") is None:
        raise UsageError("calibrate trains a policy, which needs torch; run: pip install 'torch>=2.11,<3'")
    if not visible_gpus():
        raise DeviceUnavailable("calibrate measures, and there is no GPU here; run it on a machine that has one")
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.home):
            pass
    except OSError as exc:
        raise UsageError(f"{settings.home} cannot be written: {exc.strerror}; choose another home with CUDAL2_HOME") from exc


def _base(home: Path) -> Base:
    """The policy that ships; none where this version ships none that it reads."""
    known, _ = known_policies(home)
    for one in reversed([one for one in known if one.origin == "built in"]):
        try:
            _, network, trees = read_weights(one.path)
            return Base(one.name, network.tensors, trees)
        except UsageError:
            continue
    return Base()
