"""Operands of the tests, and the product that they are to give."""

import torch

from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout

TASK = GemmTask(m=16, n=32, k=64)


def operands(task: GemmTask = TASK) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands in the memory layout of a task."""
    dtype = torch.float16 if task.element is ElementType.F16 else torch.bfloat16
    generator = torch.Generator().manual_seed(7)

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).to(dtype)

    a = drawn(task.k, task.m).t() if task.layout is Layout.NT else drawn(task.m, task.k)
    b = drawn(task.n, task.k).t() if task.layout is Layout.TN else drawn(task.k, task.n)
    return a, b


def assert_product(out: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> None:
    assert out is not None
    assert out.is_contiguous()
    torch.testing.assert_close(out, (a.detach().float() @ b.detach().float()).to(a.dtype))


def backward_tasks(task: GemmTask) -> tuple[GemmTask, GemmTask]:
    """The products of the gradients of A and of B, for a product of two row-major matrices."""
    for_a = task.model_copy(update={"n": task.k, "k": task.n, "layout": Layout.TN})
    for_b = task.model_copy(update={"m": task.k, "k": task.m, "layout": Layout.NT})
    return for_a, for_b


def linear_tasks(tokens: int, outputs: int, inputs: int) -> tuple[GemmTask, GemmTask, GemmTask]:
    """The products of a linear layer without bias: forward, the gradient of its input, the gradient of its weight."""
    return (
        GemmTask(m=tokens, n=outputs, k=inputs, layout=Layout.TN),
        GemmTask(m=tokens, n=inputs, k=outputs),
        GemmTask(m=outputs, n=inputs, k=tokens, layout=Layout.NT),
    )
