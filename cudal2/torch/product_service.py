"""From two matrices to a launch: the path of every call.

Covered: any number of devices, streams and threads. What a call needs is looked up once per signature (shapes, strides, types,
devices) and kept as a route. A call neither compiles nor waits for a build. Kernels stay loaded as long as the process lives,
because captured CUDA graphs keep launching them.
Not covered: a kernel that is not loaded when a CUDA graph is captured. The graph then holds PyTorch's own kernel.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cudal2.dispatch.causes import FallbackCause
from cudal2.dispatch.decision import Decision, GpuIdentity
from cudal2.dispatch.dispatcher import Dispatcher
from cudal2.dispatch.neighbour_rule import shipped_rule
from cudal2.launcher.launcher import LoadedKernel
from cudal2.library.kernel_library import KernelLibrary
from cudal2.library.prepared_kernels import CachedKernel, PreparedKernels
from cudal2.torch.background_builds import BackgroundBuilds, BuildOrder, EntryBuilder
from cudal2.torch.call_routes import CallRoute, CallTally
from cudal2.torch.gpu_platform import Platform
from cudal2.torch.matrix_signature import MatrixForm, MatrixSignature, form_of, read_signature
from cudal2_agent.contract.errors import Cudal2Error, DeviceUnavailable
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import GemmTask

_LOG = logging.getLogger(__name__)
MAX_ROUTES = 65536  # a program with more signatures than that starts anew
_MEASURE = "nothing is chosen until `cudal2-agent library build` makes one of measurements here"

LibraryChoice = Callable[[GpuIdentity], KernelLibrary | None]


class DeviceDispatch:
    """One device: what it is, and the decisions for it."""

    def __init__(self, identity: GpuIdentity, library: KernelLibrary) -> None:
        self.identity, self.library = identity, library
        self.dispatcher = Dispatcher(library, identity, shipped_rule())


class ProductService:
    """Runs products of matrices by a library's kernels and its algorithms of cuBLASLt, or says nothing was run.

    `libraries`: the library for a GPU, None where there is none. `prepared`: the cache that builds are written to.
    `fallback_tallies`: what counts the calls of each cause.
    """

    def __init__(self, platform: Platform, libraries: LibraryChoice, prepared: PreparedKernels, builder: EntryBuilder) -> None:
        self.platform, self._libraries, self.prepared = platform, libraries, prepared
        self.builds = BackgroundBuilds(builder, done=self.look_again)
        self._lock = threading.RLock()
        self._routes: dict[Any, CallRoute] = {}
        self._loaded_routes: dict[tuple[int, str, GemmTask], CallRoute] = {}
        self._devices: dict[int, DeviceDispatch | FallbackCause] = {}
        self._notes: dict[str, None] = {}
        self.fallback_tallies = {cause: CallTally() for cause in FallbackCause}
        self._served: dict[str, CallTally] = {}
        self._by_algorithm: dict[str, CallTally] = {}
        self._stream = platform.stream
        self._misaligned = platform.alignment - 1  # bits of an address

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        """The product of an M×K and a K×N matrix, on the current stream; None where the caller has to compute it."""
        key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device(), b.get_device())
        route = self._routes.get(key) or self._open_tensors(key, a, b)
        if route.launch is None:
            route.tally.calls += 1
            return None
        out = a.new_empty(route.rows, route.columns)  # two numbers are read faster than a tuple
        return out if self._run(route, a, b, out) else None

    def product_into(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
        """As `product`, into a matrix of the caller. False where nothing was written."""
        key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device(), b.get_device())
        route = self._routes.get(key) or self._open_tensors(key, a, b)
        if route.launch is None:
            route.tally.calls += 1
            return False
        if (
            out.shape != (route.rows, route.columns)
            or out.dtype is not a.dtype
            or out.device != a.device
            or not out.is_contiguous()
        ):
            return self.fell_back(FallbackCause.OUTPUT)
        return self._run(route, a, b, out)

    def open_route(self, a: MatrixForm, b: MatrixForm) -> tuple[CallRoute, bool]:
        """The route of a signature, and whether a caller may keep it; else it changes when a build or a capture ends."""
        route = self._routes.get((a, b)) or self._open_route((a, b), a, b)
        passing = (FallbackCause.BUILDING, FallbackCause.CAPTURING)
        return route, all(route.tally is not self.fallback_tallies[cause] for cause in passing)

    def withdraw(self, route: CallRoute, why: str) -> None:
        """Launch a kernel no longer, because a launch of it failed."""
        cause = FallbackCause.LAUNCH_FAILED
        self.note(f"{cause.sentence}, so PyTorch's own runs: {why}")
        route.withdraw(self.fallback_tallies[cause])

    def fell_back(self, cause: FallbackCause) -> bool:
        """Count a call that the caller has to compute. Returns False."""
        self.fallback_tallies[cause].calls += 1
        return False

    def look_again(self) -> None:
        """Look the signatures up anew that wait for a build; loaded kernels and counts stay."""
        with self._lock:
            waiting = self.fallback_tallies[FallbackCause.BUILDING]
            self._routes = {key: route for key, route in self._routes.items() if route.tally is not waiting}

    def served(self) -> dict[str, int]:
        """Calls by the entry that ran them."""
        with self._lock:
            return _totals(self._served)

    def by_algorithm(self) -> dict[str, int]:
        """Calls by the stored algorithm of cuBLASLt that ran them."""
        with self._lock:
            return _totals(self._by_algorithm)

    def fallbacks(self) -> dict[FallbackCause, int]:
        """Calls that the caller computed, by cause."""
        return {cause: tally.total for cause, tally in self.fallback_tallies.items() if tally.total}

    def notes(self) -> tuple[str, ...]:
        """What was logged, each once: damaged files, failed launches, GPUs and drivers without measurements."""
        with self._lock:
            return tuple(self._notes)

    def note(self, text: str) -> None:
        """Say something once."""
        with self._lock:
            if text in self._notes:
                return
            self._notes[text] = None
        _LOG.warning("cudal2: %s", text)

    def device(self, device: int) -> DeviceDispatch | FallbackCause:
        """How products of a device are decided, or why none is served there."""
        with self._lock:
            found = self._devices.get(device)
            if found is None:
                found = self._devices[device] = self._open_device(device)
            return found

    def _run(self, route: CallRoute, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
        if torch.are_deterministic_algorithms_enabled():  # an entry does not say whether its sums are added in arrival order
            return self.fell_back(FallbackCause.DETERMINISTIC)
        a_address, b_address, out_address = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if (a_address | b_address | out_address) & self._misaligned:
            return self.fell_back(FallbackCause.UNALIGNED)
        launch, stream = route.launch, self._stream(route.device)
        if launch is None:  # withdrawn by another thread just now
            return self.fell_back(FallbackCause.LAUNCH_FAILED)
        try:
            launch(a_address, b_address, out_address, stream)  # the launcher makes the stream's device current where it is not
        except Cudal2Error as exc:
            self.withdraw(route, str(exc))
            return self.fell_back(FallbackCause.LAUNCH_FAILED)
        route.tally.calls += 1
        return True

    def _open_tensors(self, key: Any, a: torch.Tensor, b: torch.Tensor) -> CallRoute:
        device_type = self.platform.device_type
        return self._open_route(key, form_of(a, device_type), form_of(b, device_type))

    def _open_route(self, key: Any, a: MatrixForm, b: MatrixForm) -> CallRoute:
        """Look a signature up. Nothing that a graph's capture forbids is done while one is going on."""
        with self._lock:
            found = self._routes.get(key)
            if found is not None:
                return found
            routes = self._routes
            route = self._find_route(a, b)
            # Where the route depends on the moment it is not kept.
            if route.tally is not self.fallback_tallies[FallbackCause.CAPTURING]:
                if len(routes) >= MAX_ROUTES:
                    routes.clear()
                routes[key] = route
            return route

    def _find_route(self, a: MatrixForm, b: MatrixForm) -> CallRoute:
        signature = read_signature(a, b)
        if isinstance(signature, FallbackCause):
            return CallRoute(self.fallback_tallies[signature])
        assert a.device is not None
        on_device = self.device(a.device)
        if isinstance(on_device, FallbackCause):
            return CallRoute(self.fallback_tallies[on_device])
        try:
            decision = on_device.dispatcher.decide(*signature)
            if decision.algorithm is not None:
                return self._algorithm_route(decision.algorithm, signature, a.device)
            kernel = self._kernel(decision, on_device)
            if isinstance(kernel, FallbackCause):
                return CallRoute(self.fallback_tallies[kernel])
            return self._loaded(decision, kernel, signature, a.device)
        except Cudal2Error as exc:
            cause = FallbackCause.NO_LAUNCHER if isinstance(exc, DeviceUnavailable) else FallbackCause.UNUSABLE
            self.note(f"{cause.sentence}: {exc}")
            return CallRoute(self.fallback_tallies[cause])

    def _kernel(self, decision: Decision, on_device: DeviceDispatch) -> CachedKernel | FallbackCause:
        """The built kernel of a decision, or why there is none now. A missing or damaged one is built in the background."""
        entry, task, sms = decision.entry, decision.task, on_device.identity.sms
        if entry is None or task is None:
            cause = decision.cause or FallbackCause.NO_ENTRY
            if cause in (FallbackCause.OTHER_GPU, FallbackCause.OTHER_DRIVER, FallbackCause.OTHER_NVRTC):
                self.note(f"{cause.sentence}; {_MEASURE}")
            elif cause is FallbackCause.OTHER_CUBLAS:
                self.note(f"{cause.sentence} than {on_device.identity.cublas}, which is loaded here")
            return cause
        if self.platform.capturing():
            return FallbackCause.CAPTURING
        try:
            found = self.prepared.find(entry, sms, task)
        except Cudal2Error as exc:
            self.note(str(exc))
            found = None
        if found is not None:
            return found
        cause = self.builds.request(BuildOrder(entry, task, on_device.library.path, sms))
        if cause is FallbackCause.BUILD_FAILED:  # unless it ended just now
            found = self.prepared.find(entry, sms, task)
        return found or cause

    def _loaded(self, decision: Decision, kernel: CachedKernel, signature: MatrixSignature, device: int) -> CallRoute:
        """The route of a kernel, which signatures of one product share. A lent kernel counts for its entry."""
        assert decision.entry is not None
        assert decision.task is not None
        entry_id, task = decision.entry.id, decision.task
        found = self._loaded_routes.get((device, entry_id, task))
        if found is not None:
            return found
        loaded = self.platform.load(device, kernel, task)
        tally = self._served.setdefault(entry_id, CallTally())
        route = self._loaded_routes[device, entry_id, task] = _launching(tally, loaded, signature, device)
        return route

    def _algorithm_route(self, algorithm: StoredAlgorithm, signature: MatrixSignature, device: int) -> CallRoute:
        """The route of an algorithm of cuBLASLt, which signatures of one product share."""
        key = device, algorithm.id, algorithm.task
        found = self._loaded_routes.get(key)
        if found is not None:
            return found
        if self.platform.capturing():
            return CallRoute(self.fallback_tallies[FallbackCause.CAPTURING])
        try:
            loaded = self.platform.load_algorithm(device, algorithm)
        except Cudal2Error as exc:
            self.note(f"{algorithm.task.shape} {algorithm.task.layout}: {exc}")
            missing = FallbackCause.NO_CUBLASLT if isinstance(exc, DeviceUnavailable) else FallbackCause.NO_ALGORITHM
            return CallRoute(self.fallback_tallies[missing])
        tally = self._by_algorithm.setdefault(algorithm.id, CallTally())
        route = self._loaded_routes[key] = _launching(tally, loaded, signature, device)
        return route

    def _open_device(self, device: int) -> DeviceDispatch | FallbackCause:
        if missing := self.platform.missing():
            self.note(missing)
            return FallbackCause.NO_GPU
        try:
            identity = self.platform.identity(device)
            library = self._libraries(identity)
        except Cudal2Error as exc:
            self.note(str(exc))
            return FallbackCause.NO_LIBRARY
        if library is None:
            self.note(f"no library was measured on {identity.gpu}; {_MEASURE}")
            return FallbackCause.NO_LIBRARY
        if unfit := library.unfit_for(identity.gpu):
            self.note(f"{unfit}; {_MEASURE}")
            return FallbackCause.OTHER_GPU
        return DeviceDispatch(identity, library)


def _launching(tally: CallTally, kernel: LoadedKernel, signature: MatrixSignature, device: int) -> CallRoute:
    """A route that launches."""
    route = CallRoute(tally)
    route.device, route.rows, route.columns = device, signature.m, signature.n
    route.kernel, route.launch = kernel, kernel.launch
    return route


def _totals(tallies: Mapping[str, CallTally]) -> dict[str, int]:
    """The counters that have counted."""
    return {name: tally.total for name, tally in tallies.items() if tally.total}
