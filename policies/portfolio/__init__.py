"""The portfolio policy: splits each round between other policies by their success so far.

- `policy.py`: proposes with several policies.
- `evidence.py`: what a run's attempts say about the policies that made them.
- `bandit.py`: divides slots by that evidence.
"""
