"""Records the matrix products of a PyTorch model from a real forward and backward pass. Only this module imports torch.

Covered: mm, addmm, bmm and baddbmm, to which linear layers, matmul and einsum lead. A product of a linear layer whose result
only goes into an activation has it named. Two of one input that make a gated layer, activation(x·gate) · (x·up), are one.
Not covered: products inside fused operators such as attention, grouped products, convolutions, and what a model does outside
PyTorch. `scaled_dot_product_attention` is not run: on a GPU it is one kernel, and elsewhere it may be several products.
The file of the user runs in this process, with the user's rights.
"""

import importlib.util
import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from cudal2_agent.agent.library.advise.products import (
    ELEMENTS,
    OPERATORS,
    CountedProduct,
    MatrixProduct,
    Part,
    Recording,
    in_order,
    read_product,
)
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.records.task import Activation, Layout


class ModelFile(NamedTuple):
    """`model`: makes a module. `inputs`: makes its arguments, for a number of tokens where it takes one."""

    path: Path
    model: Callable[[], Any]
    inputs: Callable[..., Any]

    @property
    def takes_tokens(self) -> bool:
        return bool(inspect.signature(self.inputs).parameters)


def record_model(file: Path) -> Recording:
    """The products of `model()` on `inputs()`, the most frequent first. Raises: as `load_model_file` and `record`."""
    found = load_model_file(file)
    return record(str(file), found.model, found.inputs)


def record(name: str, make_model: Callable[[], Any], make_inputs: Callable[[], Any]) -> Recording:
    """The products of a forward and a backward pass of a model, the most frequent first.

    Tensors hold no values at first, so that a large model takes neither memory nor time; a model that reads values of its
    tensors runs again with real ones. Raises: UsageError for a model that does not work, MachineError where torch is missing.
    """
    try:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as exc:
        raise MachineError("recording a model needs PyTorch; pip install torch") from exc
    counted: Counter[MatrixProduct] | None = None
    for tensors in (FakeTensorMode(), torch.device("meta")):  # the second one converts whole modules, as `half` does
        try:
            counted = _run(make_model, make_inputs, tensors)
        except Exception:  # noqa: BLE001 (whatever tensors without values cannot do)
            continue
        break
    if counted is None:
        try:
            counted = _run(make_model, make_inputs, nullcontext())
        except Exception as exc:
            raise UsageError(f"{name}: {type(exc).__name__}: {exc}", log=traceback.format_exc()) from exc
    if not counted:
        raise UsageError(f"{name}: the model has no matrix product")
    return Recording(products=in_order(CountedProduct(product=one, calls=calls) for one, calls in counted.items()))


