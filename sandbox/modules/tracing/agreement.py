"""Compares what a traced graph computes with what the module itself does, on values. In the jail."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_graph import Graph
from cudal2_agent.sandbox.modules.interpreter import Interpreter
from cudal2_agent.sandbox.modules.tracing.trace_messages import TracedModule

MOST_WORK = 1 << 22  # elements of all results and, 32 to one, products: above, a module is compared at smaller sizes only
_FLOPS_PER_ELEMENT = 64
# Of the largest value: both compute with the same operators, but not always in the same order.
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-10}


def work_of(found: TracedModule) -> int:
    results = sum(math.prod(result.shape) for node in found.graph.nodes for result in node.results)
    return sum(buffer.elements for buffer in found.buffers) + results + found.flops // _FLOPS_PER_ELEMENT


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
        return bool(torch.equal(found, wanted))
    scale = wanted[wanted.isfinite()].abs().max().item() if wanted.isfinite().any() else 0.0
    share = _TOLERANCE[found.dtype]
    return bool(torch.allclose(found, wanted, rtol=share, atol=share * scale, equal_nan=True))
