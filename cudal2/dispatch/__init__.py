"""What runs a product: a kernel of the library where it was measured to be faster on this chip, else an algorithm of cuBLASLt
that the library holds, else the caller's own.

- `causes.py`: why a product is not run by the library, in a word and in a sentence.
- `decision.py`: what a decision holds, and the GPU that it is made for.
- `dispatcher.py`: the rules in their order, and the cache of decisions.
- `neighbour_rule.py`, `neighbours.json`: when an entry of a larger M may serve, as it was measured.
"""
