"""A GPU under its names: CUDA_VISIBLE_DEVICES by number, UUID and its beginning, hidden GPUs, and who else uses it."""

import os
import subprocess
import sys

import pytest

from cudal2_agent.agent.wiring.gpus import processes_on, visible_gpus
from cudal2_agent.sandbox.cuda.driver import no_gpu

pytestmark = pytest.mark.gpu
ASK = """
from cudal2_agent.sandbox.cuda.driver import no_gpu
from cudal2_agent.sandbox.workers.turns import device_id
print(no_gpu() or device_id(0))
"""
HOLD = """
import cupy, sys
cupy.zeros(1)
print("held", flush=True)
sys.stdin.read()
"""


def asked(visible: str | None) -> str:
    """What a process says of its first GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def uuid() -> str:
    """Of the first GPU, as nvidia-smi prints it."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", "-i", "0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_gpu_has_one_id_under_all_its_names() -> None:
    own = uuid()
    expected = f"gpu-{own.removeprefix('GPU-').replace('-', '')}"
    assert {asked(name) for name in (None, "0", own, own[:12])} == {expected}


@pytest.mark.parametrize("visible", ["", "-1", "GPU-00000000", "99"])
def test_a_hidden_gpu_is_said(visible: str) -> None:
    assert asked(visible).startswith(f"CUDA_VISIBLE_DEVICES={visible!r} leaves this process no GPU")


def test_this_driver_runs_what_these_packages_build() -> None:
    assert no_gpu() == ""


def test_another_process_is_counted() -> None:
    [gpu, *_] = visible_gpus()
    before = processes_on(gpu)
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert processes_on(gpu) == before + 1
