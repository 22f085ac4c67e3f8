"""Kernels of a library in PyTorch programs. Importing this package registers the operators of `torch.ops.cudal2`.

- `matrix_product.py`: `cudal2.matmul`, with folding of leading sizes; `torch.ops.cudal2.matmul` with its fake and gradients.
- `aten_override.py`: the CUDA kernels of `aten::mm` and `aten::addmm` replaced, with the original ones as the fallback.
- `kernel_registrations.py`: who else has replaced these kernels, and what that means.
- `inductor/`: the library as a choice of Inductor under `torch.compile`, and layers with activations in its graphs.
- `compiled_kernels.py`: these kernels in C++, `native/aten_kernels.cpp`, and the services that they ask.
- `compiled_build.py`: compiles them for the PyTorch at hand, and finds them in the cache.
- `product_service.py`: from two matrices to a launch: the path of every call.
- `call_routes.py`: what a signature leads to, found once and kept.
- `route_decision.py`: finds it: the kernel or the algorithm that is launched, or why PyTorch computes the matrix product.
- `device_dispatch.py`: what each device is, and the decisions for it.
- `call_counts.py`: how often each was called; `notices.py`: what was logged, each once.
- `matrix_signature.py`: what matrix product two tensors are, or why none that an entry serves.
- `background_builds.py`: kernels that are not built are built in the background, once.
- `gpu_platform.py`: devices, streams and the launcher, behind a protocol that tests implement on the CPU.
- `invariant_operators.py`, `invariant_products.py`: the batch-invariant mode: the operators that it replaces, and the path of
  a call.
- `torch_session.py`: the one service of a process, `enable`, `disable` and `status`.
- `service_status.py`: what was served and what fell back, and why.
"""

from cudal2.torch.inductor import gated_linear as _gated  # noqa: F401
from cudal2.torch.inductor import linear_activation as _activated  # noqa: F401
from cudal2.torch.inductor.inductor_choices import disable_inductor, enable_inductor
from cudal2.torch.matrix_product import matmul
from cudal2.torch.torch_session import configure, disable, enable, status

__all__ = ["configure", "disable", "disable_inductor", "enable", "enable_inductor", "matmul", "status"]
