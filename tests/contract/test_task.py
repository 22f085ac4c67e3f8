"""Tasks and shapes: the valid forms; an invalid one is refused in one line."""

import pytest
from pydantic import ValidationError

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import AccumulatorType, Activation, Arch, ElementType, GemmTask, Layout, parse_shape


@pytest.mark.parametrize(
    "text", ["4096x1024x512", "4096_1024_512", "4096X1024X512", "4096×1024×512", " 4096x1024x512\n", "4096x1024_512"]
)
def test_spellings_of_a_shape(text: str) -> None:
    assert parse_shape(text) == (4096, 1024, 512)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4096x1024",
        "4096x1024x512x2",
        "0x64x64",
        "64x0x64",
        "64x64x00",
        "-1x2x3",
        "+1x2x3",
        "axbxc",
        "1.5x2x3",
        "1e3x2x3",
        "0x10x16x16",
        "4096 x 1024 x 512",
        "4096,1024,512",
        "1234567890x2x3",
        "9" * 5000 + "x2x3",
        "\u0664x2x3",
        "\uff11x2x3",
        "²x2x3",
        "4096x1024x512; rm",
        "4096x1024x\n512",
        "x" * 100_000,
    ],
)
def test_anything_else_is_one_clear_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shape(text)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_task_counts_its_work() -> None:
    task = GemmTask(m=4, n=3, k=2)
    assert task.shape == "4x3x2"
    assert task.flops == 48
    assert task.operand_bytes == 2 * (8 + 6 + 12)


def test_every_field_of_a_task_is_part_of_its_id() -> None:
    base = GemmTask(m=64, n=128, k=256)
    others = [
        GemmTask(m=128, n=64, k=256),
        GemmTask(m=64, n=128, k=512),
        base.model_copy(update={"element": ElementType.BF16}),
        base.model_copy(update={"accumulate": AccumulatorType.F16}),
        base.model_copy(update={"layout": Layout.TN}),
        base.model_copy(update={"arch": Arch.SM_80}),
        base.model_copy(update={"activation": Activation.SILU}),
        base.model_copy(update={"activation": Activation.SILU, "gated": True}),
    ]
    assert len({base.id, *(other.id for other in others)}) == len(others) + 1
    assert base.id == GemmTask.model_validate_json(base.model_dump_json()).id


@pytest.mark.parametrize(("m", "n", "k"), [(2**16, 2**15, 1), (1, 2**16, 2**15), (2**16, 1, 2**15), (0, 1, 1), (1, -1, 1)])
def test_a_task_that_no_kernel_can_index_is_refused(m: int, n: int, k: int) -> None:
    with pytest.raises(ValidationError):
        GemmTask(m=m, n=n, k=k)


def test_the_largest_operand_is_accepted() -> None:
    assert GemmTask(m=2**16 - 1, n=1, k=2**15).flops > 0


def test_bf16_accumulates_in_f32_only() -> None:
    with pytest.raises(ValidationError, match="bf16"):
        GemmTask(m=1, n=1, k=1, element=ElementType.BF16, accumulate=AccumulatorType.F16)


@pytest.mark.parametrize(
    ("arch", "number"), [(Arch.SM_80, 80), (Arch.SM_86, 86), (Arch.SM_89, 89), (Arch.SM_90A, 90), (Arch.SM_100A, 100)]
)
def test_arch_numbers(arch: Arch, number: int) -> None:
    assert arch.number == number


@pytest.mark.parametrize(
    ("given", "formula", "epilogue"),
    [
        ({}, "A·B", ""),
        ({"bias": True}, "A·B + bias", " bias"),
        ({"activation": "relu"}, "relu(A·B)", " relu"),
        ({"bias": True, "activation": "gelu_tanh"}, "gelu_tanh(A·B + bias)", " bias gelu_tanh"),
        ({"activation": "silu", "gated": True}, "silu(A·B) · (A·up)", " gated silu"),
    ],
)
def test_a_task_names_what_follows_the_product(given: dict[str, object], formula: str, epilogue: str) -> None:
    task = GemmTask.model_validate({"m": 1, "n": 2, "k": 3, **given})
    assert (task.formula, task.epilogue) == (formula, epilogue)
    assert task.model_dump().keys() & {"bias", "activation", "gated"} == given.keys()


def test_a_gated_task_reads_a_second_matrix_as_large_as_b() -> None:
    task = GemmTask(m=8, n=16, k=32, layout=Layout.TN, activation=Activation.SILU, gated=True)
    assert task.shapes == {"A": (8, 32), "B": (16, 32), "up": (16, 32), "D": (8, 16)}
    assert task.third == "up"
    assert task.flops == 2 * 2 * 8 * 16 * 32
    assert task.operand_bytes == 2 * (8 * 32 + 2 * 16 * 32 + 8 * 16)


@pytest.mark.parametrize(("more", "why"), [({}, "has an activation"), ({"activation": "silu", "bias": True}, "adds no bias")])
def test_a_gated_task_that_is_none_is_refused(more: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        GemmTask.model_validate({"m": 1, "n": 2, "k": 3, "gated": True, **more})
