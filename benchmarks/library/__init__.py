"""What programs pay for the kernels of a library, and what they gain in PyTorch.

    python -m benchmarks.library all --out FOLDER

- `__main__.py`: the command; each part writes one JSON file, after every row
- `host_costs.py`: host time of a call, by the way it takes
- `transformer_block.py`: a block forward and backward, in eager mode, compiled and in CUDA graphs
- `dispatched_shapes.py`: every grid shape and random ones, or every product of the library
- `model_layers.py`: a command of its own: the weights of public models, as shapes of a campaign
- `models/`: models with random weights for `cudal2-agent tune benchmarks/library/models/bert_base.py --tokens 2048`
- `neighbours.py`: a command of its own: whether a kernel of the library also serves other M
"""
