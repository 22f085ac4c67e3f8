"""Layout nt on the emulator: kernels that read A as it is stored are verified, kernels that read it otherwise are refused."""

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout
from cudal2_agent.sandbox.workers.messages import Reduced, Verified
from tests.sandbox.emulator.kernels.written import FOLDER
from tests.sandbox.emulator.proving import SUM, Build, failure, naive, prove

OBLONG = GemmTask(m=24, n=40, k=48, layout=Layout.NT, arch=Arch.SM_90A)
M_IS_K = OBLONG.model_copy(update={"m": 48})
ALL_EQUAL = OBLONG.model_copy(update={"m": 32, "n": 32, "k": 32})
LARGE = GemmTask(m=512, n=384, k=24, layout=Layout.NT, arch=Arch.SM_90A)
BY_ROWS, BY_COLUMNS, B_BY_COLUMNS = "a[row * k + i]", "a[i * m + row]", "b[column * k + i]"
TRANSPOSED_A = SUM.replace(BY_ROWS, BY_COLUMNS)


def in_bf16(source: str) -> str:
    source = source.replace("half2float", "bfloat162float").replace("__float2half", "__float2bfloat16")
    return source.replace("half", "__nv_bfloat16").replace("fp16", "bf16")


@pytest.mark.parametrize(
    "task",
    [OBLONG, M_IS_K, OBLONG.model_copy(update={"element": ElementType.BF16}), OBLONG.model_copy(update={"m": 1, "k": 7})],
    ids=lambda task: f"{task.shape}-{task.element}",
)
def test_a_kernel_that_reads_a_as_it_is_stored_is_verified(build: Build, task: GemmTask) -> None:
    source = naive(total=TRANSPOSED_A)
    answer = prove(build(source if task.element is ElementType.F16 else in_bf16(source), task=task), task)
    assert isinstance(answer, Verified), answer


@pytest.mark.parametrize("task", [OBLONG, M_IS_K, ALL_EQUAL], ids=["oblong", "M = K", "M = N = K"])
@pytest.mark.parametrize(
    "total",
    [SUM, TRANSPOSED_A.replace("b[i * n + column]", B_BY_COLUMNS), SUM.replace("b[i * n + column]", B_BY_COLUMNS)],
    ids=["as nn", "as tt", "as tn"],
)
def test_a_kernel_for_another_layout_is_refused(build: Build, task: GemmTask, total: str) -> None:
    assert failure(prove(build(naive(total=total), task=task), task)).tier == "exact"


@pytest.mark.parametrize("layout", [Layout.NN, Layout.TN])
def test_a_kernel_for_nt_is_refused_where_a_lies_by_rows(build: Build, layout: Layout) -> None:
    task = M_IS_K.model_copy(update={"layout": layout})
    total = TRANSPOSED_A if layout is Layout.NN else TRANSPOSED_A.replace("b[i * n + column]", B_BY_COLUMNS)
    assert failure(prove(build(naive(total=total), task=task), task)).tier == "exact"


def test_a_tensor_map_follows_a_as_it_is_stored(build: Build) -> None:
    """The box that is right for nt brings the wrong part of an A by rows, although it fits there where M is K."""
    source = (FOLDER / "transposed_a.cu").read_text()
    assert isinstance(prove(build(source, parse_plan(source), M_IS_K), M_IS_K), Verified)
    by_rows = M_IS_K.model_copy(update={"layout": Layout.NN})
    assert failure(prove(build(source, parse_plan(source), by_rows), by_rows)).tier == "exact"


def test_a_large_task_is_sampled_with_its_operands_as_they_are_stored(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (
        ("coverage.WHOLE_WORK", 1000),
        ("coverage.AFFORDABLE_WORK", 1000),
        ("sample.QUICK_WORK", 1000),
        ("sample.MAX_POINTS", 3),
    ):
        monkeypatch.setattr(f"cudal2_agent.sandbox.emulator.large.{name}", limit)
    right, wrong = (build(naive(total=total), task=LARGE) for total in (TRANSPOSED_A, SUM))
    smaller = LARGE.model_copy(update={"m": 64, "n": 64})
    answer = prove(right, LARGE, reduced=Reduced(built=right, task=smaller))
    assert isinstance(answer, Verified), answer
    assert "outputs compared of the" in next(test.message for test in answer.tests if test.name == "full-size")
    test = failure(prove(wrong, LARGE, reduced=Reduced(built=right, task=smaller)))
    assert test.tier == "exact"
    assert "outputs written at full size are wrong" in test.message
