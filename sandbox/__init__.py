"""The sandbox: compiles, inspects, verifies, times and profiles candidates, on a GPU or on the emulator.

- `local.py`: the `Sandbox` protocol on this machine
- `remote/`: the same protocol, with the sandbox on another machine
- `building/`: from a candidate's source to an inspected artifact
- `inspect/`: what compiled code contains
- `jail/`: the files and system calls that are left to a child process
- `workers/`: the processes that run candidates, and the messages to and from them
- `verification/`: the tests that a candidate must pass, the same for both backends
- `cuda/`: the GPU backend: memory, launches, timing, baselines
- `emulator/`: the CPU backend, which executes PTX and detects data races and out-of-bounds accesses
- `profiling/`: Nsight Compute
- `diagnosis/`: what limits a kernel, from inspection, time and counters
- `include/`: the device headers that candidates may include
"""
