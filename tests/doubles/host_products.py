"""A platform on the CPU for the library's part in PyTorch: the product is computed at the addresses that a launch is given."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch

from cudal2.dispatch.decision import GpuIdentity
from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.library.kernel_library import KernelLibrary, open_library
from cudal2.library.prepared_kernels import CachedKernel, PreparedKernels
from cudal2.torch.background_builds import BuildOrder
from cudal2.torch.inductor.linear_activation import APPLIED
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.errors import LauncherError, LibraryError
from cudal2_agent.contract.plan.plan import LaunchPlan, ResolvedPlan
from cudal2_agent.contract.records.library import PaddedKernel, PreparedKernel, RangeKernel, StoredAlgorithm
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout
from tests.doubles.libraries import CHIP, library_entry, m_range, write_entries

IDENTITY = GpuIdentity(gpu=CHIP, driver="580.1", arch=Arch.SM_90A, sms=132, cublas="13.1.0")
_BASE = library_entry(GemmTask(m=16, n=16, k=64))  # its schedule does not run for every task, and nothing compiles it
_TYPES = {ElementType.F16: torch.float16, ElementType.BF16: torch.bfloat16}


_ANY_M = LaunchPlan.model_validate(
    {
        "arch": "sm_90a",
        "launches": [
            {
                "entry": "gemm",
                "grid": ["ceil(N/16)", "ceil(M/16)", 1],
                "block": [256, 1, 1],
                "args": [{"tensor": "D", "access": "write"}, {"scalar": "M"}],
            }
        ],
    }
)


def at(address: int, rows: int, columns: int, element: ElementType) -> torch.Tensor:
    """The row-major matrix at an address."""
    words = (ctypes.c_uint16 * (rows * columns)).from_address(address)
    return torch.frombuffer(words, dtype=_TYPES[element]).view(rows, columns)


class HostKernel:
    """Computes D = A·B, adds the bias, applies the activation and multiplies by A·up, in f32 and in the layout of the task.

    `launches`: the streams it was launched on.
    """

    c_entry = None

    def __init__(self, task: GemmTask, failing: bool) -> None:
        self._task, self._failing = task, failing
        self.launches: list[int] = []

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        if self._failing:
            raise LauncherError("cuLaunchKernelEx failed", "CUDA_ERROR_INVALID_VALUE")
        task = self._task
        left = at(a, task.k, task.m, task.element).t() if task.layout is Layout.NT else at(a, task.m, task.k, task.element)
        assert (task.third is not None) == bool(third)

        def product(address: int) -> torch.Tensor:
            rows, columns = (task.n, task.k) if task.layout is Layout.TN else (task.k, task.n)
            right = at(address, rows, columns, task.element)
            right = right.t() if task.layout is Layout.TN else right
            return torch.bmm(left.float()[None], right.float()[None])[0]  # aten::bmm is not replaced

        sums = product(b) + (at(third, 1, task.n, task.element).float() if task.bias else 0.0)
        out = sums if task.activation is None else APPLIED[task.activation](sums)
        at(d, task.m, task.n, task.element).copy_(out * product(third) if task.gated else out)
        self.launches.append(stream)


class HostPlatform:
    """The CPU as a GPU. `is_capturing`, `failing`, `refusing`: whether a graph is captured, launches fail, loads fail."""

    dispatch_key = "CPU"
    device_type = "cpu"
    alignment = 16  # of PyTorch's CPU allocator: 64

    def __init__(self, identity: GpuIdentity = IDENTITY, why_missing: str = "") -> None:
        self._identity, self._missing = identity, why_missing
        self.is_capturing = self.failing = self.refusing = False
        self.stream_handle = 7
        self.kernels: list[HostKernel] = []

    @property
    def launches(self) -> int:
        return sum(len(kernel.launches) for kernel in self.kernels)

    def missing(self) -> str:
        return self._missing

    def devices(self) -> tuple[int, ...]:
        return () if self._missing else (-1,)  # as CPU tensors number their device

    def current_device(self) -> int:
        return -1

    def identity(self, device: int) -> GpuIdentity:  # noqa: ARG002
        return self._identity

    def load(self, device: int, kernel: CachedKernel, task: GemmTask) -> HostKernel:  # noqa: ARG002
        if self.refusing:
            raise LauncherError("cuLibraryLoadData failed", "CUDA_ERROR_INVALID_IMAGE")
        self.kernels.append(HostKernel(task, self.failing))
        return self.kernels[-1]

    def load_algorithm(self, device: int, algorithm: StoredAlgorithm) -> LoadedKernel:  # noqa: ARG002
        if self.refusing:
            raise LauncherError("cuBLASLt does not suggest the stored algorithm", "CUBLAS_STATUS_NOT_SUPPORTED")
        self.kernels.append(HostKernel(algorithm.task, self.failing))
        return self.kernels[-1]

    def stream(self, device: int) -> int:  # noqa: ARG002
        return self.stream_handle

    def capturing(self) -> bool:
        return self.is_capturing


class FileBuilder:
    """Writes what `library prepare` writes, with an invented cubin; fails while `failing` is set."""

    def __init__(self, prepared: PreparedKernels) -> None:
        self._prepared = prepared
        self.failing = False
        self.orders: list[BuildOrder] = []

    def build(self, order: BuildOrder) -> None:
        self.orders.append(order)
        if self.failing:
            raise LibraryError("the compiler is missing")
        prepare(self._prepared, order)


def prepare(prepared: PreparedKernels, order: BuildOrder) -> None:
    import hashlib

    cubin = order.entry.source_sha256.encode()
    prepared.folder.mkdir(parents=True, exist_ok=True)
    if order.ranged:
        m_range = open_library(order.library).range_below(order.entry)
        assert m_range is not None
        ranged = RangeKernel(
            entry_task=order.entry.task,
            smallest=m_range.smallest,
            source_sha256=order.entry.source_sha256,
            text_sha256=m_range.source_sha256,
            cubin_sha256=hashlib.sha256(cubin).hexdigest(),
            compiler="nvrtc 13.0",
            plan=_ANY_M,
            verdicts={m_range.smallest: "right"},
        )
        files = prepared.range_paths(order.entry, order.sms)
        files[0].write_bytes(cubin)
        files[1].write_text(ranged.model_dump_json(), encoding="utf-8")
        return
    padded = order.task != order.entry.task
    plan = ResolvedPlan(launches=(), workspace_bytes=0, zero=False, zero_bytes=0, sms=order.sms)
    more = {"entry_task": order.entry.task, "text_sha256": "0" * 64, "verdict": "right"} if padded else {}
    record = (PaddedKernel if padded else PreparedKernel)(
        task=order.task,
        source_sha256=order.entry.source_sha256,
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compiler="nvrtc 13.0",
        plan=plan,
        **more,
    )
    prepared.cubin_path(order.entry, order.task).write_bytes(cubin)
    prepared.plan_path(order.entry, order.sms, order.task).write_text(record.model_dump_json(), encoding="utf-8")


def offer_compiled(kernels: Path, folder: Path) -> None:
    """Lay C++ kernels, which are in a folder, into the cache of the products of another folder."""
    cache = folder / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for file in kernels.glob("aten-*"):
        (cache / file.name).symlink_to(file)


class HostProducts:
    """A service on the CPU over a small library whose kernels are ready, or are built when they are asked for.

    `algorithms`: of cuBLASLt, beside the kernels of the tasks. `smallest`: of the ranges of M of the tasks; None for no ranges.
    """

    def __init__(
        self,
        folder: Path,
        tasks: Sequence[GemmTask],
        *,
        ready: bool = True,
        platform: HostPlatform | None = None,
        algorithms: Sequence[StoredAlgorithm] = (),
        smallest: int | None = None,
    ):
        entries = [_BASE.model_copy(update={"task": task}) for task in tasks]
        ranges = [] if smallest is None else [m_range(entry, smallest) for entry in entries]
        self.library: KernelLibrary = open_library(write_entries(folder / "library", entries, algorithms, ranges))
        self.prepared = PreparedKernels(folder / "cache")
        self.builder = FileBuilder(self.prepared)
        self.platform = platform or HostPlatform()
        if ready:
            for entry in entries:
                prepare(self.prepared, BuildOrder(entry, entry.task, self.library.path, IDENTITY.sms))
                if smallest is not None:
                    prepare(self.prepared, BuildOrder(entry, entry.task, self.library.path, IDENTITY.sms, ranged=True))
        self.service = ProductService(
            self.platform,
            lambda identity: self.library,  # noqa: ARG005
            self.prepared,
            self.builder,
            has_activations=any(task.activation is not None for task in tasks),
        )
