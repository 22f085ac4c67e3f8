"""Modules on the emulator. Only here does it use torch, which takes seconds to import: a worker does so for its first module.

- `emulated_module.py`: runs a candidate over the buffers of a module, as the proof asks
- `module_evaluator.py`: which tests run at which size, and what a proof then says
"""
