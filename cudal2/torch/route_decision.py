"""The route of a signature: which kernel or algorithm is launched for it, or why PyTorch computes it.

Covered: any number of devices. A kernel is loaded once per device, and stays loaded until the process ends, because captured
CUDA graphs keep launching it. Nothing is compiled here: a kernel that is not built is ordered.
Kernels that take M as it comes are loaded with the first product of their weight, so that a graph may be captured for any M.
Not covered: other kernels that are not loaded when a CUDA graph is captured. The graph then holds PyTorch's own kernel.
"""

from cudal2.dispatch.decision import Decision, FallbackCause
from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.library.kernel_library import EntryRange
from cudal2.library.prepared_kernels import CachedKernel, PreparedKernels, RangedKernel
from cudal2.torch.background_builds import BackgroundBuilds, BuildOrder
from cudal2.torch.call_counts import CallCounts, CallTally
from cudal2.torch.call_routes import CallRoute
from cudal2.torch.device_dispatch import MEASURE, DeviceDispatch, Devices
from cudal2.torch.gpu_platform import Platform
from cudal2.torch.matrix_signature import MatrixForm, MatrixSignature, read_signature
from cudal2.torch.notices import Notices
from cudal2_agent.contract.errors import Cudal2Error, DeviceUnavailable, LibraryError
from cudal2_agent.contract.records.library import LibraryEntry, MRange, StoredAlgorithm
from cudal2_agent.contract.records.task import Activation, GemmTask


