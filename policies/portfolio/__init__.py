"""The portfolio policy: splits each round between other policies by their success so far.

- `policy.py`: proposes with several policies.
- `bandit.py`: what a run's attempts say about the policies that made them, and slots divided by that evidence.
"""
