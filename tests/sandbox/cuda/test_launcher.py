"""The launcher's work on the host: parameters, configurations, edges, tensor map arguments, refusals."""

import ctypes
import shutil
import struct
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")
driver = pytest.importorskip("cuda.bindings.driver")

from cudal2_agent.contract.plan import launching  # noqa: E402
from cudal2_agent.contract.plan.chip import LIMITS  # noqa: E402
from cudal2_agent.contract.plan.plan import (  # noqa: E402
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorMapSpec,
    WorkspaceArg,
    plan_from_json,
)
from cudal2_agent.contract.plan.resolve import resolve  # noqa: E402
from cudal2_agent.contract.plan.tensor_view import map_layout  # noqa: E402
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout  # noqa: E402
from cudal2_agent.sandbox.cuda import launcher, tensor_map  # noqa: E402
from cudal2_agent.sandbox.cuda.contender import Operands  # noqa: E402
from cudal2_agent.sandbox.cuda.environment import arch_of  # noqa: E402
from cudal2_agent.sandbox.cuda.guard import comparing  # noqa: E402
from cudal2_agent.sandbox.cuda.host import HostFault, HostKernel  # noqa: E402
from cudal2_agent.sandbox.cuda.tensor_map import TensorMaps  # noqa: E402
from cudal2_agent.sandbox.inspect.elf import ModuleVariable  # noqa: E402

TASK = GemmTask(m=256, n=512, k=128, layout=Layout.NN)
POINTERS = {"A": 0x1000, "B": 0x2000, "D": 0x3000, "workspace": 0x4000}
OUT = {"tensor": "D", "access": "write"}


def plan_of(*launches, **more):
    defaults = {"entry": "gemm", "grid": [4, 2, 1], "block": [128, 1, 1], "args": [OUT]}
    return plan_from_json({"arch": "sm_90a", "launches": [{**defaults, **launch} for launch in launches], **more})


def resolved(*launches, **more):
    return resolve(plan_of(*launches, **more), TASK, LIMITS[Arch.SM_90A], 132)


@pytest.mark.parametrize(
    ("arg", "expected"),
    [
        (TensorArg(tensor="A"), struct.pack("<Q", 0x1000)),
        (TensorArg(tensor="B"), struct.pack("<Q", 0x2000)),
        (TensorArg(tensor="D", access="write"), struct.pack("<Q", 0x3000)),
        (WorkspaceArg(workspace=256), struct.pack("<Q", 0x4100)),
        (ScalarArg(scalar=-7, type="i32"), b"\xf9\xff\xff\xff"),
        (ScalarArg(scalar=2**32 - 1, type="u32"), b"\xff\xff\xff\xff"),
        (ScalarArg(scalar=-(2**63), type="i64"), b"\0\0\0\0\0\0\0\x80"),
        (ScalarArg(scalar=3, type="f32"), struct.pack("<f", 3.0)),
    ],
)
def test_arguments_become_the_bytes_the_device_sees(arg, expected):
    assert launching.pack_argument(arg, POINTERS, lambda _: pytest.fail("no tensor map")) == expected
    assert launching.argument_bytes(arg) == len(expected)


def test_values_lie_at_their_natural_alignment():
    assert launching.aligned_offsets([4, 8, 4, 128, 4, 8]) == [0, 8, 16, 64, 192, 200, 208]
    assert launching.aligned_offsets([]) == [0]


def test_the_driver_finds_every_parameter_through_the_pointer_array():
    maps = SimpleNamespace(encode=lambda _spec, _pointer: bytes(range(128)), place_of_address=lambda _spec: None)
    args = (
        ScalarArg(scalar=5),
        TensorMapArg(tensor_map=TensorMapSpec(of="A", box=(64, 128))),
        TensorArg(tensor="D", access="write"),
        ScalarArg(scalar=-1, type="i64"),
    )
    parameters = launcher.Parameters(launcher.ParameterLayout(args, maps), POINTERS)
    array = (ctypes.c_void_p * len(args)).from_address(parameters.address)
    found = [ctypes.string_at(array[index], launching.argument_bytes(arg)) for index, arg in enumerate(args)]
    assert found == [struct.pack("<i", 5), bytes(range(128)), struct.pack("<Q", 0x3000), b"\xff" * 8]
    assert array[1] % 64 == 0, "the driver asks 64-byte alignment of a tensor map"


