"""What is known of kernels, by task: a library, and the searches of the store; and the chip that advice is for.

That is the chip that is named, traced or present, else the library's.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cudal2.dispatch.decision import Choice, GpuIdentity, gpu_and_driver
from cudal2.dispatch.dispatcher import Dispatcher, kind_code
from cudal2.dispatch.padded_m_rule import PaddedMRule, shipped_rule
from cudal2.library.kernel_library import KernelLibrary, key_of, open_library, shipped_paths
from cudal2_agent.agent.library.advise.products import Recording
from cudal2_agent.agent.library.measured_kernels import MeasuredKernel
from cudal2_agent.agent.wiring.gpus import Gpu
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm
from cudal2_agent.contract.records.task import Arch, GemmTask

# The entry of a task; None where the library has none.
Lookup = Callable[[GemmTask], LibraryEntry | None]
# The same for its algorithms of cuBLASLt.
AlgorithmLookup = Callable[[GemmTask], StoredAlgorithm | None]
_VENDOR = "NVIDIA "


class KnownKernels(NamedTuple):
    """A library as advice needs it: entries and algorithms by task. `chip`: the one that all of them were measured on.

    `padded_entry`: the entry of a larger M that serves a task; None where none does. `no_faster`: matrix products that were
    searched for the library in vain.
    """

    name: str
    chip: str
    arch: Arch
    find: Lookup
    algorithm: AlgorithmLookup = lambda task: None  # noqa: ARG005
    padded_entry: Lookup = lambda task: None  # noqa: ARG005
    no_faster: frozenset[str] = frozenset()


def open_kernels(path: Path | None, chip: str | None) -> KnownKernels:
    """The library at a path; without one that which ships for the chip, else the first that ships.

    Raises: UsageError where there is none at the path, LibraryError for a damaged one, MachineError where none ships.
    """
    if path is not None:
        return kernels_of(open_library(path))
    libraries = [open_library(one) for one in shipped_paths()]
    if not libraries:
        raise MachineError(
            "no kernel library ships with this product; build one with `cudal2-agent library build --out FOLDER`"
        )
    return kernels_of(next((one for one in libraries if one.manifest.chip.casefold() == (chip or "").casefold()), libraries[0]))


def kernels_of(library: KernelLibrary) -> KnownKernels:
    """Entries are validated when they are looked up."""
    manifest = library.manifest
    return KnownKernels(
        name=manifest.name,
        chip=manifest.chip,
        arch=Arch(manifest.arch),
        find=lambda task: library.find(key_of(task)),
        algorithm=lambda task: library.algorithm(key_of(task)),
        padded_entry=padded_entry_of(library, shipped_rule()),
        no_faster=frozenset(manifest.no_faster),
    )


def padded_entry_of(library: KernelLibrary, rule: PaddedMRule) -> Lookup:
    """The entries that dispatch chooses for a smaller M: by a measured range, or by the rule with the driver of the rule."""
    arch, (_, driver) = Arch(library.manifest.arch), gpu_and_driver(rule.measured)
    identity = GpuIdentity(gpu=library.manifest.chip, driver=driver, arch=arch, sms=REFERENCE_CHIPS[arch].sms)
    dispatcher = Dispatcher(library, identity, rule)

    def padded_entry(task: GemmTask) -> LibraryEntry | None:
        if (found := library.range_of(key_of(task))) is not None and found.entry.wins:
            return found.entry
        kind = kind_code(
            task.layout, task.element, task.accumulate, bias=task.bias, activation=task.activation, gated=task.gated
        )
        decision = dispatcher.decide(task.m, task.n, task.k, kind)
        return decision.entry if decision.choice is Choice.PADDED_M else None

    return padded_entry


def latest_searches(measured: Iterable[MeasuredKernel], chip: str) -> dict[GemmTask, MeasuredKernel]:
    """The newest search of each task on a chip: the best of several days would be a maximum over noise."""
    ours = (one for one in measured if one.chip == chip)
    return {one.task: one for one in sorted(ours, key=lambda one: one.row.finished_at)}


def autotuning_times(searches: dict[GemmTask, MeasuredKernel]) -> dict[GemmTask, float]:
    """cuBLASLt-AutoTuning's median by task. Unit: microseconds."""
    rows = {task: one.row.baselines_us for task, one in searches.items()}
    return {task: row[AUTOTUNED] for task, row in rows.items() if AUTOTUNED in row}


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
