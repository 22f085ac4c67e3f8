"""The functions of `activation.cuh`, executed on the emulator, against f in float64."""

import re

import numpy as np
import pytest

from cudal2_agent.contract.plan.plan import Launch, LaunchPlan
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Activation, Arch
from cudal2_agent.sandbox.verification.activations import OF_RESULT, OF_SUM, activated
from tests.sandbox.building.build_kernels import ORIGIN
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.launched import Array, launch

FUNCTIONS = {
    Activation.RELU: "Relu",
    Activation.GELU: "Gelu",
    Activation.GELU_TANH: "GeluTanh",
    Activation.SILU: "Silu",
}
SOURCE = """\
#include <cudal2/activation.cuh>
extern "C" __global__ void k(const float* z, float* f) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  f[i] = cudal2::{function}::of(z[i]);
}}
"""
THREADS = 256
# The emulator rounds exponentials and reciprocals once. A chip may be off by 3 and 1 ulp, as `docs/internals/emulator.md` says.
OF_CHIP = 5 * 2.0**-23


def values_of(compiler: PtxCompiler, activation: Activation, z: Array) -> Array:
    """f of each z, computed by the header. Shape: a multiple of the CTA's threads, f32."""
    source = SOURCE.format(function=FUNCTIONS[activation])
    plan = LaunchPlan(arch=Arch.SM_90A, launches=(Launch(entry="k", grid=(1, 1, 1), block=(THREADS, 1, 1), args=()),))
    ptx = compiler.compile(Candidate(source=source, plan=plan, origin=ORIGIN), Arch.SM_90A)
    f = np.zeros_like(z)
    body = re.sub(r"^\.(version|target|address_size).*$", "", ptx, flags=re.MULTILINE)
    run = launch(body, z, f, read_only=[0], grid=(len(z) // THREADS, 1, 1), block=(THREADS, 1, 1), most_instructions=10**9)
    assert run.kinds == []
    return f


def sums() -> Array:
    """All numbers of f16, floats of every exponent, and floats near zero, where f bends."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    drawn = np.random.default_rng(0).integers(0, 2**32, 2**16, dtype=np.uint32).view(np.float32)
    return np.concatenate([halves, drawn, np.linspace(-12, 12, 2**16, dtype=np.float32)])


@pytest.mark.parametrize("activation", list(Activation))
def test_it_is_as_near_to_f_as_the_task_asks(compiler: PtxCompiler, activation: Activation) -> None:
    z = sums()
    z = np.where(np.isfinite(z), z, np.float32(0))
    wide = z.astype(np.float64)
    exact = activated(np, activation, wide)
    error = np.abs(values_of(compiler, activation, z) - exact)
    half_a_subnormal = 2.0**-150
    bound = (OF_RESULT - OF_CHIP) * np.abs(exact) + OF_SUM * np.abs(wide) + half_a_subnormal
    assert (error <= bound).all(), (z[error > bound][0], (error / bound).max())


@pytest.mark.parametrize("activation", list(Activation))
def test_what_is_not_finite_is_as_pytorch_has_it(compiler: PtxCompiler, activation: Activation) -> None:
    z = np.tile(np.array([np.nan, np.inf, -np.inf, -0.0], np.float32), THREADS // 4)
    nan, most, least, zero = values_of(compiler, activation, z)[:4]
    assert np.isnan(nan)
    assert most == np.inf
    assert least == 0 if activation is Activation.RELU else np.isnan(least)
    assert zero == 0