def test_later_blocks_differ_in_their_addresses_only():
    """A descriptor that holds its address at byte 40, as the driver's own may."""
    maps = SimpleNamespace(
        encode=lambda _spec, pointer: bytes(40) + struct.pack("<Q", pointer) + bytes(80), place_of_address=lambda _spec: 40
    )
    args = (
        ScalarArg(scalar=5),
        TensorMapArg(tensor_map=TensorMapSpec(of="B", box=(64, 128))),
        WorkspaceArg(workspace=256),
        TensorArg(tensor="D", access="write"),
    )
    layout = launcher.ParameterLayout(args, maps)
    layout.pack(POINTERS)
    others = {name: pointer + 0x10000 for name, pointer in POINTERS.items()}
    assert layout.pack(others) == launcher.ParameterLayout(args, maps).pack(others)
    assert layout.pack(others) != layout.pack(POINTERS)


def test_a_kernel_without_parameters_has_an_array_to_point_at():
    assert launcher.Parameters(launcher.ParameterLayout((), TensorMaps(TASK)), POINTERS).address


def test_a_configuration_carries_grid_block_and_shared_memory():
    [launch] = resolved({"dynamic_smem": 147456, "grid": [8, 4, 2], "block": [32, 4, 2]}).launches
    config = launcher.launch_config(launch, programmatic=False)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (8, 4, 2)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (32, 4, 2)
    assert config.sharedMemBytes == 147456
    assert config.numAttrs == 0


def test_cluster_and_programmatic_launch_are_attributes():
    [launch] = resolved({"cluster": [2, 1, 1], "programmatic": True}).launches
    config = launcher.launch_config(launch, programmatic=True)
    cluster, programmatic = config.attrs
    assert config.numAttrs == 2
    assert (cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z) == (2, 1, 1)
    assert programmatic.id == driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert programmatic.value.programmaticStreamSerializationAllowed == 1
    assert launcher.launch_config(launch, programmatic=False).numAttrs == 1


def test_the_first_launch_after_a_memset_is_not_programmatic():
    two = ({"programmatic": True}, {"programmatic": True})
    assert launching.programmatic_edges(resolved(*two)) == [True, True]
    zeroed = resolved(*two, workspace={"bytes": 64, "zero": True})
    assert launching.programmatic_edges(zeroed) == [False, True]
    restored = resolved(*two, workspace={"bytes": 64, "zero": "restored"})
    assert launching.programmatic_edges(restored) == [True, True]
    nothing_to_zero = resolved(*two, workspace={"bytes": 64, "zero": True, "zero_bytes": 0})
    assert launching.programmatic_edges(nothing_to_zero) == [True, True]


class RecordingDriver:
    """A driver below `call` that keeps the enqueued launches and their numbers of attributes."""

    def __init__(self, monkeypatch, parameter_bytes=(8,)):
        self.log = []
        monkeypatch.setattr(launcher, "call", self.call)
        monkeypatch.setattr(launcher, "_parameter_bytes", lambda _: list(parameter_bytes))
        monkeypatch.setattr(launcher, "_local_bytes", lambda _: 0)
        monkeypatch.setattr(launcher, "ModuleVariables", lambda *_: SimpleNamespace(altered=lambda: ()))

    def call(self, function, *arguments):
        match function.__name__:
            case "cuModuleLoadData":
                return "module"
            case "cuLaunchKernelEx":
                config = arguments[0]
                attributes = [] if not config.numAttrs else [attribute.id.name[20:] for attribute in config.attrs]
                self.log.append(("launch", arguments[1], int(config.hStream), attributes))
            case "cuMemsetD8Async":
                self.log.append(("memset", *arguments))
            case "cuFuncSetAttribute":
                self.log.append((arguments[1].name, arguments[2]))
            case "cuModuleGetFunction":
                return arguments[1].decode()
        return None


def device_array(pointer, nbytes=1 << 20):
    return SimpleNamespace(data=SimpleNamespace(ptr=pointer), nbytes=nbytes)


def operands(**changes):
    given = {"a": 0x1000, "b_nn": 0x2000, "b_tn": None, "d": 0x3000, "workspace": 0x4000} | changes
    return Operands(**{name: device_array(at) if isinstance(at, int) else at for name, at in given.items()})


