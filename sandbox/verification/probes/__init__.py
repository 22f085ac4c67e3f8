"""Why a result is wrong: a few more runs of a failed kernel on inputs whose outputs say where and of what they were made.

- `probing.py`: the runs, over the tiers' `Executor`, and the symptoms that they show
- `probe_inputs.py`: one-hot operands, digits, blocks of K
- `wrong_outputs.py`: rows, columns, residue classes and tiles of a mask of D
- `misreads.py`: elements that stand for others, and blocks of K that are missing or added twice, in words
- `mistaken.py`: formulas that were computed in place of an activation's
- `line_maps.py`: a map of rows, columns or k, and what wrong outputs hold instead, in words
"""
