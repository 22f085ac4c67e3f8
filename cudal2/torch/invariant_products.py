"""Matrix products whose order of summation does not depend on M: the path of a call in the batch-invariant mode.

Covered: every product of two f16 or two bf16 matrices on any number of devices, streams and threads, and inside the capture of
a graph: the code of all kernels is loaded with the first product of a device. What no kernel takes as it lies is copied first,
which changes no sum.
Not covered: other types, and operands B of 2^31 elements and more. They are errors, or PyTorch's own where the program allows
that. A launch that fails is an error too: nothing else computes the product.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cudal2.dispatch.decision import GpuIdentity
from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.library.invariant_set import BuiltSet, read_set
from cudal2.library.prepared_kernels import CachedKernel
from cudal2.torch.call_counts import CallTally
from cudal2.torch.gpu_platform import Platform
from cudal2.torch.matrix_signature import MatrixForm, column_major, form_of, row_major
from cudal2.version import __version__
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import MAX_OPERAND_ELEMENTS, Arch, ElementType, GemmTask, Layout

MAX_ROUTES = 65536  # a program with more signatures than that starts anew
_SLICE_ROWS = 128  # slices of a large A are multiples of this, so that those of D are aligned

BuildSet = Callable[[Arch], None]


class InvariantDevice(NamedTuple):
    """One device and the kernels that were built for its architecture."""

    identity: GpuIdentity
    arch: Arch
    built: BuiltSet


class InvariantRoute(NamedTuple):
    """What a signature leads to. `launch` is None where there is nothing to sum, or PyTorch refuses the operands.

    `copies_a`, `copies_b`: an operand is copied to packed rows first.
    """

    launch: Callable[[int, int, int, int], None] | None
    tally: CallTally
    device: int
    rows: int
    columns: int
    copies_a: bool
    copies_b: bool


class InvariantCounts:
    """Calls by how they were summed; operands that were copied first; calls that were PyTorch's own, by what they asked for."""

    def __init__(self) -> None:
        self.served: dict[str, CallTally] = {}
        self.copied = CallTally()
        self.others: dict[str, CallTally] = {}


