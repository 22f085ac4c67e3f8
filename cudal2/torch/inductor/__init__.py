"""What PyTorch's compiler is offered, and what it finds in a graph.

- `inductor_choices.py`: the library as a choice of Inductor under `torch.compile`.
- `layer_pass.py`: has one kernel compute a linear layer and its activation, or a gated layer; `found_layers.py`: finds both.
- `linear_activation.py`, `gated_linear.py`: the operators of `torch.ops.cudal2` that stand in their place;
  `layer_operator.py`: what both have in common.
"""