def load_model_file(file: Path) -> ModelFile:
    """Runs a file that defines `model()` and `inputs()`, and may import its neighbours.

    Raises: UsageError for one that does not.
    """
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location("recorded_model", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    if (folder := str(file.parent.resolve())) not in sys.path:
        sys.path.append(folder)  # last, so that no neighbour takes the place of a library
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        raise UsageError(f"{file}: {type(exc).__name__}: {exc}", log=traceback.format_exc()) from exc
    missing = [name for name in ("model", "inputs") if not callable(getattr(module, name, None))]
    if missing:
        raise UsageError(
            f"{file} does not define {missing[0]}(); it needs model(), a module, and inputs(), a tuple of arguments"
        )
    return ModelFile(file, module.model, module.inputs)


def called(model: Any, given: Any) -> Any:
    """What a model answers to its arguments: a mapping, a tuple or one value."""
    if isinstance(given, Mapping):
        return model(**given)
    return model(*given) if isinstance(given, tuple | list) else model(given)


def _run(
    make_model: Callable[[], Any], make_inputs: Callable[[], Any], tensors: AbstractContextManager[Any]
) -> Counter[MatrixProduct]:
    """One forward and one backward pass."""
    import torch
    from torch.utils._pytree import tree_leaves

    with tensors:
        model, given = make_model(), make_inputs()
        recorder = _recorder({_storage(one): tuple(one.shape) for one in model.parameters()})
        with recorder, _without_attention():
            answer = called(model, given)
            recorder.end_forward(tree_leaves(answer))
            outputs = [one for one in tree_leaves(answer) if isinstance(one, torch.Tensor) and one.requires_grad]
            if outputs:  # contiguous gradients, as those of a loss are
                torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
    counted: Counter[MatrixProduct] = recorder.counted
    return counted


class _ReadPart(NamedTuple):
    """Which elements of a storage a tensor reads, as far as halves of a matrix can be told. `width`: its last size."""

    offset: int
    width: int
    elements: int


class _Applied(NamedTuple):
    """A use of a result: an activation of some of it."""

    activation: Activation
    read: _ReadPart


class _Result:
    """The result of a forward product, or of an activation of one, and into what it goes.

    `storage`: references that keep identities taken. `left`: where A was. `of`: of an activation, the result that it read.
    """

    def __init__(self, product: MatrixProduct, storage: Any, left: Any = None, of: "_Result | None" = None) -> None:
        self.product, self.storage, self.left, self.of = product, storage, left, of
        self.uses: list[_Applied | _GatedPair | None] = []  # None for anything else

    @property
    def marked(self) -> MatrixProduct:
        """The product, with the activation that is its only use. A linear layer stores its weight transposed."""
        use = self.uses[0] if len(self.uses) == 1 else None
        if not isinstance(use, _Applied) or self.product.layout != Layout.TN:
            return self.product
        whole = use.read.elements == self.product.m * self.product.n
        return self.product.model_copy(update={"activation": use.activation}) if whole else self.product


class _GatedPair:
    """An activation of one result, multiplied by another one, or by the other half of the same, of which it reads `read`."""

    def __init__(self, activated: _Result, other: _Result, read: _ReadPart) -> None:
        self.activated, self.other, self.read = activated, other, read

    @property
    def results(self) -> tuple[_Result, ...]:
        """Those of the products that it takes the place of."""
        assert self.activated.of is not None
        return tuple(dict.fromkeys((self.activated.of, self.other)))

    @property
    def product(self) -> MatrixProduct | None:
        """The gated product; None where a result has another use too, or the two belong to no gated layer without a bias."""
        gate, up = self.activated.of, self.other
        applied = gate.uses[0] if gate is not None and gate.uses else None
        if gate is None or not isinstance(applied, _Applied) or self.activated.uses != [self]:
            return None
        product, joined = gate.product, gate is up
        if product.layout != Layout.TN or product.bias or product.batch > 1 or not product.packed:
            return None
        if (gate.uses, up.uses) != (([applied, self],) * 2 if joined else ([applied], [self])):
            return None
        width = product.n // 2 if joined else product.n
        views = {(one.width, one.elements) for one in (applied.read, self.read)}
        offsets = {applied.read.offset, self.read.offset}
        if views != {(width, product.m * width)} or offsets != ({0, width} if joined else {0}):
            return None
        if not joined and (product != up.product or gate.left != up.left):
            return None
        changes = {"n": width, "activation": applied.activation, "gated": "joined" if joined else "apart"}
        return product.model_copy(update=changes)


def _without_attention() -> Any:
    """A mode in which attention gives a tensor of its shape, and gradients to its three operands, without a product."""
    import torch
    from torch.overrides import TorchFunctionMode

    class WithoutAttention(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.scaled_dot_product_attention:
                named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
                query, key, value = (named[one] for one in ("query", "key", "value"))
                made = query.new_zeros((*query.shape[:-1], value.shape[-1]))
                return made + query.mean() + key.mean() + value.mean()
            return func(*args, **(kwargs or {}))

    return WithoutAttention()


def _activation(name: str, options: Mapping[str, Any]) -> Activation | None:
    """The activation that an operator of aten is, without the ending of its form in place."""
    if name == "gelu":
        return Activation.GELU_TANH if options.get("approximate") == "tanh" else Activation.GELU
    return Activation(name) if name in ("relu", "silu") else None


def _storage(tensor: Any) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity


def _place(tensor: Any) -> tuple[int, int]:
    """Where a tensor begins."""
    return _storage(tensor), tensor.storage_offset()


def _view(tensor: Any) -> _ReadPart:
    width = tensor.shape[-1] if tensor.dim() else 1
    return _ReadPart(tensor.storage_offset(), width, tensor.numel())


def _recorder(parameters: Mapping[int, tuple[int, ...]]) -> Any:
    """A dispatch mode that counts products. `parameters`: shapes by storage."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    weights = {shape for shape in parameters.values() if len(shape) == 2}

    def _kept(*tensors: Any) -> Any:
        return tuple(StorageWeakRef(one.untyped_storage()) for one in tensors)

    class Recorder(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.backward = False
            self.counted: Counter[MatrixProduct] = Counter()
            self.results: dict[int, _Result] = {}  # of the forward pass, by storage
            self.ended: list[_Result] = []  # those of products
            self.gates: list[_GatedPair] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, product = func.overloadpacket.__name__, None
            if func.namespace == "aten" and name in OPERATORS:
                a, b = args[-2:]
                added = args[0].shape if len(args) > 2 and all(one == 1 for one in (kwargs or {}).values()) else None
                part = self._part(a, b) if self.backward else "forward"
                element = ELEMENTS.get(str(a.dtype), str(a.dtype))
                product = read_product(name, part, element, (a.shape, a.stride()), (b.shape, b.stride()), added)
            made = func(*args, **(kwargs or {}))
            if not self.backward and func.namespace != "prim":  # such ask for the device of a tensor
                self._used(func, name, (args, kwargs), made)
            if product is not None and self.backward:
                self.counted[product] += 1
            elif product is not None:
                self._hold(made, _Result(product, _kept(made, a), (*_place(a), a.shape, a.stride())))
            return made

        def end_forward(self, answer: list[Any]) -> None:
            """Products are of the backward pass from now on. What the model answers has another use."""
            self.backward = True
            for one in answer:
                if isinstance(one, torch.Tensor) and _storage(one) in self.results:
                    self.results[_storage(one)].uses.append(None)
            self._count()

        def _count(self) -> None:
            """Each product once: with its activation, or as half of a gated one."""
            gated = [(gate, product) for gate in self.gates if (product := gate.product) is not None]
            halves = {id(result) for gate, _ in gated for result in gate.results}
            self.counted.update(product for _, product in gated)
            self.counted.update(one.marked for one in self.ended if id(one) not in halves)

        def _hold(self, made: Any, result: _Result) -> None:
            """Watch what a result goes into, from now on. What its memory held before is overwritten."""
            self.results[_storage(made)] = result
            if result.of is None:
                self.ended.append(result)

        def _used(self, func: Any, name: str, given: Any, made: Any) -> None:
            """Notes what results of products go into. A view of one is the same result; in place it is one no longer."""
            activation = _activation(name.removesuffix("_"), given[1] or {}) if func.namespace == "aten" else None
            tensors = [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]
            after = {_storage(one) for one in tree_leaves(made) if isinstance(one, torch.Tensor)}
            gate = self._gate(tensors) if func.namespace == "aten" and name.removesuffix("_") == "mul" else None
            activated = None
            for storage, one in {_storage(one): one for one in tensors if _storage(one) in self.results}.items():
                result = self.results[storage]
                if activation is not None or storage not in after or func._schema.is_mutable:
                    result.uses.append(gate if activation is None else _Applied(activation, _view(one)))
                if func._schema.is_mutable:
                    del self.results[storage]
                if activation is not None and result.of is None and isinstance(made, torch.Tensor):
                    activated = _Result(result.product, _kept(made), of=result)
            if activated is not None:
                self._hold(made, activated)

        def _gate(self, factors: list[Any]) -> _GatedPair | None:
            """Of an activated result and another result, in either order."""
            found = [self.results.get(_storage(one)) for one in factors]
            if len(found) != 2 or any(one is None for one in found):
                return None
            for (one, other), read in zip((found, found[::-1]), reversed(factors), strict=True):
                if one is not None and other is not None and one.of is not None and other.of is None:
                    self.gates.append(_GatedPair(one, other, _view(read)))
                    return self.gates[-1]
            return None

        def _part(self, a: Any, b: Any) -> Part:
            if _storage(a) in parameters or _storage(b) in parameters:
                return "dX"
            made = (a.shape[-2], b.shape[-1])
            return "dW" if made in weights or made[::-1] in weights else "backward"

    return Recorder()
