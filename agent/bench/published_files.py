"""`bench ModelNew.py --problem FILE`: what others published for a problem, measured where the user trusts it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cudal2_agent.agent.wiring.gpus import visible_gpus
from cudal2_agent.agent.wiring.remote import is_remote
from cudal2_agent.contract.errors import DeviceUnavailable, UsageError
from cudal2_agent.contract.events import Emit, StageStarted
from cudal2_agent.contract.foreign import read_file
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.backend import compile_caches
from cudal2_agent.sandbox.cuda.published.measuring import measure
from cudal2_agent.sandbox.cuda.published.published_row import MAX_PUBLISHED_BYTES, PublishedRequest, PublishedRow

SEED = 42


def read_trusted(files: Sequence[Path], settings: Settings) -> list[str]:
    """The texts of files that can be measured here.

    Raises: UsageError without trust or for a file that cannot be read; DeviceUnavailable.
    """
    if not settings.trust_host:
        names = ", ".join(str(file) for file in files)
        raise UsageError(
            f"{names}: published modules run their own code, and the problem, here; add --trust-host if you trust them"
        )
    texts = [_text_of(file) for file in files]
    if is_remote(settings.device):
        raise UsageError("published modules are timed on this machine only; run bench where the GPU is, or leave out --device")
    if settings.device in ("none", "emulator") or settings.worker_options().device >= len(visible_gpus()):
        raise DeviceUnavailable(f"there is no GPU here for device {settings.device}, and bench needs one to time modules")
    return texts


def measure_files(
    files: Sequence[Path], texts: Sequence[str], task: ModuleTask, settings: Settings, emit: Emit, minutes: float
) -> Iterator[PublishedRow]:
    """One row per file, in order. `texts`: by `read_trusted`. `minutes`: limit of a file."""
    worker = settings.worker_options()
    options = settings.time_options(full=True).model_copy(update={"side": False})
    for file, text in zip(files, texts, strict=True):
        emit(StageStarted(candidate_id=file.name, stage="time"))
        request = PublishedRequest(
            task=task,
            text=text,
            device=worker.device,
            seed=SEED,
            time=options,
            turns=worker.turns,
            limit_s=60 * minutes,
        )
        caches = compile_caches(settings.compile_options())
        row = measure(request, caches, settings.home / "cache" / "published", worker.python)
        yield row.model_copy(update={"file": str(file)})


def _text_of(file: Path) -> str:
    """Raises: UsageError."""
    try:
        return read_file(file, MAX_PUBLISHED_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text" if isinstance(exc, UnicodeError) else exc
        raise UsageError(f"{file} cannot be read: {reason}") from exc
