"""A store of a million steps as sweeps make them: its size, its rates, its memory and the time of its commands.

- `real_runs.py`: runs that were measured on an H200, in `h200_runs.json.xz`; the models of all others.
- `invented_steps.py`: a step for another shape and schedule, after a measured one.
- `invented_runs.py`: whole runs of such steps.
- `filling.py`: fills a store with them, over several processes.
- `store_bench.py`: measures a store.
- `store_table.py`: what was measured, and its table.
"""
