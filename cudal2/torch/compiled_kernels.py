"""The kernels of `native/aten_kernels.cpp`, loaded, and the services that they ask.

C++ keeps routes by signature and counts calls. It comes to Python for a signature that it does not know, and when a launch
failed. What it was handed stays alive until the process ends, because a call may be under way in another thread.

No error passes through C++: ctypes prints it, and the call is PyTorch's own. An interrupt by the user reaches the program once
C++ has returned.
"""

import atexit
import ctypes
import threading
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from cudal2.dispatch.decision import FallbackCause
from cudal2.launcher.loaded_kernel import LoadedKernel
from cudal2.torch.call_counts import CallTally
from cudal2.torch.call_routes import CallRoute
from cudal2.torch.matrix_signature import MatrixForm
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.errors import Cudal2Error, LibraryError
from cudal2_agent.contract.records.task import ElementType

_OPERATORS = ("mm", "addmm")  # in the order of the enumeration in C++
_ELEMENTS = (None, ElementType.F16, ElementType.BF16)
_ELSEWHERE = -2
_INTERRUPT = ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, c_void_p)
_COUNTED = (
    FallbackCause.DETERMINISTIC,
    FallbackCause.UNALIGNED,
    FallbackCause.LAUNCH_FAILED,
    FallbackCause.BIAS,
    FallbackCause.OUTPUT,
)


class _NativeOperand(ctypes.Structure):
    _fields_ = [
        (name, c_int64) for name in ("dimensions", "rows", "columns", "row_stride", "column_stride", "element", "device")
    ]


_Launch = CFUNCTYPE(None, c_void_p, *(c_uint64,) * 4, c_void_p, POINTER(c_int), c_void_p, c_size_t)
_Open = CFUNCTYPE(None, *(POINTER(_NativeOperand),) * 3, POINTER(c_void_p), POINTER(c_int))
_Failed = CFUNCTYPE(None, c_void_p, c_char_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result, then the parameters
    "tally": (c_void_p,),
    "route": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p),
    "withdraw": (None, c_void_p),
    "service": (c_void_p, _Open, _Failed, c_void_p, c_uint64, *(c_void_p,) * len(_COUNTED)),
    "interrupt": (None,),
    "serve": (None, c_int, c_void_p),
    "register": (c_char_p, c_int),
    "unregister": (None, c_int),
    "finish": (None,),
}


class CompiledKernels:
    """The kernels of one file. Raises: LibraryError where it cannot be loaded into this process."""

    def __init__(self, file: Path) -> None:
        try:
            library = ctypes.CDLL(str(file))
            self.functions = {name: library[f"cudal2_{name}"] for name in _SIGNATURES}
        except (OSError, AttributeError) as exc:
            raise LibraryError(f"{file} cannot be loaded: {exc}") from exc
        for name, function in self.functions.items():
            function.restype, function.argtypes = _SIGNATURES[name][0], _SIGNATURES[name][1:]
        self._asked: dict[ProductService, CompiledService] = {}
        self._lock = threading.Lock()
        atexit.register(self.functions["finish"])

    def register(self, operator: str) -> None:
        """Replace the kernel of an operator. Raises: LibraryError where PyTorch refuses it."""
        if refused := self.functions["register"](_OPERATORS.index(operator)):
            raise LibraryError(f"PyTorch refuses the compiled kernel of {operator}: {refused.decode()}")

    def unregister(self, operator: str) -> None:
        self.functions["unregister"](_OPERATORS.index(operator))

    def serve(self, operator: str, service: ProductService | None) -> None:
        """Have an operator ask a service from now on; None for PyTorch's own kernel alone."""
        self.functions["serve"](_OPERATORS.index(operator), None if service is None else self._of(service).address)

    def _of(self, service: ProductService) -> "CompiledService":
        with self._lock:
            found = self._asked.get(service)
            if found is None:
                found = self._asked[service] = CompiledService(self.functions, service)
            return found


