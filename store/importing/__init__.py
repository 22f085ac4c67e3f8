"""Imports: files of other machines into a store.

- `importing.py`: writes what the files hold, in one transaction.
- `incoming.py`: what a file holds, whatever its form.
- `step_lines.py`: reads the lines of an export as `steps`; `sweep/sweep_reading.py` those of a sweep.
- `input_lines.py`: lines of a file or of stdin, plain or compressed.
"""