def test_enqueue_zeroes_then_launches_all_on_the_stream_it_is_given(monkeypatch):
    recorder = RecordingDriver(monkeypatch)
    plan = resolved(
        {"entry": "split", "programmatic": True},
        {"entry": "reduce", "programmatic": True},
        workspace={"bytes": 4096, "zero": True, "zero_bytes": 64},
    )
    kernel = launcher.Kernel("k", b"cubin", plan, TASK)
    bound = kernel.bind(operands())
    bound.enqueue(7)
    bound.enqueue(9, programmatic=False)
    assert recorder.log == [
        ("memset", 0x4000, 0, 64, 7),
        ("launch", "split", 7, []),
        ("launch", "reduce", 7, ["PROGRAMMATIC_STREAM_SERIALIZATION"]),
        ("memset", 0x4000, 0, 64, 9),
        ("launch", "split", 9, []),
        ("launch", "reduce", 9, []),
    ]
    assert kernel.programmatic


def test_programmatic_true_never_adds_what_the_plan_does_not_say(monkeypatch):
    recorder = RecordingDriver(monkeypatch)
    kernel = launcher.Kernel("k", b"cubin", resolved({}), TASK)
    kernel.bind(operands()).enqueue(7, programmatic=True)
    assert recorder.log == [("launch", "gemm", 7, [])]
    assert not kernel.programmatic


def test_restored_workspaces_are_not_zeroed_by_the_launcher(monkeypatch):
    recorder = RecordingDriver(monkeypatch)
    plan = resolved({}, workspace={"bytes": 4096, "zero": "restored", "zero_bytes": 64})
    kernel = launcher.Kernel("k", b"cubin", plan, TASK)
    kernel.bind(operands()).enqueue(7)
    assert recorder.log == [("launch", "gemm", 7, [])]
    assert (kernel.zero, kernel.zero_bytes, kernel.workspace_bytes) == ("restored", 64, 4096)


def test_shared_memory_and_large_clusters_are_allowed_at_load(monkeypatch):
    recorder = RecordingDriver(monkeypatch)
    launcher.Kernel("k", b"cubin", resolved({"dynamic_smem": 200_000, "cluster": [16, 1, 1], "grid": [16, 1, 1]}), TASK)
    launcher.Kernel("k", b"cubin", resolved({"cluster": [4, 2, 1]}), TASK)
    assert recorder.log == [
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 200_000),
        ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1),
    ]


@pytest.mark.parametrize("declared", [(), (8, 8), (4,), (256,)])
def test_a_kernel_that_declares_other_parameters_is_refused_before_it_is_launched(monkeypatch, declared):
    RecordingDriver(monkeypatch, parameter_bytes=declared)
    with pytest.raises(launcher.ParameterMismatch, match="its plan passes \\[8\\]"):
        launcher.Kernel("k", b"cubin", resolved({}), TASK)


@pytest.mark.parametrize(
    "changes",
    [
        {"b_nn": None, "b_tn": 0x2000},
        {"a": None, "a_nt": 0x1000},
        {"workspace": None},
        {"workspace": device_array(0x4000, nbytes=4095)},
    ],
)
def test_binding_too_little_is_refused(monkeypatch, changes):
    RecordingDriver(monkeypatch)
    kernel = launcher.Kernel("k", b"cubin", resolved({}, workspace={"bytes": 4096}), TASK)
    with pytest.raises(ValueError, match="the operands hold no"):
        kernel.bind(operands(**changes))


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [(Layout.NN, (0x1000, 0x2000)), (Layout.TN, (0x1000, 0x6000)), (Layout.NT, (0x5000, 0x2000))],
)
def test_a_kernel_is_given_the_operands_of_its_layout(layout, wanted):
    pointers = launcher.operand_pointers(operands(a_nt=0x5000, b_tn=0x6000), TASK.model_copy(update={"layout": layout}), 0)
    assert pointers == {"A": wanted[0], "B": wanted[1], "D": 0x3000}


@pytest.mark.parametrize(
    ("layout", "of", "sizes", "stride"),
    [
        ("nn", "A", (128, 256), 256),
        ("nn", "B", (512, 128), 1024),
        ("tn", "B", (128, 512), 256),
        ("tn", "D", (512, 256), 1024),
        ("nt", "A", (256, 128), 512),
        ("nt", "B", (512, 128), 1024),
    ],
)
def test_tensor_maps_follow_the_operand_as_it_lies_in_memory(layout, of, sizes, stride):
    task = TASK.model_copy(update={"layout": Layout(layout)})
    spec = TensorMapSpec(of=of, box=(64, 32), swizzle=128, l2=256)
    element, rank, pointer, dims, strides, box, steps, _, swizzle, promotion, fill = tensor_map.tensor_map_arguments(
        spec, map_layout(spec, tensor_map.named_buffers(task)), 0x1000
    )
    assert element == driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    assert (rank, pointer) == (2, 0x1000)
    assert tuple(int(size) for size in dims) == sizes, "fastest dimension first"
    assert [int(size) for size in strides] == [stride]
    assert [int(size) for size in box] == [64, 32]
    assert [int(size) for size in steps] == [1, 1]
    assert swizzle == driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B
    assert promotion == driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B
    assert fill == driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, "what is outside reads as zero"


