"""Campaigns in the trajectory store.

- `queue.py`: the tasks of a campaign, claimed by workers one at a time.
- `results.py`: what was found for each task, by filters.
- `tuned.py`: tuned baselines.
"""