class InvariantProducts:
    """The mode of a process. `allow_other`: what has no kernel is computed by PyTorch, and counted, instead of refused.

    `folder`: the cache of built kernels. `build`: builds the set of an architecture into it, and returns when it is there. The
    sets of all GPUs are built now. Code is loaded now on the current device alone, so that no other gets a context; without
    `load` that too waits for the first product of a device.
    Raises: UsageError for a current device that no kernel runs on; LibraryError where a set cannot be built, LauncherError
    where the driver refuses it.
    """

    def __init__(self, platform: Platform, folder: Path, build: BuildSet, *, allow_other: bool, load: bool = True) -> None:
        self.platform, self.allow_other, self.counts = platform, allow_other, InvariantCounts()
        self._misaligned = platform.alignment - 1  # bits of an address
        self._lock = threading.RLock()
        self._kept: dict[Any, InvariantRoute] = {}
        self._loaded: dict[tuple[int, GemmTask], tuple[LoadedKernel, CallTally]] = {}
        self._identities = {device: platform.identity(device) for device in platform.devices()}
        archs = sorted({one.arch for one in self._identities.values() if one.arch is not None})
        self._sets = {arch: _built(arch, folder, build) for arch in archs}
        self.devices: dict[int, InvariantDevice] = {}
        if load:
            self._device(platform.current_device())

    def product(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor | None:
        """The product of an M×K and a K×N matrix, on the current stream, rounded once to their type. `out`: is written.

        None where PyTorch's own kernel has no sum to order: an empty size, operands that it refuses, or an allowed other type.
        Raises: UsageError for what has no kernel; LauncherError where the driver refuses the launch.
        """
        key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device(), b.get_device())
        route = self._kept.get(key) or self._open(key, a, b)
        if route is None:
            return self._in_slices(a, b, out)
        if route.launch is None:
            return None
        a, b = self._placed(a, copy=route.copies_a), self._placed(b, copy=route.copies_b)
        target = out if out is not None and self._writable(out, a, b) else a.new_empty(route.rows, route.columns)
        addresses = a.data_ptr(), b.data_ptr(), target.data_ptr()
        if 0 in addresses:  # zeros without memory
            return None
        route.launch(*addresses, self.platform.stream(route.device))
        route.tally.calls += 1
        return target if out is None or target is out else out.copy_(target)

    def other(self, what: str, instead: str) -> None:
        """Count a call that PyTorch computes. Raises: UsageError, which says what to do `instead`, unless it is allowed."""
        if not self.allow_other:
            raise UsageError(
                f"the batch-invariant mode has no kernel for {what}; {instead}, "
                "or let PyTorch's own kernels run: cudal2.enable(batch_invariant=True, allow_other=True)"
            )
        with self._lock:
            self.counts.others.setdefault(what, CallTally()).calls += 1

    # ---- devices and their kernels --------------------------------------------------------------------------------------

    def _device(self, device: int) -> InvariantDevice:
        """A device with all code loaded. Raises: UsageError for one that no kernel runs on; LauncherError."""
        with self._lock:
            if device not in self.devices:
                identity = self._identities[device]
                if identity.arch is None:
                    raise UsageError(f"the batch-invariant mode has no kernels for device {device}, {identity.gpu}")
                found = InvariantDevice(identity, identity.arch, self._sets[identity.arch])
                self._load_all(device, found)
                self.devices[device] = found
            return self.devices[device]

    def _load_all(self, device: int, found: InvariantDevice) -> None:
        """Load the code of every kernel, by a small product of each, so that a graph's capture rarely has to."""
        for kernel in found.built.kernels.kernels:
            sizes = {"m": 8, "n": kernel.n_step, "k": kernel.k_step}
            task = GemmTask(**sizes, layout=kernel.layout, element=kernel.element, arch=found.arch)
            plan = resolve(kernel.plan, task, LIMITS[found.arch], found.identity.sms)
            self.platform.load(device, CachedKernel(found.built.cubin(kernel), plan, shared=True), task)

    def _kernel(self, device: int, task: GemmTask) -> tuple[LoadedKernel, CallTally] | None:
        """The kernel of a product, with the counter of how it sums; None where A has to be copied to rows first."""
        known = self._loaded.get((device, task))
        if known is not None:
            return known
        found = self._device(device)
        kernel = found.built.kernels.choose(task, found.identity.sms)
        if kernel is None:
            return None
        plan = resolve(kernel.plan, task, LIMITS[found.arch], found.identity.sms)
        loaded = self.platform.load(device, CachedKernel(found.built.cubin(kernel), plan, shared=True), task)
        tally = self.counts.served.setdefault(kernel.summation, CallTally())
        if len(self._loaded) >= MAX_ROUTES:
            self._loaded.clear()
        self._loaded[device, task] = loaded, tally
        return loaded, tally

    # ---- routes ---------------------------------------------------------------------------------------------------------

    def _open(self, key: Any, a: torch.Tensor, b: torch.Tensor) -> InvariantRoute | None:
        """The route of a signature, which is kept; None for a product in slices. Raises: as `product`."""
        left, right = (form_of(one, self.platform.device_type) for one in (a, b))
        if _not_a_product(left, right) or a.dtype is not b.dtype:
            return InvariantRoute(None, CallTally(), -1, 0, 0, False, False)
        if left.element is None or left.device is None:
            self.other(f"matrix products of {str(a.dtype).removeprefix('torch.')}", "use float16 or bfloat16")
            return InvariantRoute(None, CallTally(), -1, 0, 0, False, False)
        (m, k), n = left.shape, right.shape[1]
        if k * n > MAX_OPERAND_ELEMENTS:
            self.other(f"an operand B of {k}x{n} elements", "multiply its columns in parts")
            return InvariantRoute(None, CallTally(), -1, 0, 0, False, False)
        if max(m * k, m * n) > MAX_OPERAND_ELEMENTS:
            return None
        with self._lock:
            route = self._route(left, right, left.device, left.element)
            if len(self._kept) >= MAX_ROUTES:
                self._kept.clear()
            self._kept[key] = route
            return route

    def _route(self, a: MatrixForm, b: MatrixForm, device: int, element: ElementType) -> InvariantRoute:
        (m, k), n = a.shape, b.shape[1]
        transposed_b = not row_major(b) and column_major(b)
        transposed_a = not row_major(a) and column_major(a) and not transposed_b
        arch = self._device(device).arch
        task = GemmTask(m=m, n=n, k=k, element=element, arch=arch, layout=Layout.TN if transposed_b else Layout.NN)
        found = self._kernel(device, task.model_copy(update={"layout": Layout.NT})) if transposed_a else None
        copies_a = found is None and not row_major(a)
        loaded, tally = found or self._kernel(device, task) or (None, None)
        if loaded is None or tally is None:
            raise LibraryError(f"the batch-invariant set for {arch} has no {task.layout} kernel for {task.shape}")
        return InvariantRoute(loaded.launch, tally, device, m, n, copies_a, not transposed_b and not row_major(b))

    def _in_slices(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor | None:
        """A product of an A or D with too many elements for one launch: some of its rows at a time, which are summed alike."""
        (m, k), n = a.shape, b.shape[1]
        target = a.new_empty(m, n) if out is None else out
        rows = max(MAX_OPERAND_ELEMENTS // max(k, n) // _SLICE_ROWS * _SLICE_ROWS, 1)
        for first in range(0, m, rows):
            self.product(a[first : first + rows], b, target[first : first + rows])
        return target

    # ---- operands -------------------------------------------------------------------------------------------------------

    def _placed(self, matrix: torch.Tensor, *, copy: bool) -> torch.Tensor:
        """The matrix as kernels take it: packed, at an aligned address."""
        if not copy and not matrix.data_ptr() & self._misaligned:
            return matrix
        self.counts.copied.calls += 1
        return matrix.clone(memory_format=torch.contiguous_format if copy else torch.preserve_format)

    def _writable(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Whether a kernel can write a matrix of the caller's, which is not one that it reads."""
        if not out.is_contiguous() or out.data_ptr() & self._misaligned:
            return False
        memory = out.untyped_storage().data_ptr()
        return memory not in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())


def _built(arch: Arch, folder: Path, build: BuildSet) -> BuiltSet:
    """The set of an architecture, which is built where it is missing or damaged. Raises: LibraryError."""
    try:
        found = read_set(folder, arch, __version__)
    except LibraryError:  # damaged: it is built again
        found = None
    if found is None:
        build(arch)
        found = read_set(folder, arch, __version__)
    if found is None:
        raise LibraryError(f"the batch-invariant kernels for {arch} were built by another version than {__version__}")
    return found


def _not_a_product(a: MatrixForm, b: MatrixForm) -> bool:
    """Whether there is nothing to sum, or PyTorch refuses the operands: it then returns zeros, or raises its own error."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0] or a.device != b.device:
        return True
    return 0 in (*a.shape, *b.shape)
