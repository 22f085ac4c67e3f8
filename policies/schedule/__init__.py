"""The schedule policy: searches the schedules of its kernel families and writes whole sources from them.

- `policy.py`: proposes candidates, round by round.
- `prior.py`: the analytic model of a schedule's time.
- `prediction.py`: the predicted time of a candidate that cannot be timed.
- `named_schedules.py`: schedules that somebody names by their axes, completed, checked and written.
- `invariant_kernels.py`: few schedules that together serve every size, with an order of summation that does not depend on M.
- `families/`: the kernel families, each with its CUDA source and its schedules.
- `optimiser/`: which schedules to try next, from the prior, the times and failures of the run, and the diagnosis.
"""
