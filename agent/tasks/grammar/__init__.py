"""A grammar of problem files: operations, and the shapes between which they fit. It draws text and runs nothing.

- `choices`: choices by a seed, the same on every machine
- `sizes`: a size as the file writes it, and its value
- `sketch`: a problem while it is drawn, and its text
- `pointwise_steps`: activations, arithmetic with numbers, parameters and further inputs, gates
- `row_steps`: norms, softmax, reductions, scans
- `window_steps`: pools, moves of elements
- `product_steps`: linear layers, convolutions, products of tensors, attention
- `starts`: what a problem begins with: inputs of a form, indices, losses
- `problems`: whole problems of three levels
"""
