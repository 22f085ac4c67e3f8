"""Compares what a traced graph computes with what the module itself does, on values. In the jail."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Graph
from cudal2_agent.sandbox.modules.interpreter import Interpreter

MOST_WORK = 1 << 22  # elements of all results and, 32 to one, products: above, a module is compared at smaller sizes only
_FLOPS_PER_ELEMENT = 64
# Of the largest value: both compute with the same operators, but not always in the same order.
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-10}


def work_of(graph: Graph, flops: int) -> int:
    return sum(math.prod(result.shape) for node in graph.nodes for result in node.results) + flops // _FLOPS_PER_ELEMENT


def require_equal(
    graph: Graph, model: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, torch.Tensor], targets: Mapping[str, str]
) -> None:
    """Run both on the same values. `named`: tensors of the inputs; `targets`: state-dict names of the other buffers.

    Raises: UsageError where they differ; whatever the module raises.
    """
    held = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    values = {name: value.clone() for name, value in named.items()}
    values |= {name: held[target].detach().clone() for name, target in targets.items()}
    found = Interpreter(graph).run(values)
    results = [each for each in pytree.tree_leaves(model(*inputs)) if isinstance(each, torch.Tensor)]
    after = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    names = ["out"] if len(results) == 1 else [f"out{number}" for number in range(len(results))]
    wanted = {**dict(zip(names, results, strict=True)), **{name: after[targets[name]] for name in found if name in targets}}
    for name, value in found.items():
        if not _agree(value, wanted[name].detach()):
            raise UsageError(f"the traced graph computes another {name} than the module does; forward may depend on values")


def _agree(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if not found.is_floating_point():
        return torch.equal(found, wanted)
    scale = wanted[wanted.isfinite()].abs().max().item() if wanted.isfinite().any() else 0.0
    return torch.allclose(found, wanted, rtol=_TOLERANCE[found.dtype], atol=_TOLERANCE[found.dtype] * scale, equal_nan=True)
