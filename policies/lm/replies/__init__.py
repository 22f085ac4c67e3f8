"""Replies of a language model: sampled, read, rewarded.

- `reply_sampler.py`: samples replies of a model in this process; `reply_tree.py`: only such that name a schedule of the task.
- `reply_readers.py`: a reply to a candidate, here or in processes that have the spaces of tasks ready.
- `reply_reward.py`: from replies to the rewards of group-relative optimisation, and where the time goes.
"""
