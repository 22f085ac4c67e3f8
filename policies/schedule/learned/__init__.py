"""The prior that learned from earlier runs, in numpy. A search with it does not import torch.

| file | what |
|---|---|
| `features` | schedules of a task on a chip as columns of numbers |
| `network` | the ensemble that corrects the analytic prior |
| `boosted_trees` | other learners, whose opinions end a first round |
| `policy_file` | weights and their card as one file; the files that are here, by name |
| `learned_prior` | what a search asks |
| `shipped/` | the policies that ship with the product |
"""
