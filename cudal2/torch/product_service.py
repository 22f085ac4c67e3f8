"""From two matrices to a launch: the path of every call.

Covered: any number of devices, streams and threads. What a call needs is decided once per signature (shapes, strides, types,
devices) and kept as a route. A call neither compiles nor waits for a build.
Not covered: see `route_decision.py`.
"""

from typing import Any

import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2.torch.background_builds import BackgroundBuilds, EntryBuilder
from cudal2.torch.call_counts import CallCounts
from cudal2.torch.call_routes import CallRoute, RouteCache
from cudal2.torch.device_dispatch import Devices, LibraryChoice
from cudal2.torch.gpu_platform import Platform
from cudal2.torch.matrix_signature import MatrixForm, form_of
from cudal2.torch.notices import Notices
from cudal2.torch.route_decision import RouteDecision
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.task import Activation


class ProductService:
    """Runs matrix products by a library's kernels and its algorithms of cuBLASLt, or reports that nothing was run.

    `libraries`: the library for a GPU, None where there is none. `prepared`: the cache that builds are written to.
    `has_activations`: whether a library has entries with activations, which only compiled programs ask for.
    """

    def __init__(
        self,
        platform: Platform,
        libraries: LibraryChoice,
        prepared: PreparedKernels,
        builder: EntryBuilder,
        *,
        has_activations: bool = False,
    ) -> None:
        self.platform, self.prepared, self.has_activations = platform, prepared, has_activations
        self.counts, self.notices = CallCounts(), Notices()
        self.devices = Devices(platform, libraries, self.notices)
        self.builds = BackgroundBuilds(builder, done=lambda: self._routes.look_again())
        decision = RouteDecision(platform, self.devices, prepared, self.builds, self.counts, self.notices)
        self._routes = RouteCache(decision.route)
        self._kept, self._stream = self._routes.kept, platform.stream
        self._misaligned = platform.alignment - 1  # bits of an address

    def product(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        activation: Activation | None = None,
        up: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """The product of an M×K and a K×N matrix, on the current stream; None where the caller has to compute it.

        `bias`: N elements that are added to every row. `activation`: of the sums. `up`: a second matrix like B, whose product
        the activated sums are multiplied by; then there is no bias. `out`: a matrix of the caller's that is written and
        returned; without it a new one is. Where the result is None, `out` is as it was.
        """
        third = bias if up is None else up
        key: Any = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device(), b.get_device())
        if third is not None:
            key = (*key, third.shape, third.stride(), third.dtype, third.get_device())
        if activation is not None:
            key = (*key, activation, up is None)
        route = self._kept.get(key) or self._open(key, a, b, bias, activation, up)
        launch = route.launch
        if launch is None:
            route.tally.calls += 1
            return None
        if out is None:
            out = a.new_empty(route.rows, route.columns)  # two numbers are read faster than a tuple
        elif not _fits(out, route, a, b):
            self.counts.fell_back(FallbackCause.OUTPUT)
            return None
        if torch.are_deterministic_algorithms_enabled():  # an entry does not say whether its sums are added in arrival order
            self.counts.fell_back(FallbackCause.DETERMINISTIC)
            return None
        a_address, b_address, out_address = a.data_ptr(), b.data_ptr(), out.data_ptr()
        third_address = 0 if third is None else third.data_ptr()
        given = a_address and b_address and (third is None or third_address)  # not so for zeros without memory
        if (a_address | b_address | out_address | third_address) & self._misaligned or not given:
            self.counts.fell_back(FallbackCause.UNALIGNED)
            return None
        try:  # the launcher makes the stream's device current where it is not
            launch(a_address, b_address, out_address, self._stream(route.device), third_address)
        except Cudal2Error as exc:
            self.withdraw(route, str(exc))
            self.counts.fell_back(FallbackCause.LAUNCH_FAILED)
            return None
        route.tally.calls += 1
        return out

    def open_route(self, a: MatrixForm, b: MatrixForm, bias: MatrixForm | None = None) -> CallRoute:
        """The route of a signature, for a caller that launches by itself."""
        return self._routes.open((a, b, bias), a, b, bias)

    def withdraw(self, route: CallRoute, why: str) -> None:
        """Launch a kernel no longer, because a launch of it failed."""
        cause = FallbackCause.LAUNCH_FAILED
        self.notices.add(f"{cause.sentence}, so PyTorch's own runs: {why}")
        route.withdraw(self.counts.by_cause[cause])

    def _open(
        self,
        key: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation | None,
        up: torch.Tensor | None,
    ) -> CallRoute:
        device_type = self.platform.device_type
        left, right = form_of(a, device_type), form_of(b, device_type)
        added, second = (None if one is None else form_of(one, device_type) for one in (bias, up))
        return self._routes.open(key, left, right, added, activation, second)


def _fits(out: torch.Tensor, route: CallRoute, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a kernel can write a matrix of the caller's, which is none that it reads."""
    alike = out.shape == (route.rows, route.columns) and out.dtype is a.dtype and out.device == a.device
    return alike and out.is_contiguous() and out.data_ptr() not in (a.data_ptr(), b.data_ptr())
