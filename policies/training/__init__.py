"""Trains the learned schedule policy, with torch. docs/guide/training.md says what it does.

| file | what |
|---|---|
| `groups`, `group_cache` | the timed schedules of each stored run, with schedules that were not tried |
| `group_tensors` | a group as tensors |
| `training_plan` | what a training does |
| `schedule_network` | the network in torch; `policies.schedule.learned.network` runs it |
| `losses` | what each stage minimises |
| `schedule_training` | the stages over stored groups |
| `tree_training` | the trees of second opinions |
| `adapting` | a policy trained on with the few runs of another chip or kind of task |
| `online_training` | training by trying: groups that a score evaluates |
| `checkpoints` | what a killed training resumes from, and the log |
| `judging` | what scores are worth on groups that were not trained on |
| `trainer` | from a store to a policy file |
"""
