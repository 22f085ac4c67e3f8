"""Which kernel runs a product: the library's where it was measured to be faster on this chip, else the caller's own.

- `causes.py`: why a product is not run by the library, in a word and in a sentence.
- `decision.py`: what a decision holds, and the GPU that it is made for.
- `dispatcher.py`: the rules in their order, and the cache of decisions.
- `neighbour_rule.py`, `neighbours.json`: when an entry of a neighbouring shape may serve; empty until it is measured.
- `stored_algorithms.py`: what running a stored cuBLASLt algorithm needs.
"""