def test_bfloat16_maps_say_so():
    task = TASK.model_copy(update={"element": ElementType.BF16})
    spec = TensorMapSpec(of="A", box=(8, 1))
    arguments = tensor_map.tensor_map_arguments(spec, map_layout(spec, tensor_map.named_buffers(task)), 0x1000)
    assert arguments[0] == driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((7, 5), None),
        ((8, 0), Arch.SM_80),
        ((8, 6), Arch.SM_86),
        ((8, 7), Arch.SM_86),
        ((8, 9), Arch.SM_89),
        ((9, 0), Arch.SM_90A),
        ((10, 0), Arch.SM_100A),
        ((10, 3), None),
        ((12, 0), None),
    ],
)
def test_a_device_runs_the_cubins_of_its_own_major_version(capability, arch):
    assert arch_of(*capability) is arch


def host_library(tmp_path, body, entry="launch"):
    """A shared library with the entry of a host candidate, compiled by the system's C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "host.c", tmp_path / "host.so"
    source.write_text(
        f"#include <stddef.h>\nint {entry}(const void* a, const void* b, void* d, int m, int n, int k, void* workspace,"
        f" size_t bytes, void* stream) {{ {body} }}\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


def test_a_host_candidate_gets_pointers_sizes_workspace_and_stream(tmp_path):
    body = (
        "long* o = d; o[0] = (long)a; o[1] = (long)b; o[2] = m; o[3] = n; o[4] = k; o[5] = (long)workspace;"
        " o[6] = bytes; o[7] = (long)stream; return 0;"
    )
    out = np.zeros(8, np.int64)
    kernel = HostKernel("h", host_library(tmp_path, body), TASK, workspace_bytes=512, confined=False)
    kernel.bind(operands(d=out.ctypes.data)).enqueue(2**40 + 7)
    assert out.tolist() == [0x1000, 0x2000, 256, 512, 128, 0x4000, 512, 2**40 + 7]


def test_a_host_candidate_that_says_it_failed_is_a_fault(tmp_path):
    kernel = HostKernel("h", host_library(tmp_path, "return 3;"), TASK, workspace_bytes=0, confined=False)
    with pytest.raises(HostFault, match="returned 3"):
        kernel.bind(operands()).enqueue(0)


def test_a_host_library_that_does_not_load_or_lacks_the_entry_is_a_fault(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(HostFault):
        HostKernel("h", str(broken), TASK, workspace_bytes=0, confined=False)
    nameless = host_library(tmp_path, "return 0;", entry="start")
    with pytest.raises(HostFault, match="launch"):
        HostKernel("h", nameless, TASK, workspace_bytes=0, confined=False)


def test_variables_that_the_driver_finds_are_compared(monkeypatch):
    images = {"a": (0x1000, b"abcd"), "hidden": (None, b"1234"), "far": (0x9000, b"xy")}
    compared = []

    def call(function, *arguments):
        assert function.__name__ == "cuModuleGetGlobal"
        address, image = images[arguments[1].decode()]
        if address is None:
            raise launcher.DriverFault("cuModuleGetGlobal", "CUDA_ERROR_NOT_FOUND", "no such name")
        return address, len(image)

    def altered(layout, image, count):
        compared.append((layout.tolist(), image.tobytes(), count))
        return [0, 1]

    variables = [
        ModuleVariable(name=name, size_bytes=len(image), image=image, space="global", linkage="local", initialised=True)
        for name, (_, image) in images.items()
    ]
    monkeypatch.setattr(comparing, "call", call)
    monkeypatch.setattr(comparing, "module_variables", lambda _: variables)
    monkeypatch.setattr(comparing, "cupy", np)
    monkeypatch.setattr(comparing, "altered", altered)
    assert comparing.ModuleVariables("module", b"cubin").altered() == ("far",)
    assert compared == [([0x1000, 0x9000, 4, 2, 0, 4], b"abcdxy", 2)]
