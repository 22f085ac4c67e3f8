"""Who proposes best: schedule policies beside other ways to find schedules. Run: python -m benchmarks.proposals

- `__main__`: the bench on a GPU, figures of its rows, and the replay of stored sweeps
- `forest`, `forest_tuner`: a random forest of good schedules, the tuner that follows it, and arms of it
- `sweeps`: the schedules that the store holds of each task, with their times; `replay`: their order by an arm
- `prior`: how well the analytic prior ranks stored schedules; constants of the prior were fitted by it
- `adapted_policy`: makes the policy that ships for the H100
"""
