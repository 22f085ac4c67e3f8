"""The one place where CUDA driver calls become results or exceptions, and where it is said why this process has no GPU."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cuda.bindings import driver
from cuda.pathfinder import DynamicLibNotFoundError

from cudal2_agent.contract.errors import DeviceUnavailable
from cudal2_agent.sandbox.workers.process import child_environment

NO_DRIVER = "no NVIDIA driver (libcuda) on this machine; install the driver, or run with --device none"

# The oldest driver for the packages of a CUDA version: what it must support, packed as cuDriverGetVersion does, and its name.
# CUDA 12's would run on 525, but a launcher asks a kernel for its parameters (cuFuncGetParamInfo), as 12.4 allows first.
OLDEST_DRIVER = {13: (13000, "580"), 12: (12040, "550")}

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


def toolkit() -> int:
    """The CUDA version that the installed packages belong to: 12 or 13."""
    return int(version("cuda-bindings").partition(".")[0])


def no_gpu() -> str:
    """Why this process has no GPU that these packages can use, with a remedy; empty where it has one."""
    try:
        status, *_ = driver.cuInit(0)
        counted, count = driver.cuDeviceGetCount() if status == _SUCCESS else (status, 0)
        supported = driver.cuDriverGetVersion()[1]
    except (RuntimeError, DynamicLibNotFoundError):
        return NO_DRIVER
    if counted not in (_SUCCESS, driver.CUresult.CUDA_ERROR_NO_DEVICE):
        return f"the NVIDIA driver does not start ({describe(counted)[0]}); see what `nvidia-smi` says"
    if count == 0 or counted != _SUCCESS:
        return _hidden()
    return too_old(supported, toolkit())


def too_old(supported: int, packages: int) -> str:
    """Why a driver that supports a CUDA version, packed, cannot run what packages of a toolkit build; empty where it can."""
    needed, name = OLDEST_DRIVER.get(packages, (1000 * packages, f"for CUDA {packages}"))
    if supported >= needed:
        return ""
    has = f"CUDA {supported // 1000}.{supported % 1000 // 10}"
    other = "" if packages == 12 or supported < OLDEST_DRIVER[12][0] else ", or install CUDA 12's packages (make setup CUDA=12)"
    return (
        f"the NVIDIA driver supports {has}, and the packages of CUDA {packages} need driver {name} or newer: update it{other}"
    )


def _hidden() -> str:
    visible = child_environment(Path.cwd()).get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return "the driver shows no GPU to this process; see what `nvidia-smi -L` says, and give a container its GPUs"
    return (
        f"CUDA_VISIBLE_DEVICES={visible!r} leaves this process no GPU; name GPUs as `nvidia-smi -L` does, by number or UUID, "
        "each once, or unset it"
    )


def describe(status: Any) -> tuple[str, str]:
    """Name and description of a CUresult, in the driver's words."""
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    return (name or b"CUDA_ERROR_UNKNOWN").decode(), (text or b"no description").decode()
