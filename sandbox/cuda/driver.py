"""The one place where CUDA driver calls become results or exceptions."""

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver
from cuda.pathfinder import DynamicLibNotFoundError

from cudal2_agent.contract.errors import DeviceUnavailable

NO_DRIVER = "no NVIDIA driver (libcuda) on this machine; install the driver, or run with --device none"

_SUCCESS = driver.CUresult.CUDA_SUCCESS


class Fault(Exception):
    """A candidate failed to load or run; the worker decides whose fault it is."""


class DriverFault(Fault):
    """A driver call that failed. `status` is its name, such as CUDA_ERROR_ILLEGAL_ADDRESS; asynchronous ones surface late."""

    def __init__(self, function: str, status: str, description: str) -> None:
        super().__init__(f"{function}: {status}: {description}")
        self.status = status


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """The results of a driver call besides its status: nothing, one value, or a tuple.

    Raises: DriverFault where the status is not success, DeviceUnavailable where there is no driver at all.
    """
    try:
        status, *values = function(*arguments)
    except DynamicLibNotFoundError as exc:
        raise DeviceUnavailable(NO_DRIVER) from exc
    if status != _SUCCESS:
        raise DriverFault(function.__name__, *describe(status))
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def describe(status: Any) -> tuple[str, str]:
    """Name and description of a CUresult, in the driver's words."""
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    return (name or b"CUDA_ERROR_UNKNOWN").decode(), (text or b"no description").decode()
