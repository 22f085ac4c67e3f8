"""The emulator: whether it agrees with a GPU, what it finds, and how fast it is.

- `agreement`: verdicts of GPU and emulator on the same kernels
- `corpus`: seeded faults and right kernels under many schedules
- `drawn_schedules`: kernels drawn from each family's whole space, none of which a GPU may reject
- `golden_opcodes`, `golden_device`: inputs and outputs of single instructions, recorded for the emulator's tests
- `speed`: time of tiles, products and `verify`
- `timing_model/`: what the timing model is fitted to, and how it is judged
"""
