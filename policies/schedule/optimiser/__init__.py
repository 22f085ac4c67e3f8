"""Which schedules to try next.

- `schedule_pool.py`: the schedules to choose from, with their predicted times, and the neighbours of one.
- `pool_entry.py`, `pool_prior.py`: one of them; what a prior is to a search, and schedules as numbers for a model.
- `surrogate.py`: what the run's times and failures say about schedules not yet tried.
- `acquisition.py`: the ranking, by the prior or by draws from the surrogate, half of them among the neighbours of the best.
"""
