"""Which kernels with an activation a model's library has beside those of their sums."""

from datetime import UTC, datetime

import pytest

from cudal2_agent.agent.model_tuning.product_choice import slower_than_parts
from cudal2_agent.agent.model_tuning.tune_records import JudgedProduct
from cudal2_agent.contract.records.task import Activation, GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup

GATED = GemmTask(m=16, n=96, k=64, layout=Layout.TN, activation=Activation.SILU, gated=True)
OF_GATED = GemmTask(m=16, n=192, k=64, layout=Layout.TN)
ACTIVATED = GemmTask(m=16, n=96, k=64, layout=Layout.TN, bias=True, activation=Activation.GELU)
OF_ACTIVATED = GemmTask(m=16, n=96, k=64, layout=Layout.TN, bias=True)


def judged(task: GemmTask, time_us: float, torch_us: float) -> JudgedProduct:
    ratio = torch_us / time_us
    return JudgedProduct(
        task=task,
        entry=task.id,
        chip="H200",
        environment="here",
        speedup=Speedup(baseline="torch", ratio=ratio, low=ratio, high=ratio),
        time_us=time_us,
        torch_us=torch_us,
        measured_at=datetime.now(UTC),
    )


@pytest.mark.parametrize(("whole", "sums"), [(GATED, OF_GATED), (ACTIVATED, OF_ACTIVATED)])
@pytest.mark.parametrize(
    ("times", "of_sums", "slower"),
    [
        ((10.0, 12.0), (8.0, 9.0), False),  # 8 us and a pass of 3
        ((11.5, 12.0), (8.0, 9.0), True),
        ((11.5, 12.0), (9.5, 9.0), False),  # a kernel that is not served saves nothing
        ((9.0, 12.0), (9.5, 13.0), False),  # no pass takes less than nothing
        ((9.7, 12.0), (9.5, 13.0), True),
    ],
)
def test_a_kernel_with_an_activation_gains_over_its_sums_and_a_pass(
    whole: GemmTask, sums: GemmTask, times: tuple[float, float], of_sums: tuple[float, float], slower: bool
) -> None:
    found = slower_than_parts([judged(whole, *times), judged(sums, *of_sums)])
    assert found == ({whole.id} if slower else frozenset())
    assert slower_than_parts([judged(whole, *times)]) == frozenset()
