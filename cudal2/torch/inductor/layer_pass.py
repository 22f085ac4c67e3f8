"""A pass of Inductor: layers become one operator of `torch.ops.cudal2`, where the library has a kernel for it.

It works on the graph of PyTorch's own calls, before gradients: later an activation is many operations. Only what needs no
gradient is replaced. What the library does not serve is left to Inductor as it was. Gated layers are looked for first: what is
none may still be a layer with an activation.

Covered: the layers of `found_layers.py`, of gelu, gelu by tanh, silu or relu; dynamic shapes; a pass of the user, which runs
before this one; Inductor's cache, which sees the library by `uuid`.
Not covered: a pass that the user sets later, which takes the place of this one. From PyTorch 2.13 on a setting of Inductor
belongs to a thread: a model that another thread compiles than that which called `enable` is left as it was.
Importing this module imports Inductor, which takes a second.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph

from cudal2.dispatch.dispatcher import kind_code
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2.torch.inductor import found_layers
from cudal2.torch.inductor.found_layers import FoundLayer, activated_layer_of, gated_layer_of, replace
from cudal2.torch.matrix_signature import ELEMENT_OF
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.task import AccumulatorType, Layout


class LayerPass(CustomGraphPass):  # type: ignore[misc,unused-ignore]
    """Replaces layers while it is installed. `operators`: those of PyTorch that the library serves, such as `addmm`."""

    def __init__(self, service: ProductService, operators: tuple[str, ...]) -> None:
        self._service: ProductService | None = service
        self._operators = operators
        before = config.pre_grad_custom_pass
        self._before: Any = before._before if isinstance(before, LayerPass) else before  # one that another thread ended
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
            texts = [Path(one).read_text(encoding="utf-8") for one in (__file__, found_layers.__file__)]
            self._library = digest([texts, list(self._operators), _libraries(service)])
        return None if None in before else repr((before, self._library if service is not None else "")).encode()

    def __call__(self, graph: Graph) -> None:
        for one in self._passes_before():
            one(graph)
        service = self._service
        for layer_of in (gated_layer_of, activated_layer_of):
            for node in list(graph.nodes) if service is not None else ():
                layer = layer_of(node)
                if layer is not None and service is not None and self._serves(service, layer):
                    replace(graph, layer)

    def __deepcopy__(self, memo: Any) -> "LayerPass":
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

    def _serves(self, service: ProductService, layer: FoundLayer) -> bool:
        """Whether the library runs a layer that needs no gradient. An M that is not known may be any of the library's."""
        if ("mm" if layer.bias is None else "addmm") not in self._operators:
            return False
        weights = [layer.weight] if layer.up is None else [layer.weight, layer.up]
        nodes = layer.last, layer.x, *(one.node for one in weights), layer.bias
        values = [one.meta.get("example_value") for one in nodes if one]
        if not all(isinstance(one, FakeTensor) for one in values):
            return False
        out, x, *read = values
        alike = all((one.dtype, one.device) == (x.dtype, x.device) for one in values)
        if out.requires_grad or not alike or x.dtype not in ELEMENT_OF or x.device.type != service.platform.device_type:
            return False
        matrices, bias = read[: len(weights)], read[len(weights) :]
        if not all(isinstance(size, int) for one in read for size in one.shape):
            return False
        if any(one.dim() != 2 or not one.is_contiguous() for one in matrices):
            return False
        shapes = {(rows.number or one.shape[0], one.shape[1]) for rows, one in zip(weights, matrices, strict=True)}
        n, k = next(iter(shapes))
        if any(rows.start * k * x.element_size() % service.platform.alignment for rows in weights):
            return False
        if len(shapes) != 1 or x.shape[-1] != k or any(one.shape != (n,) or one.stride() != (1,) for one in bias):
            return False
        return self._has_entry(service, layer, x, n, k)

    def _has_entry(self, service: ProductService, layer: FoundLayer, x: torch.Tensor, n: int, k: int) -> bool:
        kind = kind_code(
            Layout.TN,
            ELEMENT_OF[x.dtype],
            AccumulatorType.F32,
            bias=layer.bias is not None,
            activation=layer.activation,
            gated=layer.up is not None,
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
