"""The portfolio policy: splits each round between other policies by their success so far.

- `policy`: proposes with several policies.
- `evidence`: what a run's attempts say about the policies that made them.
- `bandit`: divides slots by that evidence.
"""
