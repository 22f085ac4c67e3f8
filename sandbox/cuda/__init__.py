"""The GPU backend.

- `evaluator.py`: what a worker does with one candidate: load, verify, time, verify again
- `verifier.py`: the verification tiers over guarded buffers
- `contender.py`: what verification and timing run: a candidate, a host candidate or a baseline
- `device.py`: the GPU of this process, its primary context and its stream
- `driver.py`: CUDA driver calls as results or exceptions
- `environment.py`: the device's properties and the versions that shape a measurement
- `guard/`: device memory that shows stray accesses
- `launcher.py`: a resolved plan and a cubin as launches on a stream; `tensor_map.py`: TMA descriptors over the operands
- `trusted.py`, `trusted.cu`: the producer before and the consumer after a candidate with programmatic launch
- `host.py`: host candidates, which launch by themselves
- `batch_evaluator.py`: what a worker does with many candidates of a task in one request
- `screen_timer.py`: brief rounds of one candidate beside cuBLASLt-AutoTuning
- `race_timer.py`: rounds of all finalists together, with the baselines; `elimination.py`: who stays, from the samples alone
- `timing/`: measurement against baselines
- `modules/`: PyTorch modules; `published/`: modules that others published, measured by the same timer
- `baselines/`: torch.matmul, cuBLAS and cuBLASLt
"""
