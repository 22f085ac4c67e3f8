"""The launcher in C++ (`native/`)."""

from collections.abc import Mapping, Sequence

import cudal2.launcher._native as native
from cudal2.launcher.driver_types import TENSOR_MAP_TYPES
from cudal2.launcher.loaded_kernel import BuiltKernel, LoadedKernel
from cudal2.launcher.lt_algorithms import configuration_of
from cudal2_agent.contract.plan.launching import pack_argument
from cudal2_agent.contract.plan.plan import (
    Arg,
    ResolvedLaunch,
    ResolvedPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorPartArg,
    WorkspaceArg,
)
from cudal2_agent.contract.plan.tensor_view import map_layout
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.named_buffer import Buffer
from cudal2_agent.contract.records.task import BIAS, UP, ElementType, GemmTask

_OPERAND = {"A": native.Operand.A, "B": native.Operand.B, "D": native.Operand.D, "workspace": native.Operand.WORKSPACE}
_OPERAND |= dict.fromkeys((BIAS, UP), native.Operand.THIRD)  # a task has one of them at most
_ZERO = {False: native.Zero.NEVER, True: native.Zero.EVERY_RUN, "restored": native.Zero.RESTORED}


class CompiledLauncher:
    """Raises: DeviceUnavailable."""

    name = "C++"

    def __init__(self, device: int, driver: str) -> None:
        self._gpu = native.Gpu(device, driver)
        self._cublaslt: native.Lt | None = None

    def load(self, kernel: BuiltKernel) -> LoadedKernel:
        loaded: LoadedKernel = self._gpu.load(kernel.cubin, native_plan(kernel.plan, kernel.task), kernel.shared)
        return loaded

    def load_algorithm(self, algorithm: StoredAlgorithm, files: Sequence[str]) -> LoadedKernel:
        if self._cublaslt is None:
            self._cublaslt = self._gpu.open_cublaslt(list(files))
        loaded: LoadedKernel = self._cublaslt.load(native_product(algorithm))
        return loaded


def native_product(algorithm: StoredAlgorithm) -> native.LtProduct:
    """A stored algorithm as the C++ launcher reads it. Raises: LauncherError for words that are no configuration."""
    task = algorithm.task
    return native.lt_product(
        (task.m, task.n, task.k),
        task.layout.transposes_a,
        task.layout.transposes_b,
        task.element is ElementType.BF16,
        configuration_of(algorithm.words),
        bytes.fromhex(algorithm.opaque or ""),
    )


def native_plan(plan: ResolvedPlan, task: GemmTask) -> native.Plan:
    """A resolved plan as the C++ launcher reads it."""
    return native.Plan(
        launches=[_native_launch(launch, {buffer.name: buffer for buffer in task.buffers}) for launch in plan.launches],
        workspace_bytes=plan.workspace_bytes,
        zero=_ZERO[plan.zero],
        zero_bytes=plan.zero_bytes,
        sms=plan.sms,
    )


def _native_launch(launch: ResolvedLaunch, buffers: Mapping[str, Buffer]) -> native.Launch:
    return native.Launch(
        entry=launch.entry,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        shared_bytes=launch.dynamic_smem,
        programmatic=launch.programmatic,
        arguments=[_native_argument(arg, buffers) for arg in launch.args],
    )


def _native_argument(arg: Arg, buffers: Mapping[str, Buffer]) -> native.Argument:
    match arg:
        case TensorArg(tensor=name):
            return native.pointer(_OPERAND[name])
        case TensorPartArg():
            raise TypeError("a plan of a matrix product points to whole operands")
        case TensorMapArg(tensor_map=spec):
            offset, element, sizes, strides = map_layout(spec, buffers)
            view = native.MapView(TENSOR_MAP_TYPES[element], sizes, strides, spec.box, spec.swizzle, spec.l2)
            return native.tensor_map(_OPERAND[spec.of], offset, view)
        case WorkspaceArg(workspace=offset):
            return native.pointer(native.Operand.WORKSPACE, int(offset))
        case ScalarArg():
            value = pack_argument(arg, {}, lambda _: b"")
            return native.scalar(int.from_bytes(value, "little"), len(value))
