"""A pass of Inductor: linear layers with an activation become `torch.ops.cudal2.linear_activation`, where the library has it.

It works on the graph of PyTorch's own calls, before gradients: later the activation is many operations. Only what needs no
gradient is replaced. What the library does not serve is left to Inductor as it was.

Covered: `F.linear` and `nn.Linear` whose output only goes into gelu, gelu by tanh, silu or relu; dynamic shapes; a pass of the
user, which runs before this one; Inductor's cache, which sees the library by `uuid`.
Not covered: a pass that the user sets later, which takes the place of this one. From PyTorch 2.13 on a setting of Inductor
belongs to a thread: a model that another thread compiles than that which called `enable` is left as it was.
Importing this module imports Inductor, which takes a second.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.nn import functional

from cudal2.dispatch.dispatcher import kind_code
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2.torch.matrix_signature import ELEMENT_OF
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.task import AccumulatorType, Activation, Layout

_GELU = {"none": Activation.GELU, "tanh": Activation.GELU_TANH}
_OTHERS: dict[Any, Activation] = {
    functional.silu: Activation.SILU,
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, "relu", "relu_"), Activation.RELU),
}


class _ActivatedLinear(NamedTuple):
    """A linear layer of a graph and the activation of its output. `bias`: None where it has none."""

    linear: Node
    activated: Node
    activation: Activation
    x: Node
    weight: Node
    bias: Node | None


class ActivationPass(CustomGraphPass):  # type: ignore[misc,unused-ignore]
    """Replaces layers while it is installed. `operators`: those of PyTorch that the library serves, such as `addmm`."""

    def __init__(self, service: ProductService, operators: tuple[str, ...]) -> None:
        self._service: ProductService | None = service
        self._operators = operators
        before = config.pre_grad_custom_pass
        self._before: Any = before._before if isinstance(before, ActivationPass) else before  # one that another thread ended
        self._library = ""
        config.pre_grad_custom_pass = self

    def remove(self) -> None:
        """Replace nothing from now on, and leave the setting to the user's pass, where it is still this one."""
        self._service = None
        if config.pre_grad_custom_pass is self:
            config.pre_grad_custom_pass = self._before

    def uuid(self) -> Any:
        """What Inductor's cache knows this pass and the user's by; None where the user's has no such name."""
        before = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self._passes_before()]
        service = self._service
        if service is not None and not self._library:
            self._library = digest([Path(__file__).read_text(encoding="utf-8"), list(self._operators), _libraries(service)])
        return None if None in before else repr((before, self._library if service is not None else "")).encode()

    def __call__(self, graph: Graph) -> None:
        for one in self._passes_before():
            one(graph)
        service = self._service
        for node in list(graph.nodes):
            layer = _layer_of(node)
            if layer is not None and service is not None and self._serves(service, layer):
                _replace(graph, layer)

    def __deepcopy__(self, memo: Any) -> "ActivationPass":
        """PyTorch copies its settings."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Some versions of Inductor pickle their settings, to hash them or for another process, which has no such pass."""
        return _nothing, (self.uuid(),)

    def _passes_before(self) -> tuple[Any, ...]:
        before = self._before
        if before is None:
            return ()
        return tuple(before) if isinstance(before, list | tuple) else (before,)

    def _serves(self, service: ProductService, layer: _ActivatedLinear) -> bool:
        """Whether the library runs a layer that needs no gradient. An M that is not known may be any of the library's."""
        if ("mm" if layer.bias is None else "addmm") not in self._operators:
            return False
        values = [one.meta.get("example_value") for one in (layer.activated, layer.x, layer.weight, layer.bias) if one]
        if not all(isinstance(one, FakeTensor) for one in values):
            return False
        out, x, weight, *bias = values
        alike = all((one.dtype, one.device) == (x.dtype, x.device) for one in values)
        if out.requires_grad or not alike or x.dtype not in ELEMENT_OF or x.device.type != service.platform.device_type:
            return False
        sizes = (*weight.shape, *(size for one in bias for size in one.shape))
        if weight.dim() != 2 or not all(isinstance(size, int) for size in sizes):
            return False
        n, k = weight.shape
        if x.shape[-1] != k or not weight.is_contiguous() or any(one.shape != (n,) or one.stride() != (1,) for one in bias):
            return False
        kind = kind_code(
            Layout.TN, ELEMENT_OF[x.dtype], AccumulatorType.F32, bias=layer.bias is not None, activation=layer.activation
        )
        known = all(isinstance(size, int) for size in x.shape)
        device = -1 if x.device.index is None else x.device.index
        try:
            found = service.devices.find(device)
            m = math.prod(x.shape[:-1]) if known else None
            return isinstance(found, DeviceDispatch) and found.dispatcher.serves(m, n, k, kind)
        except Cudal2Error as exc:
            service.notices.add(str(exc))
            return False


def _nothing(_uuid: bytes | None) -> None:
    """What a pass is elsewhere."""


def _libraries(service: ProductService) -> list[Any]:
    """What each device is, and what its library holds."""
    found = (service.devices.find(device) for device in service.platform.devices())
    return [
        [one.identity.model_dump(mode="json"), one.library.manifest.model_dump(mode="json")]
        for one in found
        if isinstance(one, DeviceDispatch)
    ]


def _layer_of(node: Node) -> _ActivatedLinear | None:
    """The layer whose activation a node is."""
    activation = _activation_of(node)
    linear = node.args[0] if node.args else node.kwargs.get("input")
    if activation is None or not isinstance(linear, Node) or len(linear.users) != 1:
        return None
    if linear.op != "call_function" or linear.target is not functional.linear:
        return None
    given = dict(zip(("input", "weight", "bias"), linear.args, strict=False)) | linear.kwargs
    x, weight, bias = (given.get(name) for name in ("input", "weight", "bias"))
    if not isinstance(x, Node) or not isinstance(weight, Node) or not (bias is None or isinstance(bias, Node)):
        return None
    return _ActivatedLinear(linear, node, activation, x, weight, bias)


def _activation_of(node: Node) -> Activation | None:
    if node.op not in ("call_function", "call_method"):
        return None
    if node.target is functional.gelu:
        return _GELU.get(str(node.kwargs.get("approximate", "none")))
    return _OTHERS.get(node.target)


def _replace(graph: Graph, layer: _ActivatedLinear) -> None:
    """The operator stands where the linear layer stood, whose operands may change after it."""
    arguments = (layer.x, layer.weight, layer.bias, layer.activation.value)
    with graph.inserting_before(layer.linear):
        made = graph.call_function(torch.ops.cudal2.linear_activation.default, arguments)
    made.meta = dict(layer.activated.meta)
    layer.activated.replace_all_uses_with(made)
    graph.erase_node(layer.activated)
    graph.erase_node(layer.linear)
