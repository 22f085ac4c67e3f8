"""What runs a matrix product: a kernel of the library where it was measured to be faster on this chip, else an algorithm of
cuBLASLt that the library holds, else the caller's own.

- `decision.py`: what a decision holds, the GPU that it is made for, and why a matrix product is not run by the library.
- `dispatcher.py`: the rules in their order, and the cache of decisions.
- `padded_m_rule.py`, `padded_m_rule.json`: when an entry may serve a smaller M (padded M), as it was measured.
"""
