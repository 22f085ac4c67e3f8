"""The plug-in for serving engines: vLLM and SGLang find it by an entry point and call it in each of their processes.

It does nothing unless the setting `serve` asks. Then it waits until the process initialises CUDA, which an engine does where it
computes: so processes that schedule or answer requests stay as they are, and one that is forked later keeps its CUDA.
Nothing is raised into the engine: what fails is one line of the log, which `cudal2.status` repeats.
Not covered: a launch that fails in the batch-invariant mode, which is an error of the product as always.
"""

import logging
from functools import cache, partial

from cudal2_agent.contract.settings.settings import load_settings

OFF, SHIPPED, BATCH_INVARIANT = "0", "1", "batch-invariant"  # what else `serve` holds is the place of a library

_LOG = logging.getLogger(__name__)


def enable_in_engine() -> None:
    """Have PyTorch's matrix products served as the setting `serve` says, once this process has CUDA. May be called again."""
    try:
        wanted = load_settings().serve
        if wanted is not None and wanted != OFF:
            _serve_with_cuda(wanted)
    except Exception as exc:  # noqa: BLE001 (whatever it is, the engine starts)
        _LOG.warning("cudal2: %s", _told(exc))


@cache
def _serve_with_cuda(wanted: str) -> None:
    """Serve now where CUDA is initialised, else when it is. PyTorch holds a lock then, so everything is imported now."""
    import torch

    from cudal2.torch import torch_session

    torch_session.service()
    torch.cuda._lazy_call(partial(_serve, wanted))


def _serve(wanted: str) -> None:
    """An engine chooses its device later, so code is not loaded here, on what is the first one as yet."""
    from cudal2.torch import torch_session

    try:
        if wanted == BATCH_INVARIANT:
            torch_session.enable_invariant(allow_other=True, load=False)
        else:
            if wanted != SHIPPED:
                torch_session.configure(wanted)
            torch_session.service().has_activations = False  # an engine's cache of graphs would keep the operator
            torch_session.enable()
    except Exception as exc:  # noqa: BLE001 (whatever it is, the engine starts)
        torch_session.service().notices.add(_told(exc))


def _told(exc: Exception) -> str:
    reason = " ".join(str(exc).split()) or type(exc).__name__
    return f"nothing is served in this engine: {reason}"
