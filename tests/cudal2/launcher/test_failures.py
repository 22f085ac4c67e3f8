"""Errors by name: a missing or old driver, a missing device, refused code, wrong plans, failing calls."""

import pytest

from cudal2.launcher.launcher import open_launcher
from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.contract.errors import DeviceUnavailable, LauncherError
from tests.cudal2.launcher.conftest import OUT, TASK, kernel_of
from tests.doubles.fake_driver import fake_cubin, fake_driver_file

A, B, D = 0x10000, 0x20000, 0x30000
MAP_A = {"tensor_map": {"of": "A", "box": [64, 128]}}
SCRATCH = {"args": [OUT, {"workspace": 0}]}
OUT_OF_MEMORY, NOT_PERMITTED, ILLEGAL_ADDRESS = 2, 800, 700


def test_a_missing_driver_is_told(opened):
    with pytest.raises(DeviceUnavailable, match=r"no NVIDIA driver: libnone\.so\.1 does not load; install the driver"):
        opened(0, "libnone.so.1")


def test_a_driver_that_is_too_old_is_told_with_its_version(opened):
    with pytest.raises(
        DeviceUnavailable, match=r"too old: it supports CUDA 12\.2 and lacks cuFunc\w+; install one for CUDA 12\.4"
    ):
        opened(0, str(fake_driver_file(old=True)))


def test_a_driver_that_does_not_start_is_told(opened, fake):
    fake.fail("cuInit", 100)
    with pytest.raises(DeviceUnavailable, match="cuInit: CUDA_ERROR_NO_DEVICE"):
        opened()


@pytest.mark.parametrize("device", [-1, 2])
def test_a_missing_device_is_told(opened, device):
    with pytest.raises(DeviceUnavailable, match=rf"cuda:{device} does not exist; the driver shows 2 GPU\(s\)"):
        opened(device)


def test_another_chip_than_the_plan_was_made_for_is_refused(opened, fake):
    fake.machine(devices=1, sms=114)
    with pytest.raises(LauncherError, match="planned for a GPU of 132 SMs; cuda:0 has 114"):
        opened().load(kernel_of())


def test_what_is_no_cubin_is_refused(opened):
    with pytest.raises(LauncherError, match="cuLibraryLoadData: CUDA_ERROR_INVALID_IMAGE: as the test asked") as caught:
        opened().load(kernel_of(cubin=b"\x7fELF"))
    assert caught.value.status == "CUDA_ERROR_INVALID_IMAGE"


def test_an_entry_that_the_code_lacks_is_refused(opened):
    with pytest.raises(LauncherError, match="cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND"):
        opened().load(kernel_of(cubin=fake_cubin({"other": [8]})))


@pytest.mark.parametrize("declared", [[], [4], [8, 8], [128]])
def test_other_parameters_than_the_plan_passes_are_refused(opened, declared):
    with pytest.raises(LauncherError, match="gemm takes other parameters than its plan passes"):
        opened().load(kernel_of(cubin=fake_cubin({"gemm": declared})))


def test_a_failure_while_parameters_are_read_is_not_their_end(opened, fake):
    fake.fail("cuFuncGetParamInfo", ILLEGAL_ADDRESS)
    with pytest.raises(LauncherError, match="cuFuncGetParamInfo: CUDA_ERROR_ILLEGAL_ADDRESS"):
        opened().load(kernel_of())


def test_shared_memory_that_the_driver_refuses_is_told(opened, fake):
    fake.fail("cuFuncSetAttribute", 1)
    with pytest.raises(LauncherError, match="cuFuncSetAttribute: CUDA_ERROR_INVALID_VALUE"):
        opened().load(kernel_of({"dynamic_smem": 1024}))


@pytest.mark.parametrize("addresses", [(A + 128, B, D), (A, B + 2, D), (A, B, D + 16)])
def test_operands_are_aligned_as_they_were_when_verified(opened, fake, addresses):
    kernel = opened().load(kernel_of())
    with pytest.raises(LauncherError, match="aligned to 256 bytes"):
        kernel.launch(*addresses, 0)
    assert fake.events("launch") == []


@pytest.mark.parametrize(
    ("function", "status", "launch", "more", "told"),
    [
        ("cuLaunchKernelEx", ILLEGAL_ADDRESS, {}, {}, "cuLaunchKernelEx: CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("cuLaunchKernelEx", NOT_PERMITTED, {}, {}, "cuLaunchKernelEx: CUDA_ERROR_UNKNOWN: no description"),
        ("cuTensorMapEncodeTiled", 1, {"args": [OUT, MAP_A]}, {}, "cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE"),
        ("cuMemAlloc", OUT_OF_MEMORY, SCRATCH, {"workspace": {"bytes": 64}}, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemsetD8Async", 400, SCRATCH, {"workspace": {"bytes": 64, "zero": True}}, "cuMemsetD8Async: CUDA_ERROR_INVALID"),
        ("cuStreamGetCaptureInfo", 900, SCRATCH, {"workspace": {"bytes": 64}}, "STREAM_CAPTURE_UNSUPPORTED"),
    ],
)
def test_a_failing_call_is_named_and_the_next_launch_works(opened, fake, function, status, launch, more, told):
    kernel = opened().load(kernel_of(launch, **more))
    fake.fail(function, status)
    with pytest.raises(LauncherError, match=told):
        kernel.launch(A, B, D, 0)
    fake.reset()
    kernel.launch(A, B, D, 0)
    assert len(fake.events("launch")) == 1


def test_a_workspace_that_cannot_be_cleared_is_given_back(opened, fake):
    kernel = opened().load(kernel_of(SCRATCH, workspace={"bytes": 64, "zero": "restored"}))
    fake.fail("cuStreamSynchronize", ILLEGAL_ADDRESS)
    with pytest.raises(LauncherError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        kernel.launch(A, B, D, 0)
    allocated, freed = fake.events("allocate", "free")
    assert freed["address"] == allocated["address"]
    assert kernel.workspaces == 0


def test_an_error_of_the_launcher_is_one_of_this_project():
    error = LauncherError("message", "CUDA_ERROR_UNKNOWN")
    assert (str(error), error.status, error.exit_code) == ("message", "CUDA_ERROR_UNKNOWN", 1)


def test_a_machine_without_a_driver_is_told_by_the_way_in():
    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        open_launcher(0, "libnone.so.1")


def test_a_built_kernel_holds_what_is_loaded():
    kernel = kernel_of()
    assert BuiltKernel(*kernel) == kernel
    assert kernel.task == TASK
