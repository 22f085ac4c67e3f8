"""The GPU backend.

- `evaluator.py`: what a worker does with one candidate: load, verify, time, verify again
- `verifier.py`: the verification tiers over guarded buffers
- `contender.py`: what verification and timing run: a candidate, a host candidate or a baseline
- `device.py`: the GPU of this process, its primary context and its stream
- `driver.py`: CUDA driver calls as results or exceptions
- `environment.py`: the device's properties and the versions that shape a measurement
- `guard/`: device memory that shows stray accesses
- `launch/`: a resolved plan and a cubin as launches on a stream
- `timing/`: measurement against baselines
- `batch/`: many candidates in one request: screens and races
- `baselines/`: torch.matmul, cuBLAS and cuBLASLt
"""
