"""The trajectory store, which records every attempt of every run, and its exports.

- `store.py`: writes and reads runs, observations, candidates, steps and exchanges.
- `tables.py`: its tables.
- `engine.py`: opens its database.
- `exchanges.py`: the exchanges of one run.
- `exports/`: data sets for trainers, and steps as JSON lines.
"""
