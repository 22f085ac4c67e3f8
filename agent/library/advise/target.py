"""The chip that advice is for: the one that is named, traced or present, else the library's."""

from collections.abc import Sequence

from cudal2_agent.agent.library.advise.known_kernels import KnownKernels
from cudal2_agent.agent.library.advise.products import Recording
from cudal2_agent.agent.wiring.gpus import Gpu
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.task import Arch

_VENDOR = "NVIDIA "


class Target(Record):
    """A chip by its name, as environments have it. `arch`: None where only the name is known."""

    name: str
    arch: Arch | None = None


def find_target(named: str | None, recording: Recording, gpus: Sequence[Gpu]) -> Target | None:
    """None where nothing says which chip. Raises: UsageError for a traced GPU that this product writes no kernels for."""
    if named is not None:
        return Target(name=named.removeprefix(_VENDOR).strip())
    if recording.gpu is not None and recording.capability is not None:
        arch = next((arch for arch in Arch if arch.number == recording.capability), None)
        if arch is None:
            raise UsageError(
                f"the trace is of {recording.gpu}, for which this product has no kernels; --chip names another one"
            )
        return Target(name=recording.gpu, arch=arch)
    return next((Target(name=gpu.name.removeprefix(_VENDOR).strip(), arch=gpu.arch) for gpu in gpus if gpu.arch), None)


def chip_of(target: Target | None, kernels: KnownKernels) -> Chip:
    """The chip with the rates that predictions take: its own where they are known, else those of its architecture's reference.

    Raises: UsageError for a name that is neither the library's chip nor one whose rates are known.
    """
    if target is None or target.name.casefold() == kernels.chip.casefold():
        return _with_rates(kernels.chip, kernels.arch)
    known = {chip.name.casefold(): chip for chip in REFERENCE_CHIPS.values()}
    if target.name.casefold() in known:
        return known[target.name.casefold()]
    if target.arch is None:
        names = ", ".join(sorted({kernels.chip, *(chip.name for chip in known.values())}))
        raise UsageError(f"--chip {target.name!r} is not known; choose from {names}")
    return _with_rates(target.name, target.arch)


def _with_rates(name: str, arch: Arch) -> Chip:
    reference = REFERENCE_CHIPS[arch]
    return reference if reference.name == name else reference.model_copy(update={"name": name, "measured": False})
