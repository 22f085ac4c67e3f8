"""Modules that a run of `cudal2-agent optimize --problem` made faster, for programs that import them. It needs PyTorch.

- `served_module.py`: `serve` makes a folder of results a class that replaces the original module.
- `module_service.py`: one call: whether the kernels serve it, and their launch.
- `module_memory.py`: the tensors behind a task's buffers, and what must hold of them.
- `stored_module.py`: what the folder says of the task and the plan.
"""

from cudal2.modules.served_module import serve

__all__ = ["serve"]
