"""The trajectory store, which records every attempt of every run, and its exports.

- `store`: writes and reads runs, observations, candidates, steps and exchanges.
- `tables`: its tables.
- `engine`: opens its database.
- `exchanges`: the exchanges of one run.
- `export`: steps as JSON lines.
"""
