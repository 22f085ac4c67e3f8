"""Which chip advice is for."""

import pytest

from cudal2_agent.agent.library.advise.known_kernels import KnownKernels, Target, chip_of, find_target
from cudal2_agent.agent.library.advise.products import Recording
from cudal2_agent.agent.wiring.gpus import Gpu
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch

HERE = (Gpu(index=0, name="NVIDIA X", arch=None), Gpu(index=1, name="NVIDIA A100-SXM4-80GB", arch=Arch.SM_80))
KERNELS = KnownKernels("small", "H200", Arch.SM_90A, lambda _task: None)
TRACED = Recording(products=(), gpu="H100 80GB HBM3", capability=90)


def test_a_name_counts_before_the_trace_and_the_trace_before_what_is_here() -> None:
    assert find_target("NVIDIA H200", TRACED, HERE) == Target(name="H200")
    assert find_target(None, TRACED, HERE) == Target(name="H100 80GB HBM3", arch=Arch.SM_90A)
    assert find_target(None, Recording(products=()), HERE) == Target(name="A100-SXM4-80GB", arch=Arch.SM_80)
    assert find_target(None, Recording(products=()), ()) is None


def test_the_librarys_chip_is_meant_where_nothing_else_is() -> None:
    assert chip_of(None, KERNELS) == chip_of(Target(name="h200"), KERNELS) == REFERENCE_CHIPS[Arch.SM_90A]


def test_another_chip_of_an_architecture_takes_the_rates_of_its_reference() -> None:
    found = chip_of(Target(name="H100 80GB HBM3", arch=Arch.SM_90A), KERNELS)
    assert (found.name, found.measured, found.tensor_tflops) == ("H100 80GB HBM3", False, 800)


def test_unknown_chips_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"--chip 'H2O0' is not known; choose from .*H200"):
        chip_of(Target(name="H2O0"), KERNELS)
    with pytest.raises(UsageError, match="the trace is of V100, for which this product has no kernels"):
        find_target(None, TRACED.model_copy(update={"gpu": "V100", "capability": 70}), HERE)
