"""The one service of a process, and what it has replaced in PyTorch."""

import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from cudal2.dispatch.decision import GpuIdentity
from cudal2.library.kernel_library import KernelLibrary, open_library, shipped_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2.torch import compiled_build
from cudal2.torch.aten_override import OPERATORS, AtenOverride
from cudal2.torch.background_builds import CommandBuilder, run_prepare
from cudal2.torch.compiled_kernels import CompiledKernels
from cudal2.torch.device_dispatch import LibraryChoice
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2.torch.invariant_operators import SERVED, InvariantOperators
from cudal2.torch.invariant_products import InvariantProducts
from cudal2.torch.kernel_registrations import told_of_others
from cudal2.torch.product_service import ProductService
from cudal2.torch.service_status import Status, read_invariant, read_status
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import load_settings

if TYPE_CHECKING:  # it imports Inductor
    from cudal2.torch.inductor.layer_pass import LayerPass


class _ProcessState:
    """What this process has set up. `lock`: held while it changes. `compiled`: the files of C++ kernels that were loaded.

    `invariant`: what the batch-invariant mode serves, while it is on. `operators`: those that it has replaced, by dispatch key.
    `layers`: what puts products with activations into compiled graphs, where the library has some.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.service: ProductService | None = None
        self.override: AtenOverride | None = None
        self.compiled: dict[Path, CompiledKernels] = {}
        self.invariant: InvariantProducts | None = None
        self.operators: dict[str, InvariantOperators] = {}
        self.layers: LayerPass | None = None


_SESSION = _ProcessState()


class Replacement:
    """What `enable` has replaced. As a context manager it puts back what was there before, at the end of the block."""

    def __init__(self, before: AtenOverride | None, invariant: InvariantProducts | None) -> None:
        self._before, self._invariant = before, invariant

    def __enter__(self) -> "Replacement":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with _SESSION.lock:
            if self._invariant is not None:
                _serve_invariant(self._invariant)
                return
            disable()
            if self._before is not None:
                _replace(self._before.service, self._before.operators)


def service() -> ProductService:
    """The service of this process, with the shipped library of each GPU unless `configure` has named one."""
    with _SESSION.lock:
        if _SESSION.service is None:
            _SESSION.service = _service_of(_shipped)
        return _SESSION.service


def enabled_service(operator: str) -> ProductService | None:
    """The service that an operator of PyTorch asks now; None while the library does not serve it."""
    override = _SESSION.override
    return override.service if override is not None and operator in override.operators else None


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor | None:
    """The product of two matrices by the library; None where the caller has to compute it.

    In the batch-invariant mode that is every product: `torch.mm` is what the mode serves.
    """
    return None if _SESSION.invariant is not None else (_SESSION.service or service()).product(a, b, out)


def configure(library: Path | str) -> None:
    """Serve from a library of your own: a folder or a packed file. What is enabled stays enabled, with the new library.

    Raises: UsageError where there is none; LibraryError where it is damaged.
    """
    opened = open_library(Path(library))
    has_activations = any(key.activation is not None for key in opened.keys())  # noqa: SIM118
    use_service(_service_of(lambda identity: opened, has_activations=has_activations))  # noqa: ARG005


def use_service(chosen: ProductService) -> None:
    """Serve by another service from now on; kernels of the one before stay loaded."""
    with _SESSION.lock:
        _SESSION.service = chosen
        if _SESSION.override is not None:
            _replace(chosen, _SESSION.override.operators)


def enable(
    library: Path | str | None = None,
    operators: tuple[str, ...] = OPERATORS,
    *,
    batch_invariant: bool = False,
    allow_other: bool = False,
) -> Replacement:
    """Replace the CUDA kernels of `aten::mm` and `aten::addmm` by ones that ask the library first.

    They are in C++ where `cudal2-agent library prepare` has compiled them for this PyTorch, else in Python, which is slower.
    Without a GPU nothing is replaced, which `status` reports. In a `with` statement the replacement ends with the block.
    Where the library has entries with activations, `torch.compile` puts these into the graphs that it makes from now on.

    `batch_invariant`: instead of the library, kernels serve all matrix products whose order of summation does not depend on M.
    They are built now unless they are there. `allow_other`: what these have no kernel for is PyTorch's own, and else an error.
    Raises: UsageError, LibraryError, as `configure`; ValueError for another operator, and for arguments that contradict each
    other. With `batch_invariant` also LibraryError where the kernels cannot be built, LauncherError where they do not load.
    """
    with _SESSION.lock:
        replacement = Replacement(_SESSION.override, _SESSION.invariant)
        if batch_invariant:
            if library is not None or operators != OPERATORS:
                raise ValueError("the batch-invariant mode asks no library and replaces all matrix products; name neither")
            enable_invariant(allow_other=allow_other)
            return replacement
        if allow_other:
            raise ValueError("allow_other belongs to batch_invariant=True")
        if _SESSION.invariant is not None:
            raise UsageError("the batch-invariant mode is on; end it by cudal2.disable() before the library is enabled")
        if library is not None:
            configure(library)
        _replace(service(), operators)
        return replacement


def disable() -> None:
    """Put the original kernels back. Matrix products that are under way end as they began."""
    with _SESSION.lock:
        _stop()
        if _SESSION.invariant is not None:
            _SESSION.operators[_SESSION.invariant.platform.dispatch_key].serve(None)
            _SESSION.invariant = None


def invariant_operators(key: str) -> InvariantOperators:
    """The operators of a dispatch key that the batch-invariant mode has replaced, or will. Raises: UsageError."""
    with _SESSION.lock:
        if key not in _SESSION.operators:
            _SESSION.operators[key] = InvariantOperators(key)
        return _SESSION.operators[key]


def enable_invariant(*, allow_other: bool, load: bool = True) -> None:
    """The batch-invariant mode, as `enable`. Without `load` the code of a device is loaded by its first product.

    Raises: LibraryError where the kernels cannot be built; with `load` LauncherError where they do not load.
    """
    with _SESSION.lock:
        chosen = service()
        if missing := chosen.platform.missing():
            chosen.notices.add(missing)
            return
        folder = chosen.prepared.folder
        _serve_invariant(InvariantProducts(chosen.platform, folder, _build_invariant, allow_other=allow_other, load=load))


def _build_invariant(arch: Arch) -> None:
    run_prepare("--batch-invariant", "--arch", arch.value)


def _serve_invariant(products: InvariantProducts) -> None:
    """The mode is on from here on, without a moment in which it is not, and nothing else of this package serves."""
    replaced = invariant_operators(products.platform.dispatch_key)
    before, _SESSION.invariant = _SESSION.invariant, products
    replaced.serve(products)
    _stop()
    if before is not None and before.platform.dispatch_key != replaced.key:
        _SESSION.operators[before.platform.dispatch_key].serve(None)


def status() -> Status:
    """What is enabled, and how many calls were served or fell back, and why: `print` it, or take its `model_dump`."""
    with _SESSION.lock:
        override, invariant = _SESSION.override, _SESSION.invariant
        if invariant is not None:
            shadowed = _SESSION.operators[invariant.platform.dispatch_key].shadowed()
            return read_status(service(), SERVED, ("Python",), read_invariant(invariant, shadowed))
        if override is None:
            return read_status(service(), (), ())
        return read_status(service(), override.operators, override.languages)


def _replace(chosen: ProductService, operators: tuple[str, ...]) -> None:
    """Have operators ask a service, without a moment in which those that are enabled ask none."""
    with _SESSION.lock:
        if missing := chosen.platform.missing():
            disable()
            chosen.notices.add(f"{missing}, so nothing is replaced")
            return
        for line in told_of_others(operators, chosen.platform.dispatch_key):
            chosen.notices.add(line)
        before, _SESSION.override = _SESSION.override, _override(chosen, operators)
        if before is not None:
            before.stop(_SESSION.override)
        _find_layers(chosen, operators)


def _stop() -> None:
    """Ask the library no longer."""
    if _SESSION.override is not None:
        _SESSION.override.stop()
        _SESSION.override = None
    _leave_graphs()


def _leave_graphs() -> None:
    """Leave the graphs that `torch.compile` makes from now on as they are."""
    if _SESSION.layers is not None:
        _SESSION.layers.remove()
        _SESSION.layers = None


def _find_layers(chosen: ProductService, operators: tuple[str, ...]) -> None:
    """Have `torch.compile` ask a service for products with activations, where it has some."""
    _leave_graphs()
    if not chosen.has_activations:
        return
    try:
        from cudal2.torch.inductor.layer_pass import LayerPass

        _SESSION.layers = LayerPass(chosen, operators)
    except (ImportError, AttributeError) as exc:
        chosen.notices.add(f"compiled programs run no product with its activation, since PyTorch lacks a part: {exc}")


def _override(chosen: ProductService, operators: tuple[str, ...]) -> AtenOverride:
    """By kernels in C++ where they are built. Where they are built and cannot be used, a note says why."""
    try:
        return AtenOverride(chosen, operators, compiled_kernels(chosen))
    except LibraryError as exc:
        chosen.notices.add(f"the part in C++ cannot be used: {exc}")
        return AtenOverride(chosen, operators)


def compiled_kernels(chosen: ProductService) -> CompiledKernels | None:
    """The kernels in C++ from the cache of a service; None where they are not built. Raises: LibraryError."""
    file = compiled_build.find(chosen.prepared.folder, chosen.platform.dispatch_key)
    if file is not None and file not in _SESSION.compiled:
        _SESSION.compiled[file] = CompiledKernels(file)
    return None if file is None else _SESSION.compiled[file]


def _service_of(libraries: LibraryChoice, *, has_activations: bool = False) -> ProductService:
    prepared = PreparedKernels(load_settings().home / "cache" / "library")
    return ProductService(CudaPlatform(), libraries, prepared, CommandBuilder(), has_activations=has_activations)


def _shipped(identity: GpuIdentity) -> KernelLibrary | None:
    """None of these has an entry with an activation."""
    return shipped_library(identity.gpu)
