"""The trajectory store, which records every attempt of every run.

- `store.py`: writes and reads runs, observations, candidates, steps and exchanges.
- `filters.py`: which steps a command or an export takes.
- `writer.py`, `reader.py`: records to rows and back.
- `plain_records.py`: what of a record is stored once, and what with each.
- `compression.py`: zstd, of the standard library or its backport.
- `packing.py`: records as zstd frames, with dictionaries that the store learns.
- `keys.py`: rows by their integer keys.
- `tables.py`: the tables.
- `engine.py`: opens the database.
- `migrations/`: from the tables of earlier versions to today's.
- `exchanges.py`: the exchanges of one run.
- `steps.py`: a step with its run and its candidate, as a line of JSON.
- `sweep/`: the compact form in which steps travel.
- `importing/`: exported files into a store.
- `merging.py`: another store into a store.
- `campaigns/`: queues and results of campaigns, and tuned baselines.
- `statistics.py`: lists and counts, by SQL alone.
- `upkeep/`: checks a store, and deletes from it.
"""