class CompiledService:
    """A service as C++ asks it. `address`: of its record there."""

    def __init__(self, functions: dict[str, Any], service: ProductService) -> None:
        self._functions, self._service = functions, service
        self._lock = threading.Lock()
        self._tallies: dict[CallTally, int] = {}
        self._left: dict[CallTally, int] = {}
        self._routes: dict[CallRoute, int] = {}
        self._by_address: dict[int, CallRoute] = {}
        self._kept: list[Any] = [_Open(self._open), _Failed(self._failed)]
        tallies = service.counts.by_cause
        for tally in tallies.values():
            self._left[tally] = functions["route"](None, None, 0, 0, None, self._tally(tally))
        counted = (self._tallies[tallies[cause]] for cause in _COUNTED)
        misaligned = service.platform.alignment - 1
        self.address: int = functions["service"](*self._kept, _INTERRUPT, misaligned, *counted)

    def _open(self, a: Any, b: Any, bias: Any, route: Any, keep: Any) -> None:
        """Writes the route of a product, and whether C++ may keep it."""
        try:
            added = _form(bias.contents) if bias else None
            found = self._service.open_route(_form(a.contents), _form(b.contents), added)
            route[0], keep[0] = self._address(found), found.lasts
        except KeyboardInterrupt:
            self._functions["interrupt"]()

    def _failed(self, address: int, message: bytes) -> None:
        self._service.withdraw(self._by_address[address], message.decode(errors="replace"))

    def _address(self, route: CallRoute) -> int:
        """A route in C++, which launches as long as this one does."""
        with self._lock:
            if route.launch is None or route.kernel is None:
                return self._left[route.tally]
            found = self._routes.get(route)
            if found is None:
                found = self._routes[route] = self._copy(route, route.kernel)
                self._by_address[found] = route
            return found

    def _copy(self, route: CallRoute, kernel: LoadedKernel) -> int:
        function, argument = kernel.c_entry or self._python_entry(kernel)
        self._kept.append(kernel)
        failed = self._tally(self._service.counts.by_cause[FallbackCause.LAUNCH_FAILED])
        withdraw, served = self._functions["withdraw"], self._tally(route.tally)
        address: int = self._functions["route"](function, argument, route.rows, route.columns, served, failed)
        route.withdrawn = lambda: withdraw(address)
        return address

    def _tally(self, tally: CallTally) -> int:
        """A counter in C++, whose calls the tally's total includes."""
        found = self._tallies.get(tally)
        if found is None:
            found = self._tallies[tally] = self._functions["tally"]()
            tally.compiled = c_uint64.from_address(found)
        return found

    def _python_entry(self, kernel: LoadedKernel) -> tuple[int, int]:
        """A launch in Python as a function in C."""

        def launch(
            _: int, a: int, b: int, d: int, bias: int, stream: int | None, launched: Any, message: int, size: int
        ) -> None:
            try:
                kernel.launch(a, b, d, stream or 0, bias)
                launched[0] = 1
            except Cudal2Error as exc:
                text = str(exc).encode()[: size - 1]
                ctypes.memmove(message, text, len(text))
            except KeyboardInterrupt:
                self._functions["interrupt"]()

        function = _Launch(launch)
        self._kept.append(function)
        return ctypes.cast(function, c_void_p).value or 0, 0


def _form(operand: _NativeOperand) -> MatrixForm:
    """An operand that is neither a matrix nor of one dimension has its number of sizes only."""
    element = _ELEMENTS[operand.element]
    device = None if operand.device == _ELSEWHERE else operand.device
    if operand.dimensions == 1:
        return MatrixForm((operand.columns,), (operand.column_stride,), element, device)
    if operand.dimensions != 2:
        return MatrixForm((0,) * operand.dimensions, (0,) * operand.dimensions, element, device)
    return MatrixForm((operand.rows, operand.columns), (operand.row_stride, operand.column_stride), element, device)
