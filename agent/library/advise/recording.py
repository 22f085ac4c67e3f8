"""Records the matrix products of a PyTorch model from a real forward and backward pass. Only this module imports torch.

Covered: mm, addmm, bmm and baddbmm, to which linear layers, matmul and einsum lead.
Not covered: products inside fused operators such as attention, grouped products, convolutions, and what a model does outside
PyTorch.
The file of the user runs in this process, with the user's rights.
"""

import importlib.util
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

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


def record_model(file: Path) -> Recording:
    """The products of `model()` on `inputs()`, the most frequent first.

    Tensors are fake at first, so that a large model takes neither memory nor time; a model that reads values of its tensors
    runs again with real ones. Raises: UsageError for a file that does not work, MachineError where torch is missing.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as exc:
        raise MachineError("recording a model needs PyTorch; pip install torch") from exc
    model, inputs = _load(file)
    try:
        counted = _run(model, inputs, FakeTensorMode())
    except Exception:  # noqa: BLE001 (whatever a fake tensor cannot do)
        try:
            counted = _run(model, inputs, nullcontext())
        except Exception as exc:
            raise UsageError(f"{file}: {type(exc).__name__}: {exc}", log=traceback.format_exc()) from exc
    if not counted:
        raise UsageError(f"{file}: the model has no matrix product")
    return Recording(products=in_order(CountedProduct(product=one, calls=calls) for one, calls in counted.items()))


def _load(file: Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location("recorded_model", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        raise UsageError(f"{file}: {type(exc).__name__}: {exc}", log=traceback.format_exc()) from exc
    missing = [name for name in ("model", "inputs") if not callable(getattr(module, name, None))]
    if missing:
        raise UsageError(
            f"{file} does not define {missing[0]}(); it needs model(), a module, and inputs(), a tuple of arguments"
        )
    return module.model, module.inputs


def _run(
    make_model: Callable[[], Any], make_inputs: Callable[[], Any], tensors: AbstractContextManager[Any]
) -> Counter[MatrixProduct]:
    """One forward and one backward pass."""
    import torch
    from torch.utils._pytree import tree_leaves

    with tensors:
        model, given = make_model(), make_inputs()
        recorder = _recorder({_storage(one): tuple(one.shape) for one in model.parameters()})
        with recorder:
            if isinstance(given, Mapping):
                answer = model(**given)
            else:
                answer = model(*given) if isinstance(given, tuple | list) else model(given)
            recorder.backward = True
            outputs = [one for one in tree_leaves(answer) if isinstance(one, torch.Tensor) and one.requires_grad]
            if outputs:  # contiguous gradients, as those of a loss are
                torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
    counted: Counter[MatrixProduct] = recorder.counted
    return counted


def _storage(tensor: Any) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity


def _recorder(parameters: Mapping[int, tuple[int, ...]]) -> Any:
    """A dispatch mode that counts products. `parameters`: shapes by storage."""
    from torch.utils._python_dispatch import TorchDispatchMode

    weights = {shape for shape in parameters.values() if len(shape) == 2}

    class Recorder(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        backward = False

        def __init__(self) -> None:
            super().__init__()
            self.counted: Counter[MatrixProduct] = Counter()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if func.namespace == "aten" and name in OPERATORS:
                a, b = args[-2:]
                part = self._part(a, b) if self.backward else "forward"
                element = ELEMENTS.get(str(a.dtype), str(a.dtype))
                product = read_product(name, part, element, (a.shape, a.stride()), (b.shape, b.stride()))
                if product is not None:
                    self.counted[product] += 1
            return func(*args, **(kwargs or {}))

        def _part(self, a: Any, b: Any) -> Part:
            if _storage(a) in parameters or _storage(b) in parameters:
                return "dX"
            made = (a.shape[-2], b.shape[-1])
            return "dW" if made in weights or made[::-1] in weights else "backward"

    return Recorder()
