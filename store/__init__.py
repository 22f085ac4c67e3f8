"""The trajectory store, which records every attempt of every run.

- `store.py`: writes and reads runs, observations, candidates, steps and exchanges.
- `filters.py`: which steps a command or an export takes.
- `writer.py`, `reader.py`: records to rows and back.
- `plain_records.py`: what of a record is stored once, and what with each.
- `packing.py`: records as zstd frames, with dictionaries that the store learns.
- `tables.py`: the tables, and their rows by integer keys.
- `engine.py`: opens the database.
- `read_only.py`: reads one where nothing can be written.
- `migrations/`: from the tables of earlier versions to today's.
- `steps.py`: a step with its run and its candidate, as a line of JSON.
- `sweep/`: the compact form in which steps travel.
- `importing.py`, `incoming.py`: exported files into a store, in one transaction, and what their lines hold.
- `merging.py`: another store into a store.
- `campaign_queue.py`: the tasks of a campaign, claimed by workers one at a time.
- `campaign_results.py`: what was found for each shape and each module, by filters, and tuned baselines.
- `statistics.py`: lists and counts, by SQL alone.
- `checking.py`: every hash, packed record, reference and repeated column.
- `pruning.py`: deletes steps and runs, and what nothing else refers to.
"""
