"""What PyTorch's compiler is offered, and what it finds in a graph.

- `inductor_choices.py`: the library as a choice of Inductor under `torch.compile`.
- `activation_pass.py`: finds linear layers with an activation in a graph, and has one kernel compute both.
- `linear_activation.py`: `torch.ops.cudal2.linear_activation`, the operator that stands in their place.
"""
