"""Which schedules to try next.

- `schedule_pool`: the schedules to choose among, with their predicted times, and the neighbours of one.
- `encoding`: schedules as numbers for a model.
- `gaussian_process`: regression over them.
- `surrogate`: what the run's times say about schedules not yet tried.
- `risk`: the probability that a schedule fails.
- `acquisition`: the ranking, by the prior or by draws from the surrogate.
- `around`: draws among the neighbours of the best schedules.
- `steering`: what a diagnosis asks of these neighbours.
- `relief`: which moves of a schedule relieve which bottleneck.
"""