class RouteDecision:
    """Decides routes; one thread at a time asks it. `prepared`: the cache that `builds` are written to."""

    def __init__(
        self,
        platform: Platform,
        devices: Devices,
        prepared: PreparedKernels,
        builds: BackgroundBuilds,
        counts: CallCounts,
        notices: Notices,
    ) -> None:
        self._platform, self._devices, self._prepared, self._builds = platform, devices, prepared, builds
        self._counts, self._notices = counts, notices
        self._loaded: dict[tuple[int, str, GemmTask], CallRoute] = {}
        # By device and id: kernels that take M as it comes, whose code the device holds; None for one that cannot be loaded.
        self._ranged: dict[tuple[int, str], RangedKernel | None] = {}

    def route(
        self,
        a: MatrixForm,
        b: MatrixForm,
        bias: MatrixForm | None = None,
        activation: Activation | None = None,
        up: MatrixForm | None = None,
    ) -> CallRoute:
        """The route of a matrix product, which may add a bias, have an activation and be gated by a second one of `up`.

        Nothing that a graph's capture forbids is done during one.
        """
        signature = read_signature(a, b, bias, activation, up)
        found = signature if isinstance(signature, FallbackCause) else self._launch_of(signature, a.device)
        return CallRoute(self._counts.by_cause[found], found) if isinstance(found, FallbackCause) else found

    def _launch_of(self, signature: MatrixSignature, device: int | None) -> CallRoute | FallbackCause:
        assert device is not None
        on_device = self._devices.find(device)
        if isinstance(on_device, FallbackCause):
            return on_device
        try:
            if not self._platform.capturing():
                self._load_ranges(signature, on_device, device)
            decision = on_device.dispatcher.decide(*signature)
            if decision.algorithm is not None:
                return self._algorithm(decision.algorithm, signature, device)
            kernel = self._kernel(decision, on_device, device)
            return kernel if isinstance(kernel, FallbackCause) else self._load(decision, kernel, signature, device)
        except Cudal2Error as exc:
            cause = FallbackCause.NO_LAUNCHER if isinstance(exc, DeviceUnavailable) else FallbackCause.UNUSABLE
            self._notices.add(f"{cause.sentence}: {exc}")
            return cause

    def _load_ranges(self, signature: MatrixSignature, on_device: DeviceDispatch, device: int) -> None:
        """Load the kernels for all ranges of M of a weight, so that a graph may be captured for any M. Others are ordered."""
        for entry, m_range in on_device.dispatcher.ranges(signature.n, signature.k, signature.kind):
            if (device, entry.id) not in self._ranged:
                try:
                    self._load_range(entry, m_range, on_device, device)
                except Cudal2Error as exc:
                    self._notices.add(f"{FallbackCause.UNUSABLE.sentence}: {exc}")
                    self._ranged[device, entry.id] = None

    def _load_range(self, entry: LibraryEntry, m_range: MRange, on_device: DeviceDispatch, device: int) -> None:
        """Raises: Cudal2Error where the kernel cannot be loaded."""
        sms = on_device.identity.sms
        try:
            found = self._prepared.find_range(entry, m_range, sms)
        except LibraryError as exc:
            self._notices.add(str(exc))
            found = None
        if found is None:
            self._builds.request(BuildOrder(entry, entry.task, on_device.library.path, sms, ranged=True))
            return
        largest = entry.task.model_copy(update={"m": entry.task.m - 1})
        self._platform.load(device, found.at(largest, sms), largest)
        self._ranged[device, entry.id] = found

    def _in_range(
        self, found: EntryRange, task: GemmTask, on_device: DeviceDispatch, device: int
    ) -> CachedKernel | FallbackCause:
        """The kernel of a range for a product in it, whose code the device holds. Raises: Cudal2Error."""
        entry, m_range = found
        key, sms = (device, entry.id), on_device.identity.sms
        if key not in self._ranged:
            if self._platform.capturing():
                return FallbackCause.CAPTURING
            cause = self._builds.request(BuildOrder(entry, entry.task, on_device.library.path, sms, ranged=True))
            if cause is FallbackCause.BUILD_FAILED:  # unless it ended just now
                self._load_range(entry, m_range, on_device, device)
            if key not in self._ranged:
                return cause
        ranged = self._ranged[key]
        return FallbackCause.UNUSABLE if ranged is None else ranged.at(task, sms)

    def _kernel(self, decision: Decision, on_device: DeviceDispatch, device: int) -> CachedKernel | FallbackCause:
        """The built kernel of a decision, or why there is none now. A missing or damaged one is built in the background."""
        entry, task, sms = decision.entry, decision.task, on_device.identity.sms
        if entry is None or task is None:
            return self._no_entry(decision, on_device)
        if decision.m_range is not None:
            return self._in_range(EntryRange(entry, decision.m_range), task, on_device, device)
        if self._platform.capturing():
            return FallbackCause.CAPTURING
        try:
            found = self._prepared.find(entry, sms, task)
        except Cudal2Error as exc:
            self._notices.add(str(exc))
            found = None
        if found is not None:
            return found
        cause = self._builds.request(BuildOrder(entry, task, on_device.library.path, sms))
        if cause is FallbackCause.BUILD_FAILED:  # unless it ended just now
            found = self._prepared.find(entry, sms, task)
        return found or cause

    def _no_entry(self, decision: Decision, on_device: DeviceDispatch) -> FallbackCause:
        cause = decision.cause or FallbackCause.NO_ENTRY
        if cause in (FallbackCause.OTHER_GPU, FallbackCause.OTHER_DRIVER, FallbackCause.OTHER_NVRTC):
            self._notices.add(f"{cause.sentence}; {MEASURE}")
        elif cause is FallbackCause.OTHER_CUBLAS:
            self._notices.add(f"{cause.sentence} than {on_device.identity.cublas}, which is loaded here")
        return cause

    def _load(self, decision: Decision, kernel: CachedKernel, signature: MatrixSignature, device: int) -> CallRoute:
        """The route of a kernel, which equal matrix products share. A kernel for a padded M counts for its entry."""
        assert decision.entry is not None
        assert decision.task is not None
        key = device, decision.entry.id, decision.task
        found = self._loaded.get(key)
        if found is None:
            loaded = self._platform.load(device, kernel, decision.task)
            tally = self._counts.of_entry(decision.entry.id)
            found = self._loaded[key] = _launching(tally, loaded, signature, device)
        return found

    def _algorithm(self, algorithm: StoredAlgorithm, signature: MatrixSignature, device: int) -> CallRoute | FallbackCause:
        """The route of an algorithm of cuBLASLt, which equal matrix products share."""
        key = device, algorithm.id, algorithm.task
        found = self._loaded.get(key)
        if found is not None:
            return found
        if self._platform.capturing():
            return FallbackCause.CAPTURING
        try:
            loaded = self._platform.load_algorithm(device, algorithm)
        except Cudal2Error as exc:
            self._notices.add(f"{algorithm.task.shape} {algorithm.task.layout}: {exc}")
            return FallbackCause.NO_CUBLASLT if isinstance(exc, DeviceUnavailable) else FallbackCause.NO_ALGORITHM
        tally = self._counts.of_algorithm(algorithm.id)
        route = self._loaded[key] = _launching(tally, loaded, signature, device)
        return route


def _launching(tally: CallTally, kernel: LoadedKernel, signature: MatrixSignature, device: int) -> CallRoute:
    """A route that launches."""
    route = CallRoute(tally)
    route.device, route.rows, route.columns = device, signature.m, signature.n
    route.kernel, route.launch = kernel, kernel.launch
    return route
