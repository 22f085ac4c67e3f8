"""Which schedules to try next.

- `schedule_pool.py`: the schedules to choose from, with their predicted times, and the neighbours of one.
- `encoding.py`: schedules as numbers for a model.
- `gaussian_process.py`: regression over these numbers.
- `surrogate.py`: what the run's times say about schedules not yet tried.
- `risk.py`: the probability that a schedule fails.
- `acquisition.py`: the ranking, by the prior or by draws from the surrogate.
- `neighbours.py`: draws among the neighbours of the best schedules.
"""
